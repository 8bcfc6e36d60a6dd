# %% [markdown]
# # 02 · Learning from one bit
#
# **Claim.** Pass or fail, one bit per answer, gives an unbiased direction in which to change a policy; a
# baseline changes the noise of that direction, not its mean.
#
# **You will be able to** write the policy-gradient loss with its mask, turn rewards into advantages in two
# ways, choose a denominator that does not depend on how a batch is cut, and say which groups of answers teach
# nothing.
#
# **Before you start**: gradients, probabilities, a little torch. **Time**: 70 minutes with the exercises, 15
# without.

# %%
import torch

from logra_lab.lab import checks, gradients, lesson02, lesson02_play, small_world, widgets
from logra_lab.lab.roadmap import roadmap

roadmap(2)

# %% [markdown]
# ## A world small enough to know the truth
#
# With a real language model nobody knows the true gradient: there are too many answers. So we take a world
# where we can list them all. A policy writes the tokens `0` and `1` and ends with a stop token, here `.`;
# after four tokens it is cut. An answer is **right** if it stops and holds exactly one `1`. The policy is a
# table of nine logits: which token follows which.

# %% tags=["nbval-check-output"]
policy = small_world.start(seed=4)
every = small_world.every_answer()
chance = small_world.probabilities(policy, every)
for i in chance.argsort(descending=True)[:6].tolist():
    print(f"{small_world.text(every.ids[i]):5} probability {chance[i]:.3f}   reward {every.rewards[i]:.0f}")
print(f"{len(every)} answers; their probabilities add up to {chance.sum():.3f}")
print(f"accuracy: {small_world.accuracy(policy):.3f}")

# %% [markdown]
# ## From a bit to a direction
#
# We want to climb the accuracy $J(\theta) = \sum_y \pi_\theta(y)\, r(y)$. The reward is a bit and has no
# gradient; the probability has one. One line of algebra, $\nabla \pi = \pi\, \nabla \log \pi$, turns the sum
# into a mean over answers that the policy itself writes:
#
# $$ \nabla J = \mathbb E_{y \sim \pi}\big[\, r(y)\; \nabla \log \pi(y) \,\big], \qquad
# \log\pi(y) = \sum_{t \in \text{sampled tokens}} \log \pi(y_t \mid y_{<t}). $$
#
# Read it as advice: *make the answers that were right more likely*. And since $\mathbb E[\nabla \log\pi] =
# 0$, any number may be taken off every reward: $r - b$, the **advantage**, gives the same mean.
#
# ## Exercise 1 · The loss
# *Difficulty 2 of 5 · 10 minutes*
#
# Write a loss whose gradient is minus that estimate: the mean over answers of $-A \cdot \log\pi(y)$.
# Positions after the stop token are padding. They were never sampled, their log-probs may be anything, even
# $-\infty$, and they must not count.


# %%
def policy_gradient_loss(log_probs, advantages, mask) -> torch.Tensor:
    """One number, from log-probs [B, L] of tokens, advantages [B] and a mask [B, L] of sampled tokens."""
    # SOLUTION
    of_answers = torch.where(mask, log_probs, 0.0).sum(-1)  # [B]
    return -(advantages * of_answers).mean()
    # END


policy_gradient_loss = checks.check("policy_gradient_loss", policy_gradient_loss)

# %% [markdown] tags=["hint"]
# First log π(y) of each answer: a sum along the positions, with 0 where the mask is false. `log_probs * mask`
# is not safe, since $0 \cdot (-\infty)$ is NaN; `torch.where(mask, log_probs, 0.0)` is. Then times the
# advantages, the mean, and a minus.

# %% [markdown]
# Is it true? Weigh every answer there is by its probability and compare with the gradient of the accuracy
# itself:

# %%
truth = small_world.true_gradient(policy)
weighted = chance * every.rewards * len(every)  # so that the mean over all answers becomes the sum of π r
listed = lesson02.direction(policy, every, weighted, policy_gradient_loss)
library = lesson02.direction(policy, every, weighted, lesson02.library_loss("constant"))
constant = lesson02.direction(policy, every, chance * len(every), policy_gradient_loss)
print(f"Length of the true gradient:           {truth.norm():.2f}")
print(f"Largest difference, your loss:         {(listed - truth).abs().max():.0e}")
print(f"Largest difference, the library's:     {(library - truth).abs().max():.0e}")
print(f"Length if every answer earns reward 1: {constant.norm():.0e}")

# %% [markdown]
# The last line is why a baseline is allowed: a constant reward moves nothing, on average. On average only.
#
# ## Exercise 2 · Two ways to say "better than expected"
# *Difficulty 2 of 5 · 15 minutes*
#
# A **group**: several answers to the same prompt, compared with each other (GRPO). A **running mean**: one
# answer per prompt, compared with past batches (REINFORCE with a baseline, the default of this course). The
# running mean must not have seen the batch that it judges.


# %%
def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """(r − mean) / (std + 1e-4) within each row of `rewards` [P, G]; std as torch computes it."""
    # SOLUTION
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, keepdim=True) + 1e-4)
    # END


def running_advantages(rewards: torch.Tensor, baseline: float) -> tuple[torch.Tensor, float]:
    """Advantages of `rewards` [B] against `baseline`, and the next baseline: 0.9 of the old, 0.1 of this batch."""
    # SOLUTION
    return rewards - baseline, 0.9 * baseline + 0.1 * rewards.mean().item()
    # END


group_advantages = checks.check("group_advantages", group_advantages)
running_advantages = checks.check("running_advantages", running_advantages)

# %% [markdown] tags=["hint"]
# A group is a row: `dim=1` with `keepdim=True`. The 1e-4 keeps a group of equal rewards at 0 instead of 0/0.
# For the running mean: first the advantages with the old baseline, then the new baseline.

# %% [markdown]
# ## The signature figure: 200 estimates around the truth
#
# Each dot is one gradient estimate from 64 answers. Every reward has a bonus of 1 for taking part: it can't
# matter for the truth. Does it matter for the estimate?
#
# The last panel is the **control that should land off**: the same running mean, but each answer's log-probs
# are *averaged* over its own tokens instead of summed, a denominator that many trainers use. A token of a
# long answer then counts less.

# %%
rules = {
    "no baseline": lesson02.no_baseline,
    "running mean": running_advantages,
    "groups of 8": lesson02.in_groups(group_advantages),
}
clouds = {
    label: lesson02.estimates(policy, rule, policy_gradient_loss, bonus=1.0) for label, rule in rules.items()
}
clouds["own length"] = lesson02.estimates(
    policy, running_advantages, lesson02.library_loss("own_length"), bonus=1.0
)
lesson02.draw_estimates(truth, clouds, control="own length")

# %% [markdown]
# Three means sit on the star, and their clouds differ: the bonus blows up the first and leaves the others
# alone. That is the claim. The fourth cloud is the narrowest of all and **beside** the truth. More answers
# make it narrower still, and never right.
#
# (The panels are drawn at the truth's length. Groups divide by their std, so their estimate is longer;
# LoGRA's paper rule forgets the length anyway.)
#
# ## Play
#
# Give everybody ten points. Which estimator cares? How many answers does it need to make up for it?

# %%
player = widgets.play(
    lesson02_play.explorer(policy, rules, policy_gradient_loss),
    estimator=widgets.Choice("estimator", tuple(rules), "no baseline"),
    answers=widgets.Slider("answers", lesson02_play.ANSWERS, 64),
    bonus=widgets.Slider("bonus", lesson02_play.BONUSES, 1),
)

# %% [markdown]
# ## Exercise 3 · The denominator that adds up
# *Difficulty 2 of 5 · 10 minutes*
#
# Real batches don't fit into memory and are cut into micro-batches whose gradients add up. The paper's loss
# is a **token mean over the whole batch**. What must a micro-batch divide by, so that the sum does not depend
# on the cuts?


# %%
def micro_batch_loss(log_probs, advantages, mask, total_tokens: int) -> torch.Tensor:
    """This part's share of −Σ A log π / tokens; `total_tokens` were sampled in the whole batch."""
    # SOLUTION
    terms = torch.where(mask, advantages[:, None] * log_probs, 0.0)  # [B, L]
    return -terms.sum() / total_tokens
    # END


micro_batch_loss = checks.check("micro_batch_loss", micro_batch_loss)

# %% [markdown] tags=["hint"]
# If each part divides by its own tokens, a part with short answers gets too much weight. All parts have to
# divide by the same number, and it has to be known before the first of them runs.

# %%
drawn = small_world.sample(policy, 64, torch.Generator().manual_seed(1))
order = drawn.lengths.argsort()  # short answers first, as a bucketing data loader would have it
advantages = drawn.rewards - drawn.rewards.mean()


def in_parts(parts: int, loss) -> torch.Tensor:
    pieces = [small_world.Answers(drawn.ids[i], drawn.mask[i], drawn.rewards[i]) for i in order.chunk(parts)]
    chosen = [advantages[i] for i in order.chunk(parts)]
    return sum(lesson02.direction(policy, piece, a, loss) for piece, a in zip(pieces, chosen))


total = int(drawn.mask.sum())
for label, loss in {
    "all tokens of the batch": lambda p, a, m: micro_batch_loss(p, a, m, total),
    "its own tokens": lambda p, a, m: micro_batch_loss(p, a, m, int(m.sum())) * len(p) / 64,
}.items():
    whole, cut = in_parts(1, loss), in_parts(4, loss)
    change = ((cut - whole).norm() / whole.norm()).item()
    print(f"Each part divides by {label:24} → cut into 4, the gradient changes by {change:.1%}")

# %% [markdown]
# ## Exercise 4 · Groups that teach nothing
# *Difficulty 1 of 5 · 5 minutes*
#
# If all answers of a group get the same reward, all advantages are 0 and the group teaches nothing. With
# accuracy $p$ and independent answers, how likely is that for a group of $G$?


# %%
def no_signal_share(accuracy: float, answers: int) -> float:
    """Probability that all rewards of a group are equal."""
    # SOLUTION
    return accuracy**answers + (1 - accuracy) ** answers
    # END


no_signal_share = checks.check("no_signal_share", no_signal_share)

# %% [markdown] tags=["hint"]
# Two ways: all right, or all wrong. They can't both happen.

# %% [markdown]
# Now a real language model: tiny-math answers 512 sums eight times each, and we count.

# %%
rewards = gradients.answer_sums(gradients.tiny_policy(), 512, 8).rewards.view(-1, 8)  # [P, G]
accuracy = (rewards > 0).float().mean().item()
measured = (rewards.amax(1) == rewards.amin(1)).float().mean().item()
lesson02.draw_no_signal(no_signal_share, (2, 4, 8, 16), accuracy, measured, answers=8)

# %% [markdown]
# The dot lies above its curve, and that is no accident. Real prompts are not equally hard, and the curve
# bends upwards: a mixture of easy and hard prompts has more silent groups than its average says. So log the
# share of groups without signal. A run whose reward is flat may simply have nothing to learn from.
#
# ## Exercise 5 · Find the bug
# *Difficulty 3 of 5 · 10 minutes*
#
# Many tokenizers pad with the stop token. A colleague finds the sampled tokens by `ids != stop`. It looks
# right: padding is left out. But look at the runs, one with a mask that is right, one with the colleague's,
# on the same seeds:

# %%
from logra_lab.lab.exercises.lesson02 import faulty_mask

runs = {
    name: lesson02.train(policy, policy_gradient_loss, mask, lesson02.no_baseline)
    for name, mask in {"right mask": small_world.answer_mask, "colleague": faulty_mask}.items()
}
lesson02.draw_runs(runs)

# %% [markdown]
# It even learns, for a while. Then answers grow until they hit the limit, and accuracy falls: the policy is
# praised for every `0` and `1` of a right answer, never for *stopping*. Repair it.


# %%
def answer_mask(ids: torch.Tensor, stop: int = small_world.STOP) -> torch.Tensor:
    """True where a token of `ids` [B, L] was sampled: up to the first stop token, and there too."""
    # SOLUTION
    is_stop = (ids == stop).long()
    stops_before = is_stop.cumsum(1) - is_stop
    return stops_before == 0
    # STUB
    # return ids != stop
    # END


answer_mask = checks.check("answer_mask", answer_mask)

# %% [markdown] tags=["hint"]
# A position was sampled if no stop token comes *before* it. `cumsum` counts stop tokens up to and including a
# position. Better still: keep the lengths when you sample, as `logra_lab.rl` does, and never ask token values
# at all.

# %% [markdown]
# ## The loss tells you nothing
#
# One more trap. Here is your repaired run with a running mean. Watch the loss while accuracy climbs:

# %%
run = lesson02.train(policy, policy_gradient_loss, answer_mask, running_advantages)
for step in (1, 10, 25, 50, 100):
    print(f"step {step:3}: accuracy {run.accuracy[step - 1]:.2f}   loss {run.loss[step - 1]:+.3f}")

# %% [markdown]
# The loss goes up and down around 0 and measures no error: only its *gradient* means something. Watch the
# reward, the held-out accuracy and the share of silent groups instead.
#
# ## Limits
#
# - The world here has nine parameters. Enumeration proves the formula; it says nothing about how many answers
#   a large model needs.
# - Unbiased is not enough: the clouds are wide. One bit per answer is little, and a policy that is never
#   right gets none.
# - Several steps on the same answers need importance weights (`logra_lab.rl.losses` has them); here each step
#   is on fresh answers.
# - The batch's token mean is itself slightly biased, since its denominator is random; the sum per answer is
#   not. Put `lesson02.library_loss("batch_tokens")` into the signature figure and look.
#
# ## Recap
#
# 1. $\nabla J = \mathbb E[r \nabla\log\pi]$: right answers become more likely.
# 2. A baseline may be anything that does not know this answer's reward; it changes the noise, not the mean.
# 3. Sum over an answer's sampled tokens, the stop token among them, and over no other.
# 4. One denominator for the whole batch, whatever the cuts.
# 5. Groups of equal rewards are silent; count them. The loss means nothing; watch the reward.
#
# **What would change our mind**: a cloud with a baseline whose mean leaves the star as the number of
# estimates grows; or a dot *below* its curve in the figure of silent groups, with independent answers.
#
# **Next**: [lesson 03](03_sketching.ipynb), where this gradient is squeezed into a few random numbers.
