# %% [markdown]
# # 06 · The trust region
#
# **Claim.** The KL of a step can be foretold before the step is taken, to a few per cent up to a KL of 0.001 per
# token.
#
# **You will be able to**
# - say in one formula what a step of the weights does to the policy, and compute it without building the step;
# - turn a budget of KL into a step length, and give the budget a schedule;
# - tell when the forecast lies: steps too large, half precision, the wrong tokens, and the batch that made the step.
#
# **Before you start.** [03](03_sketching.ipynb) (sketching) and [05](05_row_adam_and_merging.ipynb) (row Adam)
# give you the update $\Delta W = -UA$. You need softmax, variance and a little PyTorch. About 50 minutes; the
# notebook itself runs in half a minute.

# %%
import torch

from logra_lab.lab import checks, kl_drift, kl_figures, kl_recorded, trust_step, widgets
from logra_lab.lab.roadmap import roadmap
from logra_lab.rl.tasks import sums

torch.manual_seed(0)
roadmap(6)

# %% [markdown]
# ## A step, stopped before it is taken
#
# A step is an arrow in the space of weights. How long may it be? Its length in weights says little: the same length
# may change nothing, or ruin the policy, according to where it points. What we care about is what the policy
# *says*: the probabilities of the next token.
#
# So we run one real step of the loop (sample answers, reward them, backward, sketch, row Adam) and stop before
# the commit. `step.proposal` holds a factor $U$ for every target layer. Nothing has moved yet.

# %%
policy, task = trust_step.fresh_policy(), sums()
step = trust_step.one_step(policy, task, seed=0, prompts=128)

right, tokens = int(step.batch.right.sum()), step.batch.tokens
print(f"{len(step.batch.right)} answers, {right} right, {tokens} sampled tokens to judge at")
print(
    f"{len(step.proposal.factors)} layers would move, each by its own U A; rank {step.optimizer.config['rank']}"
)

# %% [markdown]
# `optimizer.preview(proposal, scale)` lets the model compute as if the step had been committed at $\alpha$ = `scale`.
# Below: one position of one answer, at four lengths of the *same* arrow. The number in each title is
#
# $$\mathrm{KL}(\pi_\text{old} \,\|\, \pi_\text{new}) =
# \sum_v \pi_\text{old}(v) \log \frac{\pi_\text{old}(v)}{\pi_\text{new}(v)}.$$

# %%
names = policy.tokenizer.convert_ids_to_tokens(range(len(policy.tokenizer)))
before = trust_step.next_token_logits(step, 0.0)
most = trust_step.kl_divergence(before, trust_step.next_token_logits(step, 1.0)).argmax()
moved, kl = {}, {}
for scale in (0.0, 1.0, 4.0, 16.0):
    after = trust_step.next_token_logits(step, scale)
    moved[scale] = after[most].softmax(-1)
    kl[scale] = trust_step.kl_divergence(before, after)[most].item()
kl_figures.moved_policy([name.strip("<|>") for name in names], moved, kl)

# %% [markdown]
# KL is the ruler of the trust region: nats per token, the same meaning in every model and for every arrow.
#
# ## Half a variance
#
# Let $z$ be the logits at one position and $\dot z$ their rate of change along the step:
# $z(\alpha) = z + \alpha \dot z$. Put that into the softmax, and the KL becomes
#
# $$\mathrm{KL}(\alpha) = \log \mathbb{E}_\pi\!\left[e^{\alpha \dot z}\right] - \alpha\,\mathbb{E}_\pi[\dot z]
# = \tfrac12 \alpha^2\, \mathrm{Var}_\pi(\dot z) + O(\alpha^3).$$
#
# The first-order term is gone. What remains is half the variance of $\dot z$ over the vocabulary, each token
# weighted by how likely the policy says it. A logit that moves on a token that is never said costs nothing. A
# constant added to all logits costs nothing either: the softmax does not see it.
#
# ## Exercise 1 · ½ Var
# *Difficulty 2 of 5 · 8 minutes*
#
# For example, with $\pi = (\frac12, \frac14, \frac14)$ and $\dot z = (1, 0, 0)$ the mean is ½, the variance ¼, and
# the answer ⅛.


# %%
def half_variance(logits, tangent):
    """½ Var of the tangent under the policy, at each position: two tensors [n, V] -> [n]."""
    # SOLUTION
    policy = logits.double().softmax(-1)
    centred = tangent - (policy * tangent).sum(-1, keepdim=True)
    return 0.5 * (policy * centred.square()).sum(-1)
    # END


# %% tags=["nbval-check-output"]
half_variance = checks.check("half_variance", half_variance)

# %% [markdown] tags=["hint"]
# Three lines. `logits.softmax(-1)` is π. The mean of ż under π is `(policy * tangent).sum(-1, keepdim=True)`;
# keep the dimension, so that it can be subtracted. Then the mean of the squares, again under π, and a half.

# %% [markdown]
# ## Where ż comes from
#
# Not from building $\Delta W$. PyTorch's forward mode carries a pair (value, tangent) through the network. A hook on
# each target layer adds $-(xA^\top)U^\top$ to the tangent of its output: two thin products. One pass gives $z$ and
# $\dot z$ at all positions, and what one layer does to the next is included.
#
# Your function now makes the forecast. Beside it: what the package says, and what a preview of the step measures.

# %%
z, z_dot = trust_step.logits_and_tangent(step)  # [n, V] each
forecast = half_variance(z, z_dot).mean().item()
verdict = step.optimizer.judge(step.proposal, step.probe)
measured = step.optimizer.measure(step.proposal, step.probe, 1.0)
print(f"your forecast      {forecast:.6f} nats per token")
print(f"optimizer.judge    {verdict.predicted_kl:.6f}")
print(f"measured (preview) {measured:.6f}")
print(f"The forecast is off by {abs(forecast / measured - 1):.1%}, and the step has not been taken.")

# %% [markdown]
# ## From a budget to a step length
#
# Let $q$ be the forecast for the whole step ($\alpha = 1$). A step scaled by $\alpha$ costs $\alpha^2 q$. We have a
# budget $\delta$ per token. Solve for $\alpha$, and put a ceiling on it:
#
# $$\alpha = \min\left(\alpha_\max, \sqrt{\delta / q}\right)$$
#
# - **two-sided** (the paper's rule): steps may also be *lengthened*, up to $\alpha_\max = 3$. The KL sets the step.
# - **one-sided** (with a learning rate): the trust region is a brake, so 1 stands in for $\alpha_\max$.
# - $q = 0$: nothing moves anyway. Leave $\alpha = 1$.
#
# ## Exercise 2 · α
# *Difficulty 1 of 5 · 5 minutes*


# %%
def step_scale(predicted_kl, delta, alpha_max, two_sided):
    """α for a step whose forecast at α = 1 is `predicted_kl`, under the budget `delta`."""
    # SOLUTION
    if predicted_kl == 0:
        return 1.0
    ceiling = alpha_max if two_sided else 1.0
    return min(ceiling, (delta / predicted_kl) ** 0.5)
    # END


# %% tags=["nbval-check-output"]
step_scale = checks.check("step_scale", step_scale)

# %% [markdown] tags=["hint"]
# First the case `predicted_kl == 0`. Then choose the ceiling. The root is there because the KL grows with the
# *square* of α: to quarter the KL, halve the step.

# %% [markdown]
# ## A budget that shrinks
#
# Early on the policy is poor and may move; later it should settle. The paper lets the budget fall along half a
# cosine, from $\delta_0$ at the first update to $\delta_T$ at update number $H - 1$, and keeps it there:
#
# $$\delta(u) = \delta_T + \tfrac12(\delta_0 - \delta_T)
# \left(1 + \cos\left(\pi \cdot \min\left(\tfrac{u}{H-1}, 1\right)\right)\right).$$
#
# Here $u$ counts the updates done so far. For models of 1.5B and more: $\delta_0$ = 2e-4, $\delta_T$ = 2e-5,
# $H$ = 300. Our model is some thousand times smaller and affords 1e-2 → 1e-3.
#
# ## Exercise 3 · The schedule
# *Difficulty 1 of 5 · 5 minutes*

# %%
import math


def kl_budget(updates, budget, final_budget, schedule_steps):
    """δ(u): from `budget` at u = 0 to `final_budget` from u = schedule_steps - 1 on."""
    # SOLUTION
    share = min(updates / (schedule_steps - 1), 1.0)
    return final_budget + 0.5 * (budget - final_budget) * (1 + math.cos(math.pi * share))
    # END


# %% tags=["nbval-check-output"]
kl_budget = checks.check("kl_budget", kl_budget)
for u in (0, 75, 150, 299, 1000):
    print(f"after {u:4d} updates a token may cost {kl_budget(u, 2e-4, 2e-5, 300):.3g} nats")

# %% [markdown] tags=["hint"]
# `math.cos(0)` is 1 and `math.cos(math.pi)` is -1. So `(1 + cos) / 2` runs from 1 to 0; use it to mix the two
# budgets.

# %% [markdown]
# ## How far can the forecast be trusted?
#
# The formula is a parabola fitted at $\alpha = 0$. So we take three real steps, scale each from a KL of a millionth
# to a KL of 1, and measure what really happens. We measure twice: in fp32, and in bf16 with the rounded weights that
# a half-precision model would compute with. This is the claim's test: it could fail at either end.

# %%
steps = [step, *(trust_step.one_step(policy, task, seed=seed, prompts=128) for seed in (1, 2))]
sizes = torch.logspace(-6, 0, 13, dtype=torch.float64)
sweeps = []
for one in steps:
    forecast = half_variance(*trust_step.logits_and_tangent(one)).mean().item()
    sweeps.append(trust_step.sweep(one, forecast, sizes))
kl_figures.predicted_against_measured(sweeps)

# %%
side = (
    "high: the brake errs on the safe side"
    if kl_figures.ratio_at(sweeps, 0.3) > 1
    else "low: the brake is late"
)
floor = kl_figures.noise_floor(sweeps)
print(
    f"At a KL of 0.001 the forecast misses by {kl_figures.worst_miss(sweeps, 1e-3):.1%} at most, at 0.01 "
    f"by {kl_figures.worst_miss(sweeps, 1e-2):.0%}.\nAt large steps it is on average too {side}."
)
print(
    f"bf16 reports {floor:.1e} for a step whose KL is {sizes[0]:.0e}: {floor / sizes[0]:.0f} times too much."
)

# %% [markdown]
# **In the middle** the points lie on the line: the forecast is the measurement.
#
# **At the right end** the parabola bends away, for one step earlier than for another: third-order terms. For
# budgets out there, `TrustRegion(verify=True)` measures the scaled step by preview and shrinks it until it
# fits.
#
# **At the left end** bf16 goes flat. Rounding is drawn anew whenever a weight changes, so *any* change of the weights
# looks like a KL of that size. The paper's budgets, 2e-4 falling to 2e-5, are of the size of this floor. A controller
# that *measured* KL in bf16 would steer by noise; the forecast has no such floor, since it subtracts nothing.
# So: forecast in any precision, measure in fp32 only.

# %% [markdown]
# ## There is no free forecast
#
# The forecast costs a forward pass. Could we get it for nothing? Backward already gives each answer's sketch
# $S_b$, and $\langle S_b, U \rangle$ is how fast the log-probability of answer $b$ changes along the step. The
# mean square of such a score is a variance, so $\frac12 \sum_b \langle S_b, U \rangle^2 / \text{tokens}$ looks
# like our ½ Var, free of charge.
#
# But $U$ was *made of* these $S_b$. Every product contains its own square, and the estimate is too high. On fresh
# answers, which had no part in $U$, the same formula must come out near 1: that is the control.
# (Recorded over batch sizes and seeds; one of the smallest is run again below.)

# %%
recorded_free = kl_recorded.load("free_estimate")
kl_figures.free_against_fresh(recorded_free["runs"])

# %%
again = kl_recorded.free_estimate(policy, task, prompts=16, seed=1)
noted = next(run for run in recorded_free["runs"] if (run["prompts"], run["seed"]) == (16, 1))
print(f"run again: {again['own']:.2f} on its own batch, {again['fresh']:.2f} on fresh answers")
print(f"recorded:  {noted['own']:.2f} on its own batch, {noted['fresh']:.2f} on fresh answers\n")
for size in kl_figures.batch_sizes(recorded_free["runs"]):
    ratio = kl_figures.middle(recorded_free["runs"], size, "fresh_over_own")
    print(
        f"made of {size:3d} answers: on fresh answers the step costs {ratio:.2f} times what it costs on its own"
    )

# %% [markdown]
# Two effects are in the picture. The first is the bias of the formula: it is there at every batch size, while
# the control stays near 1. The second concerns the forward-mode forecast too: a step moves the policy most
# where it was made. The lines above say how much less it costs elsewhere. Both together make the upper curve:
# whoever steered by the free estimate would take steps that are far too short when batches are small, and never
# know.
#
# ## Find the bug
#
# A colleague's trust region runs, but the measured KL is always over the budget. Here is the function that
# chooses at which positions the KL is averaged, and what happens with it: each step is scaled to a budget of
# 0.001, then measured on the sampled tokens. A right trust region sits on the line at 1.


# %%
def suspect_positions(attention_mask, generated_mask):
    """Where the KL is taken [B, L]: True at position t where the logits for token t + 1 are judged."""
    real = attention_mask.bool()
    judged = torch.zeros_like(real)
    judged[:, :-1] = real[:, :-1] & real[:, 1:]
    return judged


def measured_over_budget(one, positions, budget=1e-3):
    """Scale a step by the KL at these positions; the KL on the sampled tokens over the budget."""
    rollout = one.batch.rollout
    every = trust_step.every_position(rollout)
    z, z_dot = trust_step.logits_and_tangent(one, trust_step.probe_of(rollout, every))
    kl = trust_step.on_grid(half_variance(z, z_dot), every)  # [B, L]
    where = positions(rollout.attention_mask.bool(), rollout.generated_mask)
    alpha = step_scale(kl[where].mean().item(), budget, 10.0, True)
    return one.optimizer.measure(one.proposal, one.probe, alpha) / budget


wrong = [measured_over_budget(one, suspect_positions) for one in steps]
kl_figures.over_budget({"suspect": wrong})

# %% [markdown]
# ## Exercise 4 · Which positions?
# *Difficulty 2 of 5 · 8 minutes*
#
# `generated_mask[b, t]` is True where token `t` was sampled. Prompts are padded on the left, answers on the right:
#
# | position | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
# |-|-|-|-|-|-|-|-|
# | token | pad | 7 | + | 5 | = | 1 | 2 |
# | attention_mask | – | ✓ | ✓ | ✓ | ✓ | ✓ | ✓ |
# | generated_mask | – | – | – | – | – | ✓ | ✓ |
#
# Which positions' logits did the policy really sample from?


# %%
def judged_positions(attention_mask, generated_mask):
    """Where the KL is taken [B, L]: True at position t where the logits for token t + 1 are judged."""
    # SOLUTION
    judged = torch.zeros_like(generated_mask)
    judged[:, :-1] = generated_mask[:, 1:]
    return judged
    # STUB
    # real = attention_mask.bool()
    # judged = torch.zeros_like(real)
    # judged[:, :-1] = real[:, :-1] & real[:, 1:]
    # return judged
    # END


# %%
judged_positions = checks.check("judged_positions", judged_positions)
fixed = [measured_over_budget(one, judged_positions) for one in steps]
kl_figures.over_budget({"suspect": wrong, "repaired": fixed})

# %% [markdown] tags=["hint"]
# In the table, the logits at position 4 (`=`) produced token 5, and those at position 5 produced token 6. Position 1
# "predicts" the `+` of the prompt, which nobody sampled: the policy's opinion of the prompt is never acted on. It
# moves differently, and it drags the mean away from what you want to bound.

# %% [markdown]
# ## What the mean hides
#
# The budget is a mean over tokens. Most tokens hardly move; a few move a lot.

# %%
kl_figures.spread_over_tokens(half_variance(z, z_dot))

# %% [markdown]
# A budget of 0.001 does not mean that every token obeys it. `verdict.worst_kl` is the 99th percentile; log it.
#
# ## Play: KL drift
#
# Recorded runs of the paper's recipe: REINFORCE, one answer per prompt, `rule="paper"`, two-sided α with
# $\alpha_\max = 3$, the budget held constant. Each curve is a real run: predicted for the step as taken, then
# measured.
#
# Try this. (1) Step size 0.001, then 0.03, under a budget: the KL hardly changes, α does the work. (2) The same
# without a budget. (3) Rank 2, 8, 32 without a budget. (4) When is α stuck at 3, and what does that say about
# the step size?

# %%
recorded = kl_recorded.load("kl_drift")
player = widgets.play(lambda **chosen: kl_drift.draw(recorded, **chosen), **kl_drift.controls())

# %% [markdown]
# A recorded run is only worth something if it can be run again. Here are its first four steps, live:

# %%
live = kl_recorded.drift_run(3e-3, 8, 1e-2, steps=4)
noted = kl_drift.chosen_run(recorded, 3e-3, 8, 1e-2)
for number, pair in enumerate(zip(live["measured"], noted["measured"]), start=1):
    print(f"step {number}: measured KL {pair[0]:.5f} now, {pair[1]:.5f} recorded")

# %% [markdown]
# ## Limits
#
# - **Local.** The forecast is a parabola. It is good where budgets live and poor near a KL of 1.
# - **A mean over tokens** of the answers that were probed. A single token can be far over it, and other prompts
#   behave differently.
# - **Everything that moves must be in it.** α scales $UA$ only. Trained norms, embeddings or weight decay would move
#   the policy behind its back, so `LoGRA` refuses a trust region beside them.
# - **It buys robustness, not accuracy.** In the paper's own ablation the arm *without* KL control was equally stable.
#   What it changes is how much a badly chosen step size costs; [07](07_the_full_loop.ipynb) tests that.
# - A measured KL fed back into the step size is a cheap rival: no forward mode, but it learns only after the step.
#
# ## Recap
#
# 1. A step's KL is ½ Var of the tangent logits under the policy, to second order.
# 2. One forward-mode pass with a thin side branch gives it; no ΔW is built.
# 3. α = √(δ/q), with a ceiling; the budget falls along half a cosine.
# 4. Judge at the positions that were sampled from, and never with the sketches that made the step.
# 5. Forecast in any precision, measure in fp32: bf16 has a floor.
#
# **What would change our mind.** If on a large model the forecast at a KL of 2e-4 missed the measured KL (fp32, fresh
# answers) by more than a third, or if measured-KL feedback alone survived the same bad step sizes, the extra
# pass would not be worth it.
#
# **Next**: [lesson 07](07_the_full_loop.ipynb), where the whole loop runs, beside its rivals.
