"""Ctrl-C that waits for the step to end, so that no checkpoint is taken of half an update."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopRequest:
    """Inside, the first interrupt sets `.requested`; the second raises KeyboardInterrupt as usual.

    Only the main thread can receive interrupts; elsewhere this changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_interrupt(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
