# %% [markdown]
# # 05 · Row Adam and merging
#
# **Claim.** One number per output row is a second moment that survives a new $A$. And where the update is *stored*
# decides whether it happened: bf16 swallows it, two 16-bit halves keep it.
#
# **You will be able to** write row Adam's moment with its bias correction, say why it means the same for every $A$,
# tell from the size of a step whether bf16 can hold it, split an fp32 number into two halves and join it again, and
# find the decay in the wrong place.
#
# **Before you start**: [03 (sketching)](03_sketching.ipynb) gives you $S = GA^\top$,
# [04](04_backward_without_a_gradient.ipynb) how it comes out of backward. You should have met Adam. **Time**: 60
# minutes with the exercises, 15 without.

# %%
import torch

from logra_lab.lab import checks, lesson05, lesson05_figures, precision_run, widgets
from logra_lab.lab.roadmap import roadmap
from logra_lab.method.merge import join_halves
from logra_lab.method.projection import rademacher

torch.manual_seed(0)
roadmap(5)

# %% [markdown]
# ## Part one: a memory that outlives its coordinates
#
# Adam divides each coordinate of the gradient by its usual size, which it remembers as a running mean of squares. A
# sketch $S$ `[d, r]` has coordinates too, but they are made of today's $A$. After the update $A$ is drawn anew, and
# column 3 of $S$ is another mixture of the $k$ inputs than column 3 was yesterday. A memory per entry remembers
# something that is gone.
#
# What stays? The **rows**. Row $i$ of $S$ belongs to output $i$ of the layer, today and tomorrow. So row Adam keeps
# one number per row:
#
# $$ v_i \leftarrow \beta_2 v_i + (1 - \beta_2)\,\tfrac1r \sum_j S_{ij}^2, \qquad
# \rho_i = \sqrt{\frac{v_i}{1 - \beta_2^t}}, \qquad t = 1, 2, \dots $$
#
# and divides row $i$ by $\rho_i$. For a layer of $4096 \times 4096$ that is 4096 numbers of memory where Adam keeps
# 33 million.
#
# ## Exercise 1 · The row moment
# *Difficulty 2 of 5 · 10 minutes*
#
# Return the next $v$ `[d]` and $\rho$ `[d]`. The moment starts at zero, so after $t$ steps its weights add up to
# $1-\beta_2^t$ only; the correction makes up for it in $\rho$, and leaves $v$ alone.


# %%
def row_moment(
    moment: torch.Tensor, sketch: torch.Tensor, step: int, beta2: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(next v [d], ρ [d]) from v [d], S [d, r], the step number t = 1, 2, … and β₂."""
    # SOLUTION
    following = beta2 * moment + (1 - beta2) * sketch.square().mean(dim=1)
    return following, (following / (1 - beta2**step)).sqrt()
    # END


row_moment = checks.check("row_moment", row_moment)

# %% [markdown] tags=["hint"]
# The mean over $j$ is `sketch.square().mean(dim=1)`. At the first step $v = 0.05 \cdot \text{mean}$ and $1 -
# \beta_2 = 0.05$, so $\rho$ is the row's RMS at once.

# %% [markdown]
# ## Exercise 2 · What the square of a sketch means
# *Difficulty 2 of 5 · 5 minutes*
#
# $S_{ij} = \sum_c G_{ic} A_{jc}$, with independent signs $A_{jc} = \pm 1/\sqrt r$. Square it and average over all
# $A$. The mixed terms have random signs and cancel; what remains?
#
# Return $\mathbb E_A[S_{ij}^2]$ for each row $i$. It is the same for every $j$.


# %%
def expected_square(gradient: torch.Tensor, rank: int) -> torch.Tensor:
    """E over A of S_ij² [d], from G [d, k]."""
    # SOLUTION
    return gradient.square().sum(dim=1) / rank
    # END


expected_square = checks.check("expected_square", expected_square)

# %% [markdown] tags=["hint"]
# $\mathbb E[(\sum_c g_c a_c)^2] = \sum_c g_c^2\, \mathbb E[a_c^2]$, and $a_c^2 = 1/r$ for either sign.

# %% [markdown]
# No $A$ is left in the result: a mean of $S_{ij}^2$ over $j$ and over updates measures the size of the *gradient's*
# row, whichever projections were drawn. One draw is a small sample of $r$ numbers, many draws are a good one. Three
# rows of very different size:

# %% tags=["nbval-check-output"]
G = lesson05.uneven_gradient()
rows = [0, 31, 63]
draws = [G @ rademacher(0, update, "draws", 8, G.shape[1]).T for update in range(300)]  # S [d, 8] of each
squares = torch.stack([S.square().mean(1) for S in draws])  # [300, d]
print(f"{'‖g‖²/r, your formula':>22}", *(f"{value:9.2f}" for value in expected_square(G, 8)[rows].tolist()))
for update in range(3):
    row = (f"{value:9.2f}" for value in squares[update, rows].tolist())
    print(f"{f'mean of S², update {update}':>22}", *row)
print(f"{'mean over 300 updates':>22}", *(f"{value:9.2f}" for value in squares.mean(0)[rows].tolist()))

# %% [markdown]
# ## Control: Adam in the sketch's coordinates
#
# Does it matter? Give the same sketches to three rules: your row moment, Adam's second moment per entry of $S$, and
# all of Adam, first moment included. The gradient is one fixed matrix plus noise; $A$ is drawn anew every 30 steps.
# If coordinates did no harm, the three would look alike.

# %%
PERIOD = 30
study = lesson05.refresh_study(row_moment, PERIOD)
lesson05_figures.refresh_picture(study, PERIOD)

# %% [markdown]
# Look at the first dotted line. Row moments hardly notice. The second moment per entry has got used to the old $A$:
# an entry that was always small is large now, and is divided by its old small size, so that **the update jumps**.
# The first moment fares worse: it is a sum of old sketches, lifted with the new $A$, that is, **mostly noise**,
# until it has forgotten.
#
# LoGRA draws $A$ anew at *every* update. There the first moment never recovers:

# %% tags=["nbval-check-output"]
for name, traces in lesson05.refresh_study(row_moment, period=1, steps=60).items():
    late = [(sum(t.size[20:]) / 40, sum(t.cosine[20:]) / 40) for t in traces]
    size, cosine = (sum(values) / len(late) for values in zip(*late))
    print(f"{name:>29}: size {size:.2f}, cosine {cosine:.2f}")

# %% [markdown]
# The middle line is worth a second look: with a new $A$ each time, a moment per entry is as good as one per row. It
# averages over so many projections that all entries of a row come out alike, which is exercise 2 again. It just
# needs $r$ times the memory.
#
# ## Part two: did the update happen?
#
# A step of the paper's size changes a weight matrix by $6 \cdot 10^{-5}$ of its norm. bf16 keeps eight bits of a
# number. Put the two side by side:

# %% tags=["nbval-check-output"]
weight, gap = lesson05.bf16_neighbours(0.03)
change = 6e-5 * weight
print(f"a bf16 weight of {weight:.6f}; its neighbour above is {gap:.1e} away")
print(f"a step of {change:.1e} is {change / gap:.1%} of that gap; a half is needed to get to the neighbour")

# %% [markdown]
# ## Exercise 3 · What survives
# *Difficulty 2 of 5 · 5 minutes*
#
# Take an update off bf16 weights as a trainer does: compute in fp32, store in bf16. Return the share of the weights
# that are another number afterwards.


# %%
def survives(weight: torch.Tensor, update: torch.Tensor) -> float:
    """Share of bf16 weights [d, k] that are other numbers once the fp32 update [d, k] is taken off and stored."""
    # SOLUTION
    after = (weight.float() - update).to(torch.bfloat16)
    return (after != weight).float().mean().item()
    # END


survives = checks.check("survives", survives)

# %% [markdown] tags=["hint"]
# `weight.float() - update` is exact enough; `.to(torch.bfloat16)` rounds it to what is stored. Compare that with
# `weight`.

# %% tags=["nbval-check-output"]
W = lesson05.bf16_weight(256, 256).to(torch.bfloat16)
noise = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
for ratio in (6e-5, 3e-4, 3e-3, 3e-2):
    print(f"step of {ratio:.0e} of the weights: {survives(W, ratio * 0.03 * noise):6.1%} of them change")

# %% [markdown]
# The few that change at the smallest step are weights near zero, where bf16 is fine. All others stand still, and
# they stand still at *every* step: what is rounded away is not saved up. Three hundred steps of nothing are
# nothing.
#
# ## Exercise 4 · Two halves
# *Difficulty 4 of 5 · 15 minutes*
#
# The way out costs no byte more than fp32. A bf16 number **is** the upper half of an fp32 number. So keep both
# halves: the model computes with the upper one, and the optimizer joins them, adds, and splits again. The lower
# half may even live in host memory.
#
# `bits` are the 32 bits as an integer. Cutting them in two would be exact as well, but the upper half would always
# be too small. So **round half up**: add half of the upper half's last place, `0x8000`, before you shift by 16.
# What remains, `bits − (upper << 16)`, lies between −32768 and 32767: it fits an `int16`, sign included.


# %%
def split_number(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 numbers as (upper half bf16, lower half int16)."""
    bits = value.contiguous().view(torch.int32)
    # SOLUTION
    upper = (bits + 0x8000) >> 16
    lower = bits - (upper << 16)
    return upper.to(torch.int16).view(torch.bfloat16), lower.to(torch.int16)
    # STUB
    # ...  # your code here: return upper.to(torch.int16).view(torch.bfloat16), lower.to(torch.int16)
    # END


split_number = checks.check("split_number", split_number)

# %% [markdown] tags=["hint"]
# `(bits + 0x8000) >> 16` is the upper half as an integer. At a tie the remainder is −32768. Rounding to *even*, as
# `.to(torch.bfloat16)` does, can leave +32768, and an `int16` ends at 32767.

# %% tags=["nbval-check-output"]
numbers = torch.tensor([0.03, 0.03 + 1.8e-6, -1.0, 3.14159265])
upper, lower = split_number(numbers)
for number, up, low, joined in zip(
    numbers.tolist(), upper.tolist(), lower.tolist(), join_halves(upper, lower).tolist()
):
    print(
        f"{number:+.9f} = {up:+.9f} (upper) and {low:+6d} (lower); joined: {joined:+.9f}, equal: {joined == number}"
    )

# %% [markdown]
# The first two numbers differ by one step of the paper's size. Their upper halves are the same number; the lower
# halves know.
#
# ## The picture: 300 steps, stored four ways
#
# The library's four merges, on the same weight with the same 300 row-Adam steps. Beside `fp32`, `split` and plain
# bf16 (`nearest`) there is **stochastic rounding**: up or down at random, so that the mean is right.

# %%
lesson05_figures.kept_picture(6e-5)

# %% [markdown]
# Plain bf16 keeps next to nothing. Stochastic rounding keeps all of it *on average*, and adds noise that is larger
# than the displacement itself. `split` is fp32, bit for bit, since the sums are the same fp32 sums.
#
# ## A run that bf16 loses
#
# Does a model notice? The same RL run, from the same seeds, its weights stored four ways: `tiny-math` learns sums
# from right and wrong (lesson 02), with rule "paper" at a tenth of the course's usual step. It is a recorded run;
# its first steps are run again here for two of the four.

# %%
record = precision_run.read()
print(
    f"{record['command']}: {record['steps']} steps of {record['update_ratio']:.0e}, seeds {record['seeds']}"
)
if record["model"] != precision_run.model_hash():
    print(
        "The model in data/tiny-math has been made anew since this record: the crosses need not lie on the lines."
    )
live = {}
for precision in ("split", "nearest"):
    trainer = precision_run.start(precision, seed=0)
    live[precision] = precision_run.block_means(precision_run.share_right(trainer, 15))
lesson05_figures.run_picture(record, live)

# %% [markdown]
# Three arms learn alike, and one falls behind. Nothing warned: no error, no NaN. A curve that is merely *flatter*
# than it should be is what this fault looks like.
#
# Note what the picture does **not** say. Stochastic rounding did well here: noise that averages out over many
# weights can be cheap. And plain bf16 is not always lost. A larger step gets through, as the widget shows.
#
# ## Play: how large must a step be?
#
# Move the step size and watch where plain bf16 begins to hear it.

# %%
player = widgets.play(
    lesson05_figures.play_precision,
    update_ratio=widgets.Slider(
        "step / weights", [(f"{r:.0e}", r) for r in (2e-5, 6e-5, 2e-4, 6e-4, 2e-3, 6e-3)], 6e-5
    ),
    shown=widgets.Choice("show", ("displacement kept", "error"), "displacement kept"),
)

# %% [markdown]
# ## Exercise 5 · Find the bug: decay in the wrong place
# *Difficulty 3 of 5 · 10 minutes*
#
# Rule "lr" has decoupled weight decay, as AdamW has: $W \leftarrow (1 - \text{decay})\,W - \Delta W$ with decay =
# lr × weight decay. Below is the order that stands in widely copied AdamW code. It trains, and its curves look
# fine. But weights end a little too small:


# %%
def decayed_step(weight: torch.Tensor, update: torch.Tensor, decay: float) -> torch.Tensor:
    """The weight [d, k] after one step with decay."""
    # SOLUTION
    weight = weight * (1 - decay)
    return weight - update
    # STUB
    # weight = weight - update
    # return weight * (1 - decay)
    # END


decayed_step = checks.check("decayed_step", decayed_step)
lesson05_figures.decay_picture(lesson05.two_orders(decayed_step, decay=0.1), decay=0.1)

# %% [markdown] tags=["hint"]
# Start from $W = 0$. There is nothing to decay, so the step has to arrive whole, whatever the decay. Does it?

# %% [markdown]
# The decay of the picture is far above common ones, to make the fault visible. At lr 1e-6 no curve would show it.
# But a trainer and a receiver (lesson 08) that merge in different orders differ in their bits after one update. And
# a step that was judged by its KL would not be the step taken; the trust region of lesson 06 refuses decay
# altogether. The order is part of the method.
#
# ## Limits
#
# **There is no momentum here.** A first moment would need coordinates that last. Methods that keep $A$ for many
# steps can have one, and lose it at each refresh, as you saw. **Row Adam evens out rows, not columns**: an input
# that is a hundred times larger than others stays so. **`split` costs four bytes a weight**, as fp32 does, of which
# two can leave the accelerator; forward still computes with rounded weights. **The run is one small model**: that
# stochastic rounding held its own here is no promise for billions of weights and smaller steps.
#
# ## Recap
#
# 1. $A$ changes at every update, so a memory per coordinate of $S$ is about coordinates that are gone.
# 2. $\mathbb E_A[S_{ij}^2] = \|g_i\|^2/r$ has no $A$ in it: one moment per row survives.
# 3. A step of a large model lies far below bf16's resolution. Stored to nearest, it does not happen, and nothing
#    says so.
# 4. bf16 is the upper half of fp32: keep the lower half, rounded half up, and every merge is fp32's bit for bit.
# 5. Decay first, then the update. From zero, a step must arrive whole.
#
# **What would change our mind**: a task on which a moment per coordinate beats the row's at equal memory; a run in
# which plain bf16 at the paper's step size learns like fp32; two halves that once fail to give back their number.
#
# **Next**: [06, the trust region](06_the_trust_region.ipynb): how long the step may be.
