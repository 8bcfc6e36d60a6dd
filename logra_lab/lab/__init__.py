"""What a notebook shows: figures, widgets, checks of exercises, and the environment check.

Sees the whole package and is seen by none of it.
"""
