# %% [markdown]
# # 00 · Start here
#
# **Claim.** A small language model learns to add from nothing but "right" and "wrong", and the gradient that
# teaches it passes through a sketch, a small part of its size. It takes half a minute on this machine.
#
# **You will be able to** run the whole loop once, say what each of its parts is for, and choose your way
# through the course.
#
# **Before you start**: nothing. **Time**: 10 minutes.

# %%
from logra_lab.lab import environment, lesson00
from logra_lab.lab.live import LivePicture
from logra_lab.lab.roadmap import roadmap

roadmap(0)

# %% [markdown]
# ## Does everything work here?
#
# This cell looks at your machine. Each line that says *no* also says what would change it. Lessons 00 to 09 need no
# GPU and no network.

# %%
print(environment.describe())

# %% [markdown]
# ## The idea in one minute
#
# Reinforcement learning of a language model repeats four things. The model **answers** problems. A program says which
# answers are **right**. Backward computes, for every weight, in which direction right answers become more likely: the
# **gradient**. An optimizer takes a **step** along it.
#
# For a large model memory runs out in the third. The gradient is as big as the model, and Adam keeps two more numbers
# per weight to go with it. LoGRA's answer: never make the gradient. Make a **sketch** of it.
#
# $$ \underbrace{G}_{d \times k} \;\longrightarrow\; \underbrace{S = G A^\top}_{d \times r} \qquad
# A:\ \text{random signs},\ r \ll k $$
#
# - Backward fills $S$ directly, so $G$ never exists (lessons 03 and 04).
# - One running number per row scales the step, and the update is folded straight into the weight (lesson 05).
# - Before the step is taken, its effect on the model's *answers* is foretold, and the step is scaled to a budget
#   (lesson 06).
#
# ## The model and its task
#
# `data/tiny-math` is a Llama with a quarter of a million weights. It has seen sums, and it has seen people merely
# echo one of the numbers, so it does both. It has never seen the sums below: they are held out.

# %% tags=["nbval-check-output"]
learner = lesson00.trainer()
problems = learner.task.held_out[3:400:67]
before = lesson00.answers(learner.policy, problems)
print(lesson00.table(problems, {"before": before}))

# %% [markdown]
# ## Watch it learn
#
# Now the loop runs, live. Each update takes 256 sums, one answer to each, and one bit per answer. The curve is the
# share of right answers on sums that are never trained on. This takes ten to twenty seconds.

# %%
picture = LivePicture(lesson00.tour_picture(learner.arm.optimizer))
picture.add(lesson00.first_accuracy(learner))
result = learner.run(on_step=picture.add)

# %% [markdown]
# The bars on the right are why this course exists. To the left stands what backward would leave in an ordinary trainer,
# for the layers that are trained. To the right stands what it left here.
#
# What does the model say now?

# %%
after = lesson00.answers(learner.policy, problems)
print(lesson00.table(problems, {"before": before, "after": after}))

# %% [markdown]
# ## Would anything have made the curve climb?
#
# A curve that climbs is no proof. Perhaps practice alone helps, whatever the rewards say. So run the same loop with
# the same number of rewards, **handed to the wrong answers**: each batch's rewards are shuffled before they are used.
# If the curve climbs again, the claim above is worth nothing.

# %%
control = lesson00.trainer(shuffle_rewards=True)
shuffled = [lesson00.first_accuracy(control), *control.run().history[1:]]
both = LivePicture(lesson00.tour_picture(learner.arm.optimizer, shuffled))
both.history = picture.history
both.show()

# %%
first, last = picture.history[0]["accuracy"], picture.history[-1]["accuracy"]
other = shuffled[-1]["accuracy"]
assert last > first + 0.3, "the run above did not learn"
assert other < first + 0.05, "the control learned, so the rewards are not what teaches"
print(f"Rewards as they were: {first:.0%} → {last:.0%}.  Shuffled: {first:.0%} → {other:.0%}.")

# %% [markdown]
# The shuffled run has no direction to go in. It doesn't stay where it was either: steps of the same size in random
# directions wear down what the model knew.
#
# ## What one step said of itself
#
# Every update reports what it did. You will meet each of these numbers again.

# %%
step = picture.history[-1]
print(f"reward of the batch           {step['reward']:8.3f}   lesson 02")
print(f"norm of the lifted sketch     {step['sketch_norm']:8.3f}   lesson 03")
print(f"KL predicted for the step     {step['predicted_kl']:8.5f}   lesson 06")
print(f"KL budget of this step        {step['budget']:8.5f}   lesson 06")
print(f"the step was scaled by        {step['scale']:8.3f}   lesson 06")
print(f"\nWhat is trained, and the bytes it takes:\n{learner.arm.optimizer.describe()}")

# %% [markdown]
# ## Your way through the course
#
# Each lesson makes one claim, lets you build the mathematics in three to five short exercises, and checks them on the
# spot. If an exercise is not solved, the lesson goes on with the reference.
#
# - **"I have an evening"**: 00, 01, 03, 04, 06, 07.
# - **"I want to use it"**: 00, 05, 08, 10.
# - **"I want all of it"**: in order.
#
# Cells build on those above them. If one says that a name *is not defined*, a cell was skipped or the kernel was
# restarted: choose *Run > Run All Above Selected Cell*, then go on.
#
# Not solved an exercise? Below each check a hint and a solution are folded away. The solved notebooks lie in
# [solutions](solutions).
#
# ## What this does not show
#
# - One seed, one task, one very small model. Lesson 07 repeats it over seeds and beside other optimizers.
# - The model could do this before, a third of the time. Reinforcement learning here *selects* a behaviour; it taught no
#   new one.
# - Step size and KL budget suit this size. The paper's, for models of a billion weights and more, are far smaller.
# - Nothing here says that LoGRA is fast or saves memory in total. Lessons 01, 04 and 07 measure that.
#
# ## Recap
#
# 1. Answer, judge, backward, step: that is the loop.
# 2. One bit per answer was enough to learn from.
# 3. Backward left a sketch, not a gradient.
# 4. The step was scaled by what it would do to the answers, before it was taken.
# 5. With shuffled rewards the same loop learned nothing.
#
# **What would change our mind:** a shuffled run that climbs, or a run on other seeds that doesn't.
