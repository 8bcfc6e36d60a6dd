# %% [markdown]
# # 01 · The memory wall
#
# **Claim.** In dense training the weights are the small part of memory: one byte in eight. Take away the gradient
# and Adam's moments, as a sketch does, and the weights are nearly everything again.
#
# **You will be able to** say where each byte of a training step goes, foretell whether a model fits a card, say
# what a sketch saves and from how many GPUs on it saves no more, and find the table that a calculator counts twice.
#
# **Before you start**: you should know what a gradient is. **Time**: 45 minutes with the exercises, 15 without.

# %%
import torch

from logra_lab.lab import checks, lesson01, lesson01_figures, rank_memory
from logra_lab.lab.roadmap import roadmap
from logra_lab.memory import published_table

roadmap(1)

# %% [markdown]
# ## Five numbers for one
#
# A model of 7 billion parameters in bf16 takes 14 GiB. You can talk to it on a gaming card of 24 GB. Now train it
# with AdamW, and the same card is short by a factor of five. What happened?
#
# The usual recipe, mixed precision, keeps **five** numbers for each parameter, all the time or for most of a step:
#
# | kept | type | why |
# |-|-|-|
# | weight | bf16 | the model computes with it |
# | gradient | bf16 | backward makes it, the step reads it |
# | fp32 master copy | fp32 | bf16 is too coarse to add small steps to (lesson 05) |
# | first moment | fp32 | Adam's running mean of the gradient |
# | second moment | fp32 | Adam's running mean of its square |
#
# ## Exercise 1 · Add it up
# *Difficulty 1 of 5 · 5 minutes*
#
# `kept` maps each name to its type. Return how many **GiB** ($2^{30}$ bytes) this takes for a model of `parameters`
# parameters. A type knows its size: `torch.bfloat16.itemsize` is 2, in bytes.


# %%
def resident_gib(parameters: int, kept: dict[str, torch.dtype]) -> float:
    """GiB for one number of each type in `kept` per parameter."""
    # SOLUTION
    return parameters * sum(dtype.itemsize for dtype in kept.values()) / 2**30
    # END


resident_gib = checks.check("resident_gib", resident_gib)

# %% [markdown] tags=["hint"]
# First the bytes for one parameter: a sum of `itemsize` over `kept.values()`. Then times the number of parameters,
# divided by $2^{30}$. Cards are sold in GB ($10^9$ bytes), memory is counted in GiB, and the difference is 7 %.

# %% [markdown]
# Your function on three real models. `Gemma-3-27B` stands in for the paper's 27B model, which the paper does not
# name.

# %% tags=["nbval-check-output"]
ADAMW = {
    "weight": torch.bfloat16,
    "gradient": torch.bfloat16,
    "fp32 master copy": torch.float32,
    "first moment": torch.float32,
    "second moment": torch.float32,
}
print(lesson01.kept_table(resident_gib, ADAMW))
print(f"\nThe weights that the model computes with are {lesson01.weight_share(ADAMW):.1%} of it.")

# %% [markdown]
# ## Watch one step
#
# A table is an opinion until something is measured. So here is a small Llama with random weights, and a **ledger**:
# it sees every tensor that any operation makes, and the moment it is freed. Each byte gets a class. (All in fp32
# here, so weights, gradients and each moment are equally large. LoGRA keeps a sketch instead; lessons 03 and 04 say
# how.)

# %%
observed = lesson01.observe()
lesson01_figures.draw_steps(observed)

# %% [markdown]
# Read it from left to right.
#
# - **Forward**: each layer leaves activations behind that backward will need. They climb like a staircase.
# - **Backward** walks back down these stairs. For dense AdamW, gradients grow as fast as activations shrink, so
#   the memory doesn't come back.
# - **Step**: the optimizer uses the gradients, and they go.
# - In between, dense AdamW still holds its two moments: two thirds of all that stays. They are used for a moment
#   at the end of each step, and they lie there all the time.
#
# LoGRA has no gradients, and its optimizer state is too thin to be seen. Its staircase is lower, too: layers that make
# no gradient need not keep their inputs (lesson 04). But the staircase is there. A sketch saves no activation that
# other operations need.
#
# ## Control: does the planner agree?
#
# We can't run 27B here. A **planner** foretells memory by arithmetic, from a model's shape alone. May we trust it?
# It made its forecast for the small model, class by class, and did not see the measurement. To see that a wrong
# plan would be noticed, the last lines tell it something false: that activations were checkpointed.

# %%
print(lesson01.control_table(observed), "\n")
for name, one in observed.items():
    told = lesson01.wrong_plan_miss(one)
    print(f"{name}: the forecast of the peak misses by {one.miss:+.1%}; told a falsehood, by {told:+.0%}.")

# %% [markdown]
# What stays between steps is right to a few hundred bytes (Adam's step counters, which no plan bothers with).
# Short-lived temporaries, the class *other*, are estimates, and here they are small. What the ledger can't see is
# what no tensor shows: scratch space inside an operation, the allocator's rounding.
# `logra_lab.memory.measure(...)` compares with the process's own figure and calls that difference *unexplained*.
# So we use the planner below, and say so: **from here on the numbers are forecasts**.
#
# ## Exercise 2 · What does a sketch take?
# *Difficulty 2 of 5 · 10 minutes*
#
# Instead of a gradient $G$ `[d, k]` LoGRA keeps a sketch $S = GA^\top$ `[d, r]`, where $A$ `[r, k]` holds random
# signs. The famous example is a matrix of 4096 × 4096 at rank 64: from 64 MiB to 1 MiB. True for $S$. But
# where is $A$?
#
# Layers that **read the same input** (q, k and v do) can share one $A$, since all of them need the same $XA^\top$.
# Return **three** numbers: the bytes of all their gradients, of all their sketches, and of their one $A$. All in fp32.


# %%
def group_bytes(shapes: list[tuple[int, int]], rank: int) -> tuple[int, int, int]:
    """Bytes of gradients, sketches and A, for layers of `shapes` [(d, k), …] that read one input of k columns."""
    # SOLUTION
    k = shapes[0][1]
    gradients = sum(4 * d * k for d, _ in shapes)
    sketches = sum(4 * d * rank for d, _ in shapes)
    return gradients, sketches, 4 * rank * k
    # END


group_bytes = checks.check("group_bytes", group_bytes)

# %% [markdown] tags=["hint"]
# $G$, $S$ and $A$ have $d \cdot k$, $d \cdot r$ and $r \cdot k$ entries, of 4 bytes each. Gradients and sketches
# belong to a layer, so they add up. $A$ belongs to the input.

# %% tags=["nbval-check-output"]
print(lesson01.group_table(group_bytes, "7B", 64))

# %% [markdown]
# First row: 64 MiB become 1 MiB, and $A$ is another one. "64 to 1" is "32 to 1" if you store $A$. Second row: k and
# v are narrow, so with an $A$ for each layer, signs would take more than twice what sketches do. That is why
# LoGRA shares $A$. And why it need not be kept at all: $A$ is a function of a seed, and a kernel can make
# its signs where it uses them (lesson 09). The library caches signs in the type that the model computes in, so in
# bf16 halve these columns.
#
# ## The signature figure: the wall
#
# Three models on **one** GPU, at the peak of a whole step: 16 answers are generated, then trained on in
# micro-batches of 4 sequences of 1,024 tokens, with gradient checkpointing. "The weights alone" is what it takes to
# hold the model. Mind the scale of each panel.

# %%
lesson01_figures.draw_wall(lesson01.wall())

# %% [markdown]
# The wall is orange: gradients and, above all, the optimizer's state. Dense AdamW puts 1.5B just beyond a 24 GB card
# and 7B far beyond an 80 GB card; with it, 27B is a matter for a whole node. LoGRA needs about twice the weights
# alone. Three things to see:
#
# - LoGRA's weights are **twice** as wide as the model's. It keeps the fp32 value of each weight, as two halves of 16
#   bits, since small steps would vanish in bf16 (lesson 05). The lower halves may live in the host's memory.
# - LoRA is smaller still: two thin factors beside frozen bf16 weights. Memory is no argument for LoGRA against LoRA.
#   LoGRA changes the weights themselves, in new directions at each step; whether that learns better is lesson 07's
#   question, and the paper found no clear edge.
# - At 27B the peak of the low-rank methods lies in the **rollout**: there the cache of keys and values is the largest
#   part after the weights. Once the wall is gone, other things become the largest.
#
# Here is what a few settings do to LoGRA's bar of 7B:

# %% tags=["nbval-check-output"]
print(lesson01.variants("7B"))

# %% [markdown]
# Gradient checkpointing matters far more than the rank, and a sketch does not replace it. At a high rank the peak
# moves to the optimizer's step or to its KL probe, where the sketch, its scaled copy and the update stand side by
# side.
#
# ## Exercise 3 · From how many GPUs on?
# *Difficulty 2 of 5 · 10 minutes*
#
# With many GPUs one cuts (**shards**) gradients and moments: each of $n$ GPUs keeps $1/n$. A sketch stays whole on
# every GPU. So dense training catches up as $n$ grows.
#
# `sharded` bytes are cut over the GPUs, `replicated` bytes are whole on each. Return the largest number of GPUs at
# which `replicated` is still **less** than a GPU's share of `sharded`; 0 if it never is. Both are positive integers.


# %%
def last_gain(sharded: int, replicated: int) -> int:
    """The largest n for which sharded / n > replicated."""
    # SOLUTION
    return (sharded - 1) // replicated
    # END


last_gain = checks.check("last_gain", last_gain)
print(f"4096 × 4096 at rank 64, S alone: up to {last_gain(12 * 4096 * 4096, 4 * 64 * 4096)} GPUs.")

# %% [markdown] tags=["hint"]
# `sharded // replicated` is right except at a tie, where both are equal and nothing is gained. In integers: take one
# byte off first. Why 12? A gradient and two moments in fp32. Then $12\,dk/n > 4\,dr$ means $n < 3k/r$: the
# number of rows drops out.

# %%
lesson01_figures.draw_gpus(last_gain, "7B")

# %% [markdown]
# Left, your formula: at rank 256, the paper's, what LoGRA keeps pays on a node or a few, and no more on a rack.
# Right, the planner's whole peak, and it tells a milder story: LoGRA stays below even where the left panel says that
# nothing is gained. Dense training also makes whole gradients **for a moment**, before they are cut, and no
# number of GPUs takes that away. Both panels agree on the trend: the saving is greatest where memory is scarcest,
# on one GPU or a few.
#
# ## Exercise 4 · Find the bug
# *Difficulty 2 of 5 · 10 minutes*
#
# Many small models use one table twice: as the embedding, and turned round as the output head. The two are **tied**.
# A colleague's calculator counts parameters from the checkpoint's names. For 7B it is right. For others, the plan
# says "does not fit" and the run fits. Here is its count beside the ledger's, on a model small enough to look at. The
# difference is one table, but for a few dozen numbers that have a reason too:

# %% tags=["nbval-check-output"]
from logra_lab.lab.exercises.lesson01 import faulty_count

model = lesson01.tied_model()
counted, found = faulty_count(model), lesson01.weights_found(model) // 4
one_table = model.get_input_embeddings().weight.numel()
print(f"calculator {counted:,} parameters, ledger {found:,} numbers in memory")
print(f"difference {counted - found:,}; the table has {one_table:,}\n")
print(lesson01.cost_of_the_bug())

# %% [markdown]
# The colleague's function stands below. Repair it: each parameter once, however many names it has. A head that is
# **not** tied must still count, and so must frozen weights.


# %%
def count_parameters(model: torch.nn.Module) -> int:
    """How many parameters the model has."""
    # SOLUTION
    return sum(parameter.numel() for parameter in model.parameters())
    # STUB
    # return sum(tensor.numel() for tensor in model.state_dict().values())
    # END


count_parameters = checks.check("count_parameters", count_parameters)
repaired = count_parameters(model)
print(
    f"Repaired: {repaired:,}. The ledger's other {found - repaired} numbers are buffers, constants of the model."
)

# %% [markdown] tags=["hint"]
# A `state_dict` maps *names* to tensors. A tied table has two names, and constant buffers (the rotary
# embedding's angles) have names too where a model saves them. `model.parameters()` walks over *objects* and gives each
# once.

# %% [markdown]
# ## Play
#
# Choose a model, a method, a card. Find out:
#
# 1. With dense AdamW and 7B, which is the smallest card that does on 1, 2, 4, 8 GPUs?
# 2. With LoGRA and 7B on 48 GB: how much room does the rank take, from the smallest to the largest?
# 3. What does the sentence advise for 7B with 8-bit Adam on 48 GB?
# 4. With `nearest` weights, is LoGRA still larger than LoRA? (Lesson 05 shows why you shouldn't want them.)

# %%
player = rank_memory.show()

# %% [markdown]
# The rank is a cheap knob: what it takes is small beside the weights. Their precision, the number of GPUs and
# checkpointing decide what fits.
#
# ## What was published
#
# The planner against the memory figures of the paper and of a later port, for settings that we had to
# guess: 4 GPUs, fp32 weights, rank 256, two sequences of 2,048 tokens, checkpointing. No number was tuned to a row.

# %% tags=["nbval-check-output"]
print(published_table())

# %% [markdown]
# The shape is right: who fits and who doesn't, and the gap between a model's two rows. The single numbers are off by
# up to several GiB, and too low in each row of LoGRA's. That is no proof of anything, in either direction. The
# published figures are **averages** over a run and ours are **peaks**; what the averages include (rollouts? the
# allocator's reserve?) and how long answers were is not fully known.
#
# ## Limits
#
# - From the signature figure on, the numbers are forecasts. The control checked them on a small model on a CPU, not
#   on these models on GPUs. A GPU also needs about half a GiB for its context, and its allocator loses some
#   to fragmentation; the widget keeps a reserve for both.
# - Dense AdamW trains the embedding and the head too; LoGRA and LoRA leave them frozen here. A part of the gap is
#   that choice.
# - Memory is one axis. Nothing here says that LoGRA learns as well (lesson 07) or as fast (lesson 09).
#
# ## Recap
#
# 1. AdamW in mixed precision keeps five numbers, 16 bytes, per parameter; the working weight is 2 of them.
# 2. Activations come on top for a moment; checkpointing, not sketching, is what shrinks them most.
# 3. A sketch takes $4dr$ bytes for $4dk$; its $A$ takes $4rk$ more unless it is shared or made anew.
# 4. Sketches are whole on each GPU: what they save shrinks as GPUs are added and is gone near $n = 3k/r$.
# 5. Count tensors, not names; foretell, then measure, and print the difference.
#
# **What would change our mind**: a live model whose measured peak differs from its plan by more than a tenth. Run
# `logra_lab.memory.measure` and `plan` on your own shape.
#
# **Next**: [lesson 02](02_learning_from_one_bit.ipynb), where the gradient comes from when all you know is right
# or wrong.
