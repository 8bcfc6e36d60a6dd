"""The merge by kernel: lower halves that live on the host pass through the device, one layer at a time.

Two staging buffers, each as large as the largest target's lower half, and three streams: while one layer is
merged, the next layer's halves come in and the last one's go out. So halves on the host cost two such buffers
on the device, and an update takes about the time of one transfer, since both directions run at once.

Left out: staging on other devices than CUDA; there `merge.py` goes row block by row block.

Shapes: W [d, k] (the rows of it held here), F factor [d, r], lower halves [d, k].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .. import kernels
from .merge import FP32
from .projection import projection_key


class Staging:
    """Lends device memory for host halves; `finish()` before anyone reads them on the host."""

    def __init__(self) -> None:
        self._slots: dict[torch.device, list[_Slot]] = {}
        self._count = 0

    @contextmanager
    def lend(self, half: Tensor | None, device: torch.device) -> Iterator[Tensor | None]:
        """The half [d, k] on `device` for the time of the context; what is written there comes back."""
        if half is None or half.device == device:
            yield half
            return
        slots = self._slots.setdefault(device, [])
        if not slots:
            streams = (torch.cuda.Stream(device), torch.cuda.Stream(device))
            slots += [_Slot(device, *streams), _Slot(device, *streams)]
        slot = slots[self._count % 2]
        self._count += 1
        yield slot.bring(half)
        slot.take_back(half)

    def finish(self) -> None:
        """Wait until every half is back on the host."""
        for slots in self._slots.values():
            for slot in slots:
                slot.done.synchronize()


class _Slot:
    """One staging buffer, and the event after which it may be used again."""

    def __init__(
        self, device: torch.device, incoming: torch.cuda.Stream, outgoing: torch.cuda.Stream
    ) -> None:
        self.device, self.incoming, self.outgoing = device, incoming, outgoing
        self.done = torch.cuda.Event()
        self._buffer = torch.empty(0, dtype=torch.int16, device=device)

    def bring(self, half: Tensor) -> Tensor:
        """Start the copy in, once the slot is free; the current stream waits for it."""
        if self._buffer.numel() < half.numel():
            self.done.synchronize()  # the old buffer may still be read
            self._buffer = torch.empty(half.numel(), dtype=half.dtype, device=self.device)
            self.incoming.wait_stream(
                torch.cuda.current_stream(self.device)
            )  # memory just allocated may be in use
        staged = self._buffer[: half.numel()].view(half.shape)
        self.incoming.wait_event(self.done)
        with torch.cuda.stream(self.incoming):
            staged.copy_(half, non_blocking=True)
        torch.cuda.current_stream(self.device).wait_stream(self.incoming)
        return staged

    def take_back(self, half: Tensor) -> None:
        """Start the copy out, once the current stream has merged."""
        self.outgoing.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.outgoing):
            half.copy_(self._buffer[: half.numel()].view(half.shape), non_blocking=True)
            self.done.record(self.outgoing)


def fused_merge(
    precision: FP32,
    name: str,
    weight: Tensor,
    factor: Tensor,
    key: tuple[int, int],
    *,
    decay: float,
    update: int,
    offset: int,
    staging: Staging,
) -> None:
    """W ← (1 − decay) W − F A by one kernel; the twin is `precision.add_low_rank` (method.md §6).

    Args:
        key: of the projection.
        update, offset: the update number and the first row's global index, for the rounding noise.
    """
    lower = getattr(precision, "lower", {}).get(name)  # only "split" has one
    with staging.lend(lower, weight.device) as staged:
        kernels.merge(
            weight, factor, key, kind=precision.name, lower=staged, decay=decay, offset=offset,
            noise_key=projection_key(precision.seed, update, f"rounding/{name}"),
        )  # fmt: skip
