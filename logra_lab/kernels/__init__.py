"""The two fused operations, X Aᵀ and W −= F A, with the signs of A made where they are used.

A CUDA tensor goes to Triton where Triton is installed, everything else to torch. The environment variable
`LOGRA_KERNELS=torch` or `LOGRA_KERNELS=triton` forces either. Left out: the sum S += Hᵀ P, which is one
matrix product that torch already runs at full speed, and RowAdam, which is tiny.
"""

from __future__ import annotations

from .dispatch import backend, merge, merge_kinds, project, triton_available

__all__ = ["backend", "merge", "merge_kinds", "project", "triton_available"]
