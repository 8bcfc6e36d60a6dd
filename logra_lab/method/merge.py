"""Fold a low-rank factor into a weight, W ← (1 − λ) W − F A, at four precisions (method.md §6).

A step moves a weight by about 2e-6, while bf16 resolves about 1e-4 at 0.03: where the update is stored
decides whether it happened. A precision is an object with two verbs, `read` and `add_low_rank`; all four
do their arithmetic in fp32 on the same row blocks, so that `split` equals `fp32` bit for bit.

Left out: a fused kernel (`logra_lab.kernels`). The cost here: a block of rows of W passes through fp32.

Shapes: W [d, k] (or the rows of it held here), F factor [d, r], signs of A [r, k].
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from .projection import MASK, fmix32, projection_key
from .row_adam import wide

BLOCK = 1 << 20
"""Numbers of W per row block: small enough for a cache, large enough for a fast matrix product."""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of W's rows, at least two where there are two rows, so that no copy is as large as W."""
    step = max(1, min(BLOCK // max(columns, 1), -(-rows // 2)))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def split_halves(value: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 → (upper half bf16, lower half int16), rounded half up; `join_halves` is exact (method.md §6).

    Truncation would be exact too, but shrinks every forward weight by about .28 %; the remainder of rounding
    half to even can be +32768 and doesn't fit.
    """
    bits = value.contiguous().view(torch.int32)
    upper = (bits + 0x8000) >> 16
    lower = (bits - (upper << 16)).to(torch.int16)
    return upper.to(torch.int16).view(torch.bfloat16), lower


def join_halves(upper: Tensor, lower: Tensor) -> Tensor:
    """(bf16, int16) → the fp32 number they were split from."""
    bits = upper.contiguous().view(torch.int16).to(torch.int32) << 16
    return (bits + lower.to(torch.int32)).view(torch.float32)


def stochastic_round(value: Tensor, noise: Tensor) -> Tensor:
    """fp32 → bf16, up with the probability that makes it unbiased; `noise` holds uniform integers < 2¹⁶."""
    bits = value.contiguous().view(torch.int32)
    rounded = ((bits + noise.to(torch.int32)) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(value.isfinite(), rounded, value.to(torch.bfloat16))


def rounding_noise(key: tuple[int, int], rows: Tensor, columns: int) -> Tensor:
    """Uniform integers < 2¹⁶ [rows, k] from the counter hash: the same on every device and on resume."""
    row_keys = fmix32((rows.to(torch.int64) + key[1]) & MASK)
    column_keys = fmix32((torch.arange(columns, device=rows.device) + key[0]) & MASK)
    return fmix32(row_keys[:, None] ^ column_keys[None, :]) & 0xFFFF


class FP32:
    """The weight itself is fp32 (the paper's way); `float64` models are kept in float64.

    Every precision has this interface. `weight` is the local part of the parameter, `name` the target's name.
    """

    name = "fp32"
    stored: tuple[torch.dtype, ...] = (torch.float32, torch.float64)

    def __init__(self, seed: int = 0, halves: str = "device") -> None:
        self.seed = seed

    def check(self, name: str, weight: Tensor) -> None:
        """Refuse a weight that this precision can't keep.

        Raises:
            TypeError: if the weight's type is not one of `stored`.
        """
        if weight.dtype not in self.stored:
            kinds = " or ".join(str(kind).removeprefix("torch.") for kind in self.stored)
            remedy = "choose precision='split'" if self.name == "fp32" else "load the model in bf16"
            raise TypeError(
                f'precision="{self.name}" keeps {kinds} weights, but {name} is {weight.dtype}: {remedy}'
            )

    def adopt(self, name: str, weight: Tensor) -> None:
        """Begin to keep this weight."""

    def read(self, name: str, weight: Tensor) -> Tensor:
        """A copy of the full-precision value [d, k]."""
        blocks = list(row_blocks(*weight.shape)) or [slice(0, 0)]  # a rank may hold no row
        return torch.cat([self._load(name, weight, rows) for rows in blocks])

    def square(self, name: str, weight: Tensor) -> Tensor:
        """‖W‖² as a scalar in fp32 or wider, block by block."""
        blocks = (self._load(name, weight, rows) for rows in row_blocks(*weight.shape))
        norms = [wide(torch.linalg.vector_norm(block)) for block in blocks]
        return torch.stack(norms).square().sum() if norms else wide(weight.new_zeros((), dtype=torch.float32))

    @torch.no_grad()
    def add_low_rank(
        self,
        name: str,
        weight: Tensor,
        factor: Tensor,
        signs: Tensor,
        decay: float,
        update: int,
        offset: int = 0,
    ) -> None:
        """W ← (1 − decay) W − F A in place, with A = signs/√r.

        Args:
            factor: F [d, r], the rows that belong to `weight`.
            signs: [r, k], fp32.
            decay: lr · weight decay, taken off before the update.
            update: the update number, for the rounding noise.
            offset: the global index of the first row held here.
        """
        scale = signs.shape[0] ** -0.5
        for rows in row_blocks(*weight.shape):
            value = self._load(name, weight, rows)
            value = value.addmm_(factor[rows], signs, beta=1 - decay, alpha=-scale)
            self._store(name, weight, rows, value, update, offset)

    def state(self, name: str) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the model's own weights."""
        return {}

    def load(self, name: str, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave; `check_state` first."""

    def check_state(self, name: str, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Refuse a state that doesn't belong to the weights at hand, before anything changes."""

    def nbytes(self) -> int:
        """Bytes kept beside the weights."""
        return 0

    def _load(self, name: str, weight: Tensor, rows: slice) -> Tensor:
        """The value of some rows; may be a view of the weight, never to be written but by `add_low_rank`."""
        return weight[rows]

    def _store(self, name: str, weight: Tensor, rows: slice, value: Tensor, update: int, offset: int) -> None:
        """Put the rows back; here `value` is the weight's own memory already."""


class Nearest(FP32):
    """Plain bf16, rounded to nearest: exists so that a lesson can show what it loses."""

    name = "nearest"
    stored = (torch.bfloat16,)

    def _load(self, name: str, weight: Tensor, rows: slice) -> Tensor:
        return weight[rows].float()

    def _store(self, name: str, weight: Tensor, rows: slice, value: Tensor, update: int, offset: int) -> None:
        weight[rows] = value.to(torch.bfloat16)


class Stochastic(Nearest):
    """bf16 with unbiased stochastic rounding, its bits drawn from the counter hash."""

    name = "stochastic"

    def _store(self, name: str, weight: Tensor, rows: slice, value: Tensor, update: int, offset: int) -> None:
        key = projection_key(self.seed, update, f"rounding/{name}")
        index = torch.arange(rows.start, rows.stop, device=value.device) + offset
        weight[rows] = stochastic_round(value, rounding_noise(key, index, value.shape[1]))


class Split(Nearest):
    """fp32 kept as two 16-bit halves: the bf16 weight, and the lower half on the device or the host.

    Four bytes a weight in all, two of them on the accelerator with `halves="host"` (Split-SGD, Kalamkar et
    al. 2020).
    """

    name = "split"

    def __init__(self, seed: int = 0, halves: str = "device") -> None:
        super().__init__(seed)
        if halves not in ("device", "host"):
            raise ValueError(
                f"halves={halves!r} is neither 'device' nor 'host': choose where lower halves live"
            )
        self.halves = halves
        self.lower: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}

    def adopt(self, name: str, weight: Tensor) -> None:
        """Begin to keep this weight, its lower half zero."""
        self.lower[name] = self._place(weight, torch.zeros(weight.shape, dtype=torch.int16, device="cpu"))
        self._weights[name] = weight

    def state(self, name: str) -> dict[str, Tensor]:
        """The lower half, int16 [d, k], and a fingerprint of the weight that it belongs to."""
        return {"lower": self.lower[name], "fingerprint": fingerprint(self._weights[name])}

    def check_state(self, name: str, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Refuse lower halves that are missing, of another shape or type, or of other weights."""
        lower = state.get("lower")
        if lower is None or lower.dtype != torch.int16 or lower.shape != weight.shape:
            raise ValueError(
                f"the lower halves of {name} are not int16 {list(weight.shape)}: load another state"
            )
        if (mark := state.get("fingerprint")) is None or mark.tolist() != fingerprint(weight).tolist():
            raise ValueError(
                f"the lower halves of {name} belong to other weights than the model holds: "
                "load the model weights saved with this optimizer state first, then the optimizer"
            )

    def load(self, name: str, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave; `check_state` first."""
        self.lower[name] = self._place(weight, state["lower"].clone())
        self._weights[name] = weight

    def nbytes(self) -> int:
        """Bytes of the lower halves, wherever they live."""
        return sum(2 * half.numel() for half in self.lower.values())

    def _place(self, weight: Tensor, lower: Tensor) -> Tensor:
        if self.halves == "device":
            return lower.to(weight.device)
        return lower.cpu().pin_memory() if weight.is_cuda else lower.cpu()

    def _load(self, name: str, weight: Tensor, rows: slice) -> Tensor:
        return join_halves(weight[rows], self.lower[name][rows].to(weight.device, non_blocking=True))

    def _store(self, name: str, weight: Tensor, rows: slice, value: Tensor, update: int, offset: int) -> None:
        upper, lower = split_halves(value)
        weight[rows] = upper
        self.lower[name][rows] = lower.to(self.lower[name].device)


PRECISIONS = {kind.name: kind for kind in (FP32, Split, Stochastic, Nearest)}


def fingerprint(weight: Tensor) -> Tensor:
    """A digest of the weight's bytes, uint8 [16]: tells whether lower halves fit these upper halves."""
    digest = hashlib.blake2b(digest_size=16)
    for rows in row_blocks(*weight.shape):
        digest.update(weight[rows].detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)
