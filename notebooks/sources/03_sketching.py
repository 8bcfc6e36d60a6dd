# %% [markdown]
# # 03 · Sketching
#
# **Claim.** Multiply a gradient by random signs and you may keep a few per cent of its numbers: what comes
# back is right on average, its squared error falls as one over the rank, and a language model hardly feels
# that noise.
#
# **You will be able to** make the projection $A$ from bits, sketch a gradient and lift it back, say how wrong
# one sketch is before you measure it, and find the scale that is missing in someone else's code.
#
# **Before you start**: a little linear algebra, and what a gradient is. [Lesson
# 02](02_learning_from_one_bit.ipynb) says where this gradient comes from, but you don't need it here.
# **Time**: 60 minutes with the exercises, 15 without.

# %%
import torch

from logra_lab.lab import checks, gradients, lesson03, lesson03_play, lesson03_price, widgets
from logra_lab.lab.roadmap import roadmap
from logra_lab.method.projection import projection_key, rademacher, sign_words, signs

roadmap(3)

# %% [markdown]
# ## Four numbers, two questions
#
# Take one row of a gradient, $g = (3, -1, 0, 2)$. You may keep only two numbers of it. Which two?
#
# If you keep the two largest, you have to look at all four first, and the next gradient has others. A sketch
# asks two random questions instead. Each adds up all four numbers with random signs; each answer is one
# number that has *heard* from every entry. To come back, every entry collects the answers with its own signs.
#
# The questions are the rows of $A$, with entries $\pm 1/\sqrt r$ for $r$ questions. One draw gives a poor
# answer. Now average over **all** 256 sign patterns that a 2 × 4 matrix can have:

# %% tags=["nbval-check-output"]
g = torch.tensor([3.0, -1.0, 0.0, 2.0])
patterns = lesson03.all_projections(rank=2, columns=4)
for number in (20, 77, 200):
    a = patterns[number]
    answers = g @ a.T  # two numbers: all that is kept
    back = answers @ a  # four numbers again
    print(f"pattern {number:3}: answers {answers.numpy().round(2) + 0.0}  →  {back.numpy().round(2)}")
mean = sum(g @ a.T @ a for a in patterns) / len(patterns)
print(f"mean of all {len(patterns)} patterns:         {mean.numpy().round(3) + 0.0}")

# %% [markdown]
# Each draw is off, and the mean is exactly $g$. That is the whole idea. In symbols, for a weight with $d$
# rows and $k$ columns:
#
# $$ \underbrace{S = G A^\top}_{d \times r}, \qquad \underbrace{\hat G = S A}_{d \times k}, \qquad
# A \in \{\pm 1/\sqrt r\}^{r \times k}, \qquad
# \mathbb E[A^\top A] = I \;\Rightarrow\; \mathbb E[\hat G] = G. $$
#
# $S$, the **sketch**, is all that is kept. Nobody needs to look at $G$ to choose $A$, so $A$ can be drawn
# before $G$ is known. Lesson 04 uses this: $S$ comes out of backward and $G$ is never made.
#
# ## Exercise 1 · Make A from bits
# *Difficulty 2 of 5 · 10 minutes*
#
# Random numbers of a library differ between devices and versions. So LoGRA makes its signs from an integer
# hash of (seed, update, layer, index), which gives the same bits on every machine. One 32-bit word holds the
# signs of 32 neighbouring columns.
#
# Bit `j % 32` of `words[i, j // 32]` decides entry `(i, j)`: a bit of 1 means $+1/\sqrt r$, a bit of 0 means
# $-1/\sqrt r$. Bit 0 is the lowest. Keep the first `columns` columns.


# %%
def projection_from_words(words: torch.Tensor, columns: int) -> torch.Tensor:
    """A [r, columns], float32, from int32 `words` [r, ⌈columns/32⌉]."""
    rank = len(words)
    # SOLUTION
    shifts = torch.arange(32, dtype=torch.int32)
    bits = (words[:, :, None] >> shifts) & 1  # [r, words, 32]
    plus_minus = 2.0 * bits.reshape(rank, -1)[:, :columns] - 1.0  # [r, columns]
    return plus_minus / rank**0.5
    # STUB
    # ...  # your code here
    # END


projection_from_words = checks.check("projection_from_words", projection_from_words)

# %% [markdown] tags=["hint"]
# `words >> s` moves bit `s` to the lowest place, and `& 1` keeps it alone. With a third axis of 32 shifts you
# get all bits at once, [r, words, 32]; `reshape(r, -1)` puts them in column order. Then 0 and 1 become −1 and
# +1.

# %% [markdown]
# The words come from `sign_words`; the key says which seed, which update and which layer. Ask again with the
# same key and you have the same $A$: nothing is stored and nothing is sent. Count the update up and you have
# a new one.

# %%
words = [sign_words(projection_key(42, update, "layer 7"), 8, 48) for update in (0, 1)]
here = {f"update {u}": projection_from_words(words[u], 48) for u in (0, 1)}
same = torch.equal(here["update 0"], rademacher(42, 0, "layer 7", 8, 48))
agree = (here["update 0"] == here["update 1"]).float().mean().item()
print(f"Equal to the library's A, bit for bit: {same}")
lesson03.draw_matrices(
    here,
    "Two 8 × 48 matrices of random signs, red for plus and blue for minus, with no pattern in common.",
    f"A for two updates, r = 8, k = 48. They agree in {agree:.0%} of their signs, like any two coins.",
)

# %% [markdown]
# ## Exercise 2 · Sketch and lift
# *Difficulty 1 of 5 · 5 minutes*
#
# Two lines. Mind which matrix is transposed. $G$ is `[d, k]`, $A$ is `[r, k]`.


# %%
def sketch_gradient(gradient: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """S [d, r] from G [d, k] and A [r, k]."""
    # SOLUTION
    return gradient @ projection.T
    # END


def lift_sketch(sketch: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """Ĝ [d, k] from S [d, r] and A [r, k]."""
    # SOLUTION
    return sketch @ projection
    # END


sketch_gradient = checks.check("sketch_gradient", sketch_gradient)
lift_sketch = checks.check("lift_sketch", lift_sketch)

# %% [markdown] tags=["hint"]
# Read the shapes: `[d, k] @ [k, r]` gives `[d, r]`, and `[d, r] @ [r, k]` gives `[d, k]`. The $1/\sqrt r$ is
# in $A$ already. Tempted by the pseudo-inverse, the best fit in the sense of least squares? Try it and read
# what the check says.

# %% [markdown]
# ## A real gradient
#
# Now a gradient of a language model. `data/tiny-math` is a small Llama that does sums. Here it answers 128 of
# them eight times each; right answers are praised, wrong ones blamed, and one backward gives $G$ for each of
# its weights. We look at the last one.

# %%
view = gradients.study()
name = view.targets[-1].name
G = view.dense[name]
d, k = G.shape
A = lesson03.projection(8, k)
S = sketch_gradient(G, A)
estimate = lift_sketch(S, A)
stale = lift_sketch(S, lesson03.projection(8, k, update=1))
print(f"{name}: G is {d} × {k}, {G.numel():,} numbers; S is {d} × 8, {S.numel():,} numbers.")
print(f"Cosine of G and its lifted sketch:            {lesson03.cosine(estimate, G):+.2f}")
print(f"Cosine if it is lifted with the next update's A: {lesson03.cosine(stale, G):+.2f}")
print(f"Relative error ‖Ĝ − G‖ / ‖G‖:                  {lesson03.relative_error(estimate, G):.2f}")

# %% [markdown]
# Two things to notice. The error is several times the gradient itself: one sketch is a **bad picture** of
# $G$. And a sketch that is lifted with another $A$ is worth nothing, which is why $A$ may change only after
# an update, never between collecting and using.
#
# So why does it work? Because the errors of different draws point in different directions.
#
# ## Exercise 3 · See that it is unbiased
# *Difficulty 2 of 5 · 10 minutes*
#
# $\hat G = G\,A^\top A$. So everything hangs on $A^\top A$ (k × k): is it $I$ on average? Average it over
# updates.


# %%
def average_gram(draw, updates: int) -> torch.Tensor:
    """Mean of AᵀA [k, k] over A = draw(0), draw(1), …, draw(updates - 1), each [r, k]."""
    # SOLUTION
    total = 0
    for update in range(updates):
        a = draw(update)
        total = total + a.T @ a
    return total / updates
    # END


average_gram = checks.check("average_gram", average_gram)

# %% [markdown] tags=["hint"]
# Multiply first, then average: the average of $A$ itself is 0. And call `draw(update)` with a new `update`
# each time.


# %%
def draw(update):
    return lesson03.projection(4, 24, update)


grams = {f"mean of {n}": average_gram(draw, n) for n in (1, 10, 100)}
rest = ", ".join(f"{label}: {lesson03.off_diagonal(gram):.3f}" for label, gram in grams.items())
lesson03.draw_matrices(
    grams,
    "The mean of A-transposed A after 1, 10 and 100 draws: a diagonal of ones, and noise around it that fades.",
    f"Mean of AᵀA, r = 4, k = 24. The diagonal is 1 from the first draw on. Off the diagonal (RMS): {rest}.",
    limit=1.0,
)

# %% [markdown]
# ## Exercise 4 · How noisy is one sketch?
# *Difficulty 3 of 5 · 15 minutes*
#
# The picture holds the answer. One row of the error is $g\,(A^\top A - I)$. The diagonal of $A^\top A - I$ is
# **exactly** zero, since each column of $A$ has length 1. An entry off the diagonal is a sum of $r$ random
# signs, each divided by $r$: mean 0, variance $1/r$.
#
# What is $\;\mathbb E\|\hat G - G\|^2 / \|G\|^2$, as a function of the rank $r$ and the number of columns
# $k$?


# %%
def expected_noise(rank: int, columns: int) -> float:
    """E‖Ĝ − G‖² / ‖G‖² for one sketch."""
    # SOLUTION
    return (columns - 1) / rank
    # END


expected_noise = checks.check("expected_noise", expected_noise)
seen = lesson03.relative_error(estimate, G)
print(f"Rank 8 of {k} columns: expected relative error {expected_noise(8, k) ** 0.5:.2f}")
print(f"The sketch above had                           {seen:.2f}")

# %% [markdown] tags=["hint"]
# Entry $j$ of the error row is $\sum_{i \ne j} g_i\,(A^\top A)_{ij}$. The terms are uncorrelated, so their
# variances add: $\sum_{i \ne j} g_i^2 / r$. Sum over $j$: each $g_i^2$ is counted once for every $j$ other
# than $i$. How many are there?

# %% [markdown]
# ## The signature figure: theory over measurement
#
# Signal and noise are at right angles on average, so $\|\hat G\|^2 \approx (1 + \text{noise})\,\|G\|^2 =
# \frac{k+r-1}{r}\|G\|^2$ and the cosine is about $1/\sqrt{1 + \text{noise}} = \sqrt{r/(k+r-1)}$. Left and
# middle: your formula against twelve real sketches per rank.
#
# Right: the **control that could have failed**. Average many steps. If the trick were only to look at few
# directions, then any few would do: a fixed $A$, the first $r$ columns, even the best rank-$r$ matrix (SVD),
# which has to see $G$ to find it.

# %%
ranks = (1, 2, 4, 8, 16, 32, 64, 128)
measured = lesson03.against_rank(G, ranks, 12, sketch_gradient, lift_sketch)
lesson03.draw_signature(G, measured, ranks, expected_noise, rank=4, steps=300)

# %% [markdown]
# Read the right panel slowly. At the first step the first $r$ columns and SVD are **better** than the sketch.
# But no rival ever improves: what it doesn't look at, it never sees. The refreshed sketch alone goes on
# falling, as one over the root of the number of steps. SVD is still ahead at the end, since this gradient is
# nearly of low rank; but SVD needs $G$ whole, and memory for $G$ is what we want to save.
#
# ## Play
#
# Move the rank, then the number of steps averaged. Two things to find out: which pairs of (rank, steps) give
# the same error? And at which rank does $A$ itself outgrow the gradient?

# %%
player = widgets.play(
    lesson03_play.explorer(G),
    rank=widgets.Slider("rank r", lesson03_play.RANKS, 8),
    steps=widgets.Slider("steps averaged", lesson03_play.STEPS, 1),
)

# %% [markdown]
# Only rank × steps counts for the error: it is the number of questions asked. Memory counts the rank alone.
# That is the trade.
#
# ## The noise is cheap in KL
#
# A sketched step is many times longer than the dense one, and most of its length is noise. Should we worry?
# It depends on the ruler. Take two steps that promise **the same improvement** ($\langle \Delta W, G\rangle$
# equal): the dense one and the sketched one. Measure their squared length, and then how far they move the
# *policy*: the KL per token, in fp32, on fresh answers.
#
# The control: noise of the same length in every weight, at right angles to $G$ too, but pointing along the
# answers' own scores $\nabla \log\pi$ with random praise and blame. If any noise were harmless, this one
# would be as well.

# %%
cost_ranks = (1, 4, 8, 16, 32, 64)
costs = lesson03_price.price(view, cost_ranks, draws=6)
lesson03_price.draw_price(costs, cost_ranks, shown=8)

# %% [markdown]
# The ruler decides. In squared norm the sketched step looks reckless; in KL it costs little more than the
# dense step at rank 1, and about the same from rank 8 on. A policy bends in few directions only, those in
# which the scores of its answers lie, and $G$ is one of them. Random noise spreads over all $d \times k$
# directions of a weight and hits those few rarely; noise aimed at them, the control, is not free. This is why
# LoGRA limits KL and not the length of a step (lesson 06), and why a clip threshold that was tuned on $\|G\|$
# bites several times too early on $\|\hat G\|$.
#
# ## Exercise 5 · Find the bug
# *Difficulty 3 of 5 · 10 minutes*
#
# A colleague keeps signs and scale apart, since $\pm1$ is exact in bf16 and $1/\sqrt r$ often is not. A good
# idea; the library does it too. The unit test, at rank 1, passes. At small ranks training looks fine, at
# large ones it explodes. The symptom, measured: how much of $G$ does the average of many estimates hold?

# %%
from logra_lab.lab.exercises.lesson03 import faulty_estimate

bug_ranks = (1, 4, 16, 64)
shares = {"colleague": lesson03_play.mean_slopes(faulty_estimate, G, bug_ranks, 400)}
lesson03_play.draw_slopes(shares, bug_ranks)

# %% [markdown]
# The colleague's function stands below. Repair it.


# %%
def repaired_estimate(gradient: torch.Tensor, rank: int, key: tuple[int, int]) -> torch.Tensor:
    """Ĝ [d, k], unbiased at every rank."""
    plus_minus = signs(key, rank, gradient.shape[1])  # [r, k], entries ±1
    # SOLUTION
    sketch = gradient @ plus_minus.T / rank**0.5  # the scale belongs wherever the signs are used
    return sketch @ plus_minus / rank**0.5
    # STUB
    # sketch = gradient @ plus_minus.T
    # return sketch @ plus_minus / rank**0.5
    # END


repaired_estimate = checks.check("repaired_estimate", repaired_estimate)
repaired = lesson03_play.mean_slopes(repaired_estimate, G, bug_ranks, 400)
print("Repaired:", ", ".join(f"{share:.2f} of G at rank {rank}" for rank, share in zip(bug_ranks, repaired)))

# %% [markdown] tags=["hint"]
# At rank $r$ the estimate holds $\sqrt r$ times $G$. Count: how often are the signs used, and how often the
# scale? Setting the length of the estimate to that of $G$ would hide the symptom and not cure it.

# %% [markdown]
# ## Where this comes from
#
# Hardly anything here is new alone; LoGRA puts known parts together.
#
# | relative | what it does | what LoGRA does otherwise |
# |-|-|-|
# | Flora (the closest) | accumulates $GA^\top$, draws $A$ anew | row moments, a KL step, factors that travel |
# | LoRA-FA | a frozen $A$, a trained $B$ | that is LoGRA without refresh, never merged |
# | GaLore | a subspace from the SVD of $G$ | no SVD, and $G$ is never formed |
# | APOLLO | a random subspace, for the scale only; $G$ is formed | the sketch is the update too |
# | Adafactor | row and column moments | its row half is the row moment of lesson 05 |
# | PowerSGD | low-rank messages between workers | the sketch is what is sent, there and to the sampler (lesson 08) |
# | VLoRP | varies the grain of the projection beside its rank | one grain: whole rows |
# | TRPO | a trust region along the natural gradient | its step length, without its direction (lesson 06) |
# | KLPO, CAPO | policy steps held to a KL or a curvature | predicts the KL; feedback on a measured one is cheaper |
# | PULSE | lossless sparse weight updates | about as small at high rank (lesson 08) |
#
# ## Limits
#
# - One gradient is badly reconstructed. The bet is on many steps that agree; where the gradient turns at
#   every step, the averaging that the right panel shows has less to average.
# - Our gradient comes from a very small model and is nearly of low rank. That KL is cheap was seen here, at a
#   small step, for one batch; lesson 06 measures where it ends.
# - Equal KL at equal *first-order* improvement is no proof of equal learning. Lesson 07 runs that race.

# %% [markdown]
# ## Recap
#
# 1. $S = GA^\top$, $\hat G = SA$: random signs in, the same signs out.
# 2. $A$ is a function of (seed, update, layer), made from a hash; nothing of it is stored or sent.
# 3. Unbiased, since $\mathbb E[A^\top A] = I$; the scale $1/\sqrt r$ has to be there both times.
# 4. One sketch has a squared relative error of $(k-1)/r$; only rank × steps counts.
# 5. Long steps, small KL: most of the noise lies where the policy is flat.
#
# **What would change our mind**: a fixed subspace that goes on improving in the right panel of the signature
# figure; or a model on which the sketched step's KL, at equal improvement, follows its norm. Run
# `lesson03_price.price` on yours.
#
# **Next**: [lesson 04](04_backward_without_a_gradient.ipynb), where $S$ comes out of backward and $G$ never
# exists.
