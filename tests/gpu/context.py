"""What every section of the check shares: the device, the size, the clock and the memory meter."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch


class Skip(Exception):
    """This section can't run here; the message says why."""


class Context:
    """The device and the size of the check, the time a section has left, and how to measure on it."""

    def __init__(self, device: torch.device, tiny: bool) -> None:
        self.device, self.tiny = device, tiny
        self._end = time.monotonic()

    def begin(self, seconds: float) -> None:
        """Start a section's clock and forget earlier peaks."""
        self._end = time.monotonic() + seconds
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def left(self) -> float:
        """Seconds this section still has."""
        return self._end - time.monotonic()

    def need(self, seconds: float, what: str) -> None:
        """Skip the rest of a section if less than `seconds` are left."""
        if self.left() < seconds:
            raise Skip(f"{what} needs about {seconds:.0f} s, {self.left():.0f} s were left")

    def wait(self) -> None:
        """Let the device finish what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], repeats: int = 10) -> float:
        """The median time of `work`, after two calls that warm up."""
        work(), work()
        times = []
        for _ in range(repeats):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def free(self) -> None:
        """Give back what a section leaves behind."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def peak_gib(self) -> float | None:
        """GiB allocated at the peak since `begin` or `reset_peak`; None on a CPU."""
        if self.device.type != "cuda":
            return None
        return round(torch.cuda.max_memory_allocated(self.device) / 2**30, 3)

    def reset_peak(self) -> None:
        """Begin a new peak, for the next arm of a section."""
        self.free()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def free_gib(self) -> float:
        """GiB that can still be allocated; unlimited on a CPU, whose sizes are tiny."""
        if self.device.type != "cuda":
            return float("inf")
        return torch.cuda.mem_get_info(self.device)[0] / 2**30
