"""Reinforcement learning of language models: tasks, policy, losses, the loop, and the optimizers it compares."""
