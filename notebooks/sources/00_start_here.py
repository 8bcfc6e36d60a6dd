# %% [markdown]
# # 00 · Start here
#
# The course is being written. This page says what your machine can do.

# %%
from logra_lab.lab import environment

print(environment.describe())
