"""From a log of births and deaths to phases: running sums by class, the peak, its cause, the timeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from .units import Bytes

POINTS = 400  # of a phase's timeline; more would not be seen in a picture
BLOCKS = 40  # of the largest origins at a peak


@dataclass(eq=False)
class Block:
    """One storage: its bytes, where it came from, and the class it was given."""

    bytes: int
    origin: str
    name: str = "other"


@dataclass(frozen=True)
class Phase:
    """One phase of a step as measured: bytes by class at its peak and at its end, and what made the peak."""

    name: str
    peak: Bytes
    end: Bytes
    cause: str
    process: int | None = None  # the allocator's or the process's own peak, where known
    timeline: list[dict[str, int]] = field(default_factory=list, repr=False)
    largest: list[tuple[str, str, int]] = field(
        default_factory=list, repr=False
    )  # (class, origin, bytes) at the peak

    @property
    def unexplained(self) -> int | None:
        """The process's own figure less the classes; None where the process does not tell."""
        return None if self.process is None else self.process - self.peak.total


def replay(log: list[tuple[int, Block | str]], process: dict[str, int | None]) -> dict[str, Phase]:
    """Phases by name. A phase that occurs several times keeps the occurrence with the higher peak."""
    now: dict[str, int] = {}
    phases: dict[str, Phase] = {}
    recorder: _Recorder | None = None
    for index, (sign, item) in enumerate(log):
        if isinstance(item, str):  # a phase begins or, with "", ends
            if recorder is not None:
                phase = recorder.phase(now, process.get(recorder.name), log)
                known = phases.get(phase.name)
                phases[phase.name] = phase if known is None or phase.peak.total > known.peak.total else known
            recorder = _Recorder(item, now, index) if item else None
            continue
        now[item.name] = now.get(item.name, 0) + sign * item.bytes
        if recorder is not None:
            recorder.see(now, item if sign > 0 else None, index)
    return phases


class _Recorder:
    """The running peak and the timeline of one phase."""

    def __init__(self, name: str, now: dict[str, int], index: int) -> None:
        self.name, self.cause, self.at = name, "what was there when the phase began", index
        self.peak, self.highest = dict(now), sum(now.values())
        self.points = [dict(now)]

    def see(self, now: dict[str, int], born: Block | None, index: int) -> None:
        total = sum(now.values())
        if total > self.highest:
            self.highest, self.peak, self.at = total, dict(now), index
            self.cause = born.origin if born else self.cause
        self.points.append(dict(now))

    def phase(self, now: dict[str, int], process: int | None, log: list[tuple[int, Block | str]]) -> Phase:
        stride = max(1, len(self.points) // POINTS)
        blocks = _largest(log[: self.at + 1])
        return Phase(
            self.name, Bytes(self.peak), Bytes(now), self.cause, process, self.points[::stride], blocks
        )


def _largest(log: list[tuple[int, Block | str]]) -> list[tuple[str, str, int]]:
    """(class, origin, bytes) of what lives at the end of `log`, equal origins together, largest first."""
    alive: dict[int, Block] = {}
    for sign, item in log:
        if isinstance(item, str):
            continue
        if sign > 0:
            alive[id(item)] = item
        else:
            alive.pop(id(item), None)
    sums: dict[tuple[str, str], int] = {}
    for block in alive.values():
        sums[block.name, block.origin] = sums.get((block.name, block.origin), 0) + block.bytes
    ranked = sorted(sums.items(), key=lambda pair: -pair[1])[:BLOCKS]
    return [(name, origin, total) for (name, origin), total in ranked]
