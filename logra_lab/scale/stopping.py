"""Ctrl-C and SIGTERM that end all processes of a run after the same step."""

from __future__ import annotations

import contextlib
import signal

from logra_lab.rl.interrupt import StopRequest
from logra_lab.scale.world import World


class AgreedStop(StopRequest):
    """A stop that all processes see after the same step; SIGTERM, which schedulers send, counts as Ctrl-C."""

    def __init__(self, world: World) -> None:
        self.world, self._here = world, False
        super().__init__()

    @property
    def requested(self) -> bool:
        """Whether any process was asked to stop; every process must look equally often."""
        return self.world.anywhere(self._here)

    @requested.setter
    def requested(self, value: bool) -> None:
        self._here = value

    def __enter__(self) -> AgreedStop:
        super().__enter__()
        with contextlib.suppress(ValueError):  # not the main thread
            self._term = signal.signal(signal.SIGTERM, self._on_interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        with contextlib.suppress(ValueError, AttributeError):
            signal.signal(signal.SIGTERM, self._term)

    def _on_interrupt(self, *_: object) -> None:
        if self._here:
            raise KeyboardInterrupt
        self._here = True
