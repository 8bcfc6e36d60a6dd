# %% [markdown]
# # 04 · Backward without a gradient
#
# **Claim.** The sketch $S$ comes out of backward as two thin matrix products. The gradient $G$ is never made, and
# neither time nor memory is spent on it.
#
# **You will be able to** write the autograd function that collects a sketch, count to the byte what waits for
# backward, count the FLOPs of a training step, and find the hook that fires twice in someone else's code.
#
# **Before you start**: [03 (sketching)](03_sketching.ipynb) gives you $A$ and $S = GA^\top$. You should have
# written a `loss.backward()` before. **Time**: 60 minutes with the exercises, 15 without.

# %%
import torch

from logra_lab.lab import bench_figure, checks, lesson04, lesson04_figures, widgets
from logra_lab.lab.roadmap import roadmap

torch.manual_seed(0)
roadmap(4)

# %% [markdown]
# ## What backward does in one linear layer
#
# A linear layer reads $T$ token positions, the rows of $X$ `[T, k]`, and writes $Y = XW^\top$ `[T, d]`. In backward
# a matrix $H$ `[T, d]` comes back: how the loss changes with each number of $Y$. The layer owes two answers.
#
# | asked for | product | FLOPs | needs |
# |-|-|-|-|
# | by the layers below | $HW$, `[T, k]` | $2Tdk$ | the weight |
# | by the optimizer | $G = H^\top X$, `[d, k]` | $2Tdk$ | $X$, kept since forward |
#
# The second answer is as large as the weight, it costs as much as the whole forward, and it is the reason why $X$
# had to be kept. Lesson 03 threw most of it away: $S = GA^\top$. So look at what $S$ is, and move one bracket:
#
# $$ S = G A^\top = (H^\top X)\,A^\top = H^\top \underbrace{(X A^\top)}_{P,\ [T,\ r]} . $$
#
# $P$ is thin, and it can be made in forward, when $X$ is at hand anyway. Then nobody needs $X$ or $G$ again.
#
# ## Exercise 1 · One line
# *Difficulty 1 of 5 · 5 minutes*
#
# Return $S$ `[d, r]`. The check also watches which tensors you make on the way.


# %%
def sketch_of(output_grad: torch.Tensor, x: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """S [d, r] from H [T, d], X [T, k] and A [r, k], without a tensor of G's shape."""
    # SOLUTION
    return output_grad.T @ (x @ projection.T)
    # END


sketch_of = checks.check("sketch_of", sketch_of)

# %% [markdown] tags=["hint"]
# `H.T @ X @ A.T` gives the right numbers, and the check refuses it. Python multiplies from left to right: what is
# the shape of `H.T @ X`?

# %% [markdown]
# ## Exercise 2 · The autograd function
# *Difficulty 3 of 5 · 15 minutes*
#
# Where do we get $H$? Autograd hands it to whoever stands on the layer's output. So we stand there: a function that
# is the identity in forward and keeps $P$, and that in backward adds $H^\top P$ to the sketch and passes $H$ on.
#
# - `forward` gets the layer's output `[T, d]`, $P$ `[T, r]` and the sketch `[d, r]`. Keep $P$ with
#   `ctx.save_for_backward` and return `output.view_as(output)` (autograd wants a new tensor object, not new
#   memory).
# - `backward` gets $H$ as `grad`. Change the sketch in place, and return one gradient per input of `forward`:
#   `None` for the last two.


# %%
class SketchTap(torch.autograd.Function):
    """Identity on a layer's output [T, d]; its backward adds Hᵀ P to the sketch [d, r]."""

    @staticmethod
    def forward(ctx, output, projected, sketch):
        ctx.sketch = sketch
        # SOLUTION
        ctx.save_for_backward(projected)
        return output.view_as(output)
        # END

    @staticmethod
    def backward(ctx, grad):
        # SOLUTION
        (projected,) = ctx.saved_tensors
        ctx.sketch += grad.T @ projected
        return grad, None, None
        # END


tap = checks.check("sketch_tap", SketchTap.apply)

# %% [markdown] tags=["hint"]
# `(projected,) = ctx.saved_tensors` takes back what was saved. A sketch collects **all** micro-batches until the
# optimizer's step, so add to it; a mean over tokens is no business of the layer's, the loss has it already.

# %% [markdown]
# ## Control: is it really the gradient?
#
# The library's `LoGRA(model)` does what you just did, on every target of a model: a forward hook makes $P$, a tap
# keeps it. Here is a small random Llama. If $S$ is the projected gradient, it must agree with a dense backward to
# rounding error, whatever the trainer does: one batch, four micro-batches, gradient checkpointing. And with
# *another* $A$ it must not agree.

# %% tags=["nbval-check-output"]
ids, rank = lesson04.random_tokens(), 16
dense = lesson04.dense_arm()
lesson04.next_token_loss(dense, ids).backward()
gradients = lesson04.dense_gradients(dense)

model, optimizer = lesson04.sketched_arm(rank)
_, stranger = lesson04.sketched_arm(rank, seed=43)
for way in ("one batch", "four micro-batches", "gradient checkpointing"):
    optimizer.zero_grad()
    if way == "gradient checkpointing":
        model.activation_checkpointing_enable({"use_reentrant": False})
    for part in ids.chunk(4 if way == "four micro-batches" else 1):
        lesson04.next_token_loss(model, part, total=ids[:, 1:].numel()).backward()
    error = lesson04.largest_error(optimizer.sketches, gradients, optimizer.projection)
    other = lesson04.largest_error(optimizer.sketches, gradients, stranger.projection)
    print(
        f"{way:>22}: S = G Aᵀ to 1 part in 100,000: {error < 1e-5}; with another A off by {other:.0%} of its norm"
    )
print(f"weights with a gradient afterwards: {sum(p.grad is not None for p in model.parameters())}")

# %% [markdown]
# That `p.grad` is empty proves little: $G$ might have lived for a moment. So watch every operation of forward and
# backward, and list each new tensor that has the shape of a weight.

# %% tags=["nbval-check-output"]
model, optimizer = lesson04.sketched_arm(rank)
for name, arm in {"dense": dense, "sketched": model}.items():
    lesson04.clear(arm)
    born = lesson04.weight_shaped(arm, lambda arm=arm: lesson04.next_token_loss(arm, ids))
    print(
        f"{name:>8}: {len(born):2d} tensors of a target's shape",
        *(f"· {op} {list(shape)}" for op, shape in born[:2]),
    )
print(f"The model has {len(optimizer.targets)} targets.")

# %% [markdown]
# ## Exercise 3 · What waits for backward
# *Difficulty 2 of 5 · 10 minutes*
#
# Between forward and backward a model is at its largest. How much of that is due to the weights' gradients? A dense
# layer makes autograd keep $X$; a sketched one keeps $P$.
#
# `readers` lists (layer, input, width $k$). Layers that read the **same** input, like q, k and v, keep it once, and
# share one $P$ (they use one $A$). Return bytes for $T$ = `tokens` positions.


# %%
def inputs_kept(
    readers: list[tuple[str, str, int]], tokens: int, rank: int, number_bytes: int
) -> tuple[int, int]:
    """Bytes kept for the weights' gradients: (dense, sketched)."""
    # SOLUTION
    widths = {name: width for _, name, width in readers}
    dense = tokens * sum(widths.values()) * number_bytes
    sketched = tokens * rank * len(widths) * number_bytes
    return dense, sketched
    # END


inputs_kept = checks.check("inputs_kept", inputs_kept)

# %% [markdown] tags=["hint"]
# A dictionary from the input's name to its width holds each input once. $X$ has `tokens × width` numbers, $P$ has
# `tokens × rank`.

# %% [markdown]
# Does your count agree with the live model? Autograd lets us see every tensor that it keeps. Each piece of memory
# is counted once, and the weights not at all.

# %% tags=["nbval-check-output"]
readers, T = lesson04.input_readers(model), ids.numel()
kept = {
    name: lesson04.kept_bytes(arm, lambda a=arm: lesson04.next_token_loss(a, ids))
    for name, arm in {"dense": dense, "sketched": model}.items()
}
counted = inputs_kept(readers, T, rank, 4)
attention = [reader for reader in readers if reader[0].endswith("o_proj")]
others = [reader for reader in readers if reader not in attention]
corrected = inputs_kept(others, T, rank, 4)[0] - counted[1]
print(
    f"kept for backward, measured: dense {kept['dense'] / 1e6:.3f} MB, sketched {kept['sketched'] / 1e6:.3f} MB"
)
print(f"the difference, measured:    {(kept['dense'] - kept['sketched']) / 1e6:.3f} MB")
print(f"the difference, counted:     {(counted[0] - counted[1]) / 1e6:.3f} MB")
print(f"without o_proj's X, counted: {corrected / 1e6:.3f} MB")

# %% [markdown]
# Your count promises more than the model delivers, and the gap has a name. `o_proj` reads the output of attention,
# and attention keeps that output for *its own* backward. It stays, whether `o_proj` wants it or not. Without that
# one input the count agrees to the byte.
#
# Note also how much remains in both: the inputs of norms, queries, keys and values, the inner numbers of the gated
# MLP. Sketching removes what **weights** need; what **activations** need stays.
#
# ## Exercise 4 · What it costs
# *Difficulty 2 of 5 · 10 minutes*
#
# FLOPs of forward **and** backward of one layer, dense and sketched. A product of `[a, b]` with `[b, c]` is $2abc$
# FLOPs. The layers below still want their $HW$.


# %%
def flops(tokens: int, rows: int, columns: int, rank: int) -> tuple[int, int]:
    """FLOPs of forward and backward of one linear layer: (dense, sketched)."""
    # SOLUTION
    product = 2 * tokens * rows * columns
    thin = 2 * tokens * columns * rank + 2 * tokens * rows * rank  # X Aᵀ and Hᵀ P
    return 3 * product, 2 * product + thin
    # END


flops = checks.check("flops", flops)

# %% [markdown] tags=["hint"]
# Dense: $XW^\top$, $HW$ and $H^\top X$, all of one size. Sketched: the first two, and two thin ones, $XA^\top$ and
# $H^\top P$.

# %% [markdown]
# The check of the check: torch can count the FLOPs of a live step. Here every layer has its own $A$
# (`shared=False`), as in the paper and in your formula. With one $A$ for q, k, v and one for gate, up, the library
# saves a little more.


# %% tags=["nbval-check-output"]
def live_flops(arm):
    lesson04.clear(arm)
    return lesson04.counted_flops(lambda: lesson04.next_token_loss(arm, ids))


own, _ = lesson04.sketched_arm(rank, shared=False)
counts = {
    name: live_flops(arm) for name, arm in {"dense": dense, "one A each": own, "shared A": model}.items()
}
yours = lesson04.linear_flops(model, T, flops, rank)
print(f"saved, counted live: {(counts['dense'] - counts['one A each']) / 1e9:.4f} GFLOP")
print(f"saved, your formula: {(yours[0] - yours[1]) / 1e9:.4f} GFLOP")
for name, count in counts.items():
    print(f"{name:>11}: {count / 1e9:6.3f} GFLOP a step, {count / counts['dense']:.3f} of dense")

# %% [markdown]
# ## The picture: bytes and seconds against rank
#
# Now measure both over the rank, on this machine, at a small size. The lines are your two functions. The seconds
# are processor time of one thread, dense and sketched taken in turns; each grey dot compares a sketched step with
# the dense step of the same turn.

# %%
dense_kept, rows = lesson04.against_rank((4, 16, 64, 256), ids)
without_x = dense_kept - inputs_kept(others, T, rank, 4)[0]


def flop_ratio(rank: int) -> float:
    dense_flops, sketched_flops = lesson04.linear_flops(model, T, flops, rank)
    return sketched_flops / dense_flops


lesson04_figures.rank_picture(
    dense_kept, rows, lambda r: without_x + inputs_kept(readers, T, r, 4)[1], flop_ratio
)

# %% [markdown]
# Bytes sit on the line. Seconds scatter, at small ranks mostly above theirs: norms, attention, the loss and the
# making of signs cost the same or a little more, and count for much in so small a model. And the right end of both
# panels is a warning: **a rank near the width saves nothing**. At 7B, 64 of 3584 columns is far to the left.
#
# A fairer size is the bench's: two blocks of Llama 3.2 1B, all arms, a child process each. A step's tokens go through
# the model in micro-batches, as they do when memory is short. Dense training then adds one more $G$ to the sum for
# every micro-batch; the sketch costs the same as before. The last three bars take all tokens in one pass: there
# one product in three and AdamW's passes over its moments are all there is to save. The words below the picture give
# LoGRA over dense AdamW where both take one pass.

# %%
bench_figure.show_bench()

# %% [markdown]
# ## Exercise 5 · Find the bug: a hook that fires twice
# *Difficulty 4 of 5 · 15 minutes*
#
# Someone wrote the forward hook below. It passed its test, one batch and one backward, and went into training. Run
# the cell and see in which situations the sketch is wrong.
#
# Would a loss curve tell? Hardly. Row Adam (lesson 05) divides each row by its own size, so a sketch that is
# exactly twice too large in every layer gives the very same step; the cell after the exercise shows it. Only a
# comparison with $GA^\top$ tells.
#
# Repair it. You have `tap(output, P, sketch)` from exercise 2.


# %%
def make_hook(projection: torch.Tensor, sketch: torch.Tensor):
    """A forward hook that collects Hᵀ (X Aᵀ) of its layer in `sketch` [d, r]."""

    # SOLUTION
    def hook(layer, inputs, output):
        return tap(output, inputs[0].detach() @ projection.T, sketch)

    return hook
    # STUB
    # kept = []  # P of each forward
    #
    # def hook(layer, inputs, output):
    #     kept.append(inputs[0].detach() @ projection.T)
    #     if output.requires_grad:
    #         output.register_hook(backward)
    #
    # def backward(grad):
    #     for projected in kept:
    #         sketch.add_(grad.T @ projected)
    #
    # return hook
    # END


make_hook = checks.check("make_hook", make_hook)

# %% [markdown] tags=["hint"]
# Gradient checkpointing runs forward a second time inside backward, and the hook fires again: `kept` then holds the
# same $P$ twice. With two micro-batches it holds a stranger's $P$. Emptying the list cures one situation and not
# the other. What belongs to *one* call must not live in a list that all calls share: give it to autograd, which
# keeps one graph per call.

# %% tags=["nbval-check-output"]
from logra_lab.method.row_adam import lr_factor, next_row_moment

lesson04.next_token_loss(model, ids).backward()
steps = {}
for times in (1, 2):
    S = times * optimizer.sketches["model.layers.0.mlp.up_proj"]
    steps[times] = lr_factor(S, next_row_moment(torch.zeros(len(S)), S, 0.95), step=1, beta2=0.95, eps=1e-8)
close = torch.allclose(steps[1], steps[2], rtol=1e-3)
print(f"row Adam's step from S and from 2 S: {'the same' if close else 'different'}")

# %% [markdown]
# A hook may well run twice. The $P$ of the second run belongs to a graph that nobody walks, and disappears. It is
# the *bookkeeping beside autograd* that counts double: lists, dictionaries by layer name, counters in forward
# hooks. The same fault wears another coat in notebooks: run the cell that registers hooks again, and there are two
# sets of them.
#
# ## Play: what waits for backward in a large model
#
# One sequence of 1024 tokens in bf16, everything but the targets frozen. The numbers are the planner's arithmetic
# (lesson 01), which has the parts of one block by name. Look for two things: what the blue part is replaced by, and
# what gradient checkpointing does to the difference.

# %%
player = widgets.play(
    lesson04_figures.play_saved,
    model=widgets.Choice("model", tuple(lesson04_figures.MODELS), "Qwen2.5-Math-7B"),
    rank=widgets.Slider("rank r", (4, 16, 64, 256, 512), 64),
    checkpointing=widgets.Choice("checkpointing", (("off", False), ("on", True)), False),
)

# %% [markdown]
# ## Limits
#
# **Gradient checkpointing changes the balance.** It keeps only the inputs of blocks and computes the rest again,
# one block at a time. Most of what the sketch would have saved is gone already. And the step now holds a second
# forward, so that the product we drop is one of four and no longer one of three:

# %% tags=["nbval-check-output"]
shares = {}
for name, arm in {"dense": dense, "shared A": model}.items():
    arm.activation_checkpointing_enable({"use_reentrant": False})
    shares[name] = live_flops(arm)
print(
    f"FLOPs over dense: {counts['shared A'] / counts['dense']:.2f} without checkpointing, "
    f"{shares['shared A'] / shares['dense']:.2f} with it"
)

# %% [markdown]
# **A sketch is no gradient.** You can't clip single entries, look at it layer by layer as you are used to, or hand
# it to an optimizer that wants $G$. **Small layers and large ranks gain nothing**, as the picture showed. **Only
# linear layers** are sketched; embeddings, norms and the head stay frozen, or keep their dense gradient.
#
# ## Recap
#
# 1. $S = H^\top(XA^\top)$: one bracket moved, and $G$ `[d, k]` is never made.
# 2. A tap on the layer's output gets $H$ from autograd and keeps $P = XA^\top$ `[T, r]` in place of $X$ `[T, k]`.
# 3. It equals the projected dense gradient to rounding, over micro-batches and under checkpointing.
# 4. A third of the FLOPs of the linear layers goes, and the inputs that only weights needed; what activations need
#    stays.
# 5. What belongs to one forward belongs into autograd's graph. Lists beside it count double.
#
# **What would change our mind**: a model in which the sketch differs from $GA^\top$ by more than rounding, a tensor
# of $G$'s shape in the census, or a bench at a useful size (rank far below width) in which the sketched step is not
# faster than the dense one.
#
# **Next**: [05, row Adam and merging](05_row_adam_and_merging.ipynb): what to do with a sketch whose coordinates
# change at every step, and why the update must not be stored in bf16.
