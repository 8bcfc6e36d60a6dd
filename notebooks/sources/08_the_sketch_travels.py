# %% [markdown]
# # 08 · The sketch travels
#
# **Claim.** A trainer and a generating process stay equal in every bit by exchanging kilobytes: the small factor
# of each update travels, and the receiver makes the rest itself.
#
# **You will be able to** say how large a packet is before you send one, apply it, refuse one that doesn't follow,
# judge when a sparse patch of changed weights would be the better choice, and find the receiver that loses what
# it is sent.
#
# **Before you start**: lesson 03 (sketching) gives you $A$ from a seed, lesson 05 (row Adam and merging) says why
# bf16 swallows small updates. **Time**: 60 minutes with the exercises, 15 without.

# %%
import textwrap

import torch

from logra_lab.lab import checks, lesson08, lesson08_figures, packet_size, parcels, second_process, widgets
from logra_lab.lab.roadmap import roadmap
from logra_lab.memory import MODELS
from logra_lab.method import Sender
from logra_lab.method.packet import decode
from logra_lab.method.projection import rademacher
from logra_lab.scale.distributed import wire_bytes
from logra_lab.scale.rollouts import RemoteWorker

roadmap(8)

# %% [markdown]
# ## Why anything travels
#
# In RL somebody has to write the answers that are judged. At scale that is another process, often another
# machine: it generates faster than a trainer could. But it has to generate with the **trainer's weights**, after
# every update. The plain way is to send all of them: gigabytes for a 7B model, every step.
#
# Look at what an update is: $W \leftarrow W - F A$, with $F = \alpha U$ of shape `[d, r]`. And $A$ is a function of
# (seed, update number, layer), which the receiver can evaluate as well as the trainer. So $F$ is all that is new:

# %%
lesson08_figures.travel()

# %% [markdown]
# ## Exercise 1 · The size of a packet
# *Difficulty 1 of 5 · 5 minutes*
#
# A weight is `[d, k]`: $d$ output rows, $k$ input columns. $F$ travels in bf16, two bytes a number. How many bytes
# of factors does one update take, for weights of these shapes?


# %%
def packet_bytes(shapes: list[tuple[int, int]], rank: int) -> int:
    """Bytes of the factors F of all weights; `shapes` holds their (d, k)."""
    # SOLUTION
    return sum(2 * d * rank for d, k in shapes)
    # END


packet_bytes = checks.check("packet_bytes", packet_bytes)

# %% [markdown] tags=["hint"]
# One weight sends $d \times r$ numbers of two bytes. Where is $k$? It is $A$'s side, and $A$ stays at home.

# %% [markdown]
# Now a real one. Here tiny-math trains for 16 updates in the course's loop, and we keep each packet as it would
# have left. A packet is a safetensors file: numbers and text, so reading it can't run code.

# %% tags=["nbval-check-output"]
trip = lesson08.journey(updates=16)
shapes = [(target.rows, target.columns) for target in trip.targets]
first = decode(trip.packets[0])
print(
    f"one packet: {len(trip.packets[0]):,} bytes, of which factors: {packet_bytes(shapes, 8):,} (your formula)"
)
print(f"the rest is its header, with the names and shapes of {len(shapes)} weights")
print(f"full fp32 weights, as a resync sends them: {len(trip.full[0]):,} bytes")
seven = MODELS["Qwen2.5-Math-7B"]
large = [(matrix.d, matrix.k) for matrix in seven.targets] * seven.layers
for rank in (64, 256):
    sent, whole = packet_bytes(large, rank) / 1e6, 2 * seven.parameters / 1e9
    print(f"{seven.name}, r = {rank}: {sent:.0f} MB instead of {whole:.1f} GB in bf16")

# %% [markdown]
# ## Exercise 2 · Apply one
# *Difficulty 2 of 5 · 10 minutes*
#
# You are the receiver. You hold $W$, a packet has brought $F$, the update number and the decay $\lambda$. Return
#
# $$ W' = (1 - \lambda)\,W - F A, \qquad
# A = A(\text{seed}, \text{update}, \text{group})\ \in \{\pm 1/\sqrt r\}^{r \times k}. $$
#
# `rademacher(seed, update, group, rank, columns)` makes $A$. The packet's number counts the updates that were done
# *before* this one: it is the number under which the trainer drew $A$.


# %%
def apply_packet(
    weight: torch.Tensor, factor: torch.Tensor, seed: int, update: int, group: str, decay: float
) -> torch.Tensor:
    """The receiver's next weight [d, k], from W [d, k] and F [d, r]."""
    # SOLUTION
    rank, columns = factor.shape[1], weight.shape[1]
    a = rademacher(seed, update, group, rank, columns)  # [r, k]
    return (1 - decay) * weight - factor @ a
    # END


apply_packet = checks.check("apply_packet", apply_packet)

# %% [markdown] tags=["hint"]
# $r$ and $k$ stand in the shapes: `factor.shape[1]` and `weight.shape[1]`. Decay the old weight, not the update.

# %% [markdown]
# Your function, on all 14 weights, for all 16 packets. Beside it the library's `Replica`. How far are they from the
# trainer?

# %% tags=["nbval-check-output"]
yours = lesson08.follow_blindly(trip, apply_packet)
library, _ = lesson08.follow_by_chain(trip)
moved = lesson08.distance(trip.start, trip.after[-1])
off = lesson08.distance(yours[-1], trip.after[-1])
print(f"the trainer has moved by {moved:.2f}; your receiver ends there, up to rounding: {off < 1e-4 * moved}")
print(
    f"replica: {lesson08.equal_share(library[-1], trip.after[-1]):.0%} of the fp32 numbers equal in every bit"
)

# %% [markdown]
# Up to rounding is what mathematics gives. **Every bit** takes more: the same products in the same order, from
# the same kernel. The replica has that, since trainer and replica run one and the same merge. And what is sent was
# rounded to bf16 *before* the trainer applied it, so both sides apply the same numbers. Between a CPU and a GPU
# sums round differently: there a checksum with a tolerance takes the place of equality.

# %% [markdown]
# ## Exercise 3 · Detect a missing one
# *Difficulty 3 of 5 · 15 minutes*
#
# Networks lose things, send them twice, mix them up; somebody starts a second run on the same folder. One wrong
# packet and the receiver generates with weights that nobody has.
#
# So packets form a **chain**. Each holds `parent`, the link it follows, and its own link, `says`, which is a hash of
# its content and its parent. The first parent is a hash of the initial weights. On arrival the hash is computed
# again from the bytes: `computed`.
#
# Given your link and what arrives, return for each packet `"applied"` or `"resync"`, and your link at the end.


# %%
def follow(link: str, packets: list[parcels.Parcel]) -> tuple[list[str], str]:
    """What becomes of each packet (.number, .parent, .says, .computed), and the link at the end."""
    # SOLUTION
    statuses = []
    for packet in packets:
        if packet.parent == link and packet.computed == packet.says:
            statuses.append("applied")
            link = packet.computed
        else:
            statuses.append("resync")
    return statuses, link
    # END


follow = checks.check("follow", follow)

# %% [markdown] tags=["hint"]
# Two questions: is it whole (`computed == says`), and does it follow (`parent == link`)? Move your link only when
# both hold; a refused packet leaves you where you were, and the one that is due may still come. The number alone is
# not enough: another run has an update 3 too.

# %% [markdown]
# The same rule on the real packets. Number 3 is lost, number 1 comes twice:

# %% tags=["nbval-check-output"]
arriving = [0, 1, 1, 2, 4, 5]
verdicts, _ = follow(trip.root, [parcels.opened(trip.packets[number]) for number in arriving])
copy = lesson08.replica()
for number, verdict in zip(arriving, verdicts):
    receipt = copy.apply(trip.packets[number])
    print(f"packet {number}: you say {verdict:8} the library {receipt.status:8} {receipt.reason}")

# %% [markdown]
# ## Control: what if nobody refused?
#
# Perhaps this is too strict: one update of 16 is small, why not go on without it? Let us see the wrong
# continuations. Packet 5 is lost for all of these receivers, and your `apply_packet` drives the two blind ones:
#
# - **applies what comes**: takes the number from the packet;
# - **counts by itself**: takes the next number of its own for each packet it gets, so that from there on every $A$ is
#   the one of an update too early;
# - **chained**: refuses, asks, and gets the full weights instead.

# %%
lost = 5
paths = {
    "chained, resynced": lesson08.follow_by_chain(trip, lost)[0],
    "applies what comes": lesson08.follow_blindly(trip, apply_packet, lost),
    "counts by itself": lesson08.follow_blindly(trip, apply_packet, lost, own_count=True),
}
lesson08_figures.lost_packet(lesson08.kl_to_trainer(trip, paths), lost)

# %% [markdown]
# The first blind receiver carries one missing update with it for good. The second is worse: it lifts each factor
# with the wrong $A$, which is noise of the right size (lesson 03), and every packet adds to it. Nothing crashes in
# either; the answers only come from a policy that the trainer doesn't have. The chained one is off for as long as the
# next packet takes.
#
# ## Two real processes
#
# Now the whole thing. A second Python starts with its own copy of tiny-math and the command
# `python -m logra_lab.scale.worker`; the two share nothing but a folder for messages. The worker writes all answers
# that the trainer learns from. We lose packet 3 on purpose.

# %%
with second_process.worker_process() as folder:
    run = lesson08.trainer()
    wire = second_process.Losing(second_process.end(folder), lose=3)
    worker = RemoteWorker(Sender(run.arm.optimizer), wire, timeout=120.0)
    run.arm.optimizer.on_commit.append(worker.publish)
    run.sampler = worker.sample
    for _ in range(6):
        run.train_step()
    alike = second_process.answers_alike(run, worker)
    worker.stop()
print(second_process.log_of(worker.syncs))
print(f"\nsent in all, prompts included: {wire.sent:,} bytes")
print(f"64 answers and their log-probs, worker against trainer, equal in every bit: {alike}")

# %% [markdown]
# Read the log. Packet 3 left and never arrived. The next request named the link that its answers must come from; the
# worker stood at another, said so, and got the full weights once. After that kilobytes again. In a run without losses
# there are packets only.
#
# The same economy holds **between trainers**. Data parallelism adds up gradients over GPUs at each step; here it adds
# up sketches:

# %% tags=["nbval-check-output"]
wired = wire_bytes(run.arm.optimizer)
print(f"per step and rank: {wired.sketches:,} bytes of sketches instead of {wired.gradients:,} of gradients,")
print(f"a factor of {wired.ratio:.1f} at rank {lesson08.RANK}")

# %% [markdown]
# ## The signature figure: bytes against rank, and an honest rival
#
# Full weights are an easy opponent. A better one: after a small update most bf16 weights are the number they were
# before (lesson 05), so send only those that changed, losslessly. That is a **sparse patch**. It knows no rank; its
# size follows the size of the step. Two steps, then: the course's, and the paper's, which is fifty times smaller.

# %%
measured = [lesson08.traffic(rank) for rank in (2, 8, 32)]
small = lesson08.traffic(8, ratio=lesson08.PAPER_RATIO)
ratios = (lesson08.COURSE_RATIO, lesson08.PAPER_RATIO)
lesson08_figures.bytes_against_rank(measured, small, packet_bytes, shapes, seven, ratios)

# %%
for words, report in (("course's", measured[1]), ("paper's", small)):
    print(textwrap.fill(f"The {words} step. {report.verdict}", 100), end="\n\n")

# %% [markdown]
# At small ranks the dots stand a little above your line: that is the header. And there is **no claim that the
# packet always wins**. On tiny-math, whose weights are narrow, the patch is smaller at the paper's step from a very
# small rank on. A packet costs $16\,r/k$ bits per weight, so wide layers favour it. In size alone the two are
# neighbours.
#
# What the packet brings beside its size: its length is known before the step, it holds the fp32 update and not only
# its rounded trace, and making it needs no copy of the old weights. What the patch brings: it needs no seed, no
# chain and no merge, and it works for every optimizer.
#
# ## Play
#
# Two things to find out. For the 7B model at the paper's step, up to which rank is the packet smaller? And on which
# of the links would you stop caring?

# %%
player = widgets.play(
    packet_size.packet_size,
    model=widgets.Choice("model", tuple(packet_size.SHAPES), "Qwen2.5-Math-7B"),
    rank=widgets.Slider("rank r", packet_size.RANKS, 64),
    ratio=widgets.Slider("step size", packet_size.RATIOS, 6e-5),
    link=widgets.Choice("link", tuple(packet_size.LINKS), "10 Gbit/s"),
)

# %% [markdown]
# ## Exercise 4 · Find the bug
# *Difficulty 3 of 5 · 10 minutes*
#
# A colleague writes a receiver for an inference engine. The engine computes in bf16, so the receiver keeps bf16
# weights and merges each packet into them. The unit test sends one large update and allows an error of one per cent; it
# passes. In the run the answers come from an ever staler policy. The symptom, on one of our weights: at the course's
# step, and with each update divided by 50, about the paper's.

# %%
from logra_lab.lab.exercises.lesson08 import faulty_receiver

lesson08_figures.receivers(
    {
        "colleague, course's step": lesson08.arrivals(trip, faulty_receiver),
        "colleague, paper's step": lesson08.arrivals(trip, faulty_receiver, size=1 / 50),
    }
)

# %% [markdown]
# Left: more and more weights are not the trainer's. Right: at the course's step most of the way arrives, with noise
# on top; at the paper's hardly anything does. The chain is no help here, since every packet came, in order and
# whole. The receiver *applies* them, and then loses what it applied. Repair it. It gets the fp32 start and a list
# of pairs $(F, A)$, and returns the bf16 weights that the engine computes with. They should be the trainer's,
# rounded.


# %%
def repaired_receiver(start: torch.Tensor, updates: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """bf16 weights [d, k], from W [d, k] in fp32 and pairs of F [d, r] in bf16 and A [r, k] in fp32."""
    # SOLUTION
    weight = start.clone()  # fp32, kept beside what the engine uses
    for factor, a in updates:
        weight -= factor.float() @ a
    return weight.to(torch.bfloat16)
    # STUB
    # weight = start.to(torch.bfloat16)
    # for factor, a in updates:
    #     weight = (weight.float() - factor.float() @ a).to(torch.bfloat16)
    # return weight
    # END


repaired_receiver = checks.check("repaired_receiver", repaired_receiver)
for words, size in (("course's step", 1.0), ("paper's step", 1 / 50)):
    found = lesson08.arrivals(trip, repaired_receiver, size)
    print(f"repaired, {words}: {found.differ[-1]:.1%} differ, {found.displacement:.0%} of the way arrived")

# %% [markdown] tags=["hint"]
# Where can a receiver keep what bf16 can't hold? In fp32, or in two halves of 16 bits (lesson 05, `precision="split"`).
# Round once, for the engine, and never put the rounded number back.

# %% [markdown]
# Merged in fp32 and rounded at the end, everything arrives that bf16 can show. The library's replica would have refused
# at once: the precision is one of the **terms** that stand in every packet. And weights that change in some other way,
# by a stray write, say? A sender can add a checksum now and then, made of random signs like a sketch:

# %%
other = lesson08.replica(precision="split", model_dtype=torch.bfloat16).apply(trip.packets[0])
print(f"{other.status}: {other.reason}\n")
touched = lesson08.touched_by_a_stray_write()
print(f"{touched.status}: {touched.reason}")

# %% [markdown]
# ## Limits
#
# - Equality in every bit holds for one kind of device, one kernel and equal shapes. Elsewhere: checksums.
# - Only the sketched weights travel as factors. Native parameters (norms, embeddings, if you train them) travel whole
#   with each packet, and a large embedding can outweigh everything saved.
# - The receiver keeps fp32 weights, or two halves, where a receiver of patches keeps bf16 only.
# - The hash finds accidents, not forgers: put packets on a channel that only your processes can write to.
# - Bytes are not seconds. On a fast link between two GPUs of one machine full weights may be quick enough; the
#   merge takes time too. Patches of the large model were estimated from Gaussian weights.

# %% [markdown]
# ## Recap
#
# 1. An update is $F A$; $F$ `[d, r]` travels, $A$ is made on both sides. A packet takes $2\,r \sum d$ bytes.
# 2. The trainer applies what it sends, rounded as it is sent; so two processes stay equal in every bit.
# 3. A chain of hashes from the initial weights on: missing, repeated, foreign and damaged packets are refused.
# 4. Refused means resync. To go on without one packet is to generate with weights that nobody has.
# 5. Packets grow with the rank, sparse patches with the step; neither wins everywhere. Merge in fp32, or it is lost.
#
# **What would change our mind**: a patch of a real 7B run at rank 64 that is clearly smaller than its packet;
# `measure_traffic` prints the verdict for yours. Or a replica that differs in a bit on equal hardware.
#
# **Next**: [lesson 09](09_kernels.ipynb), where $A$ need not exist in memory at all.
