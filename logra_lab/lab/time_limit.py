"""Stop a call that takes too long, so that an endless loop in an exercise ends with a sentence.

Interrupts Python loops on every platform, and on Linux and macOS also a sleeping call. It can't interrupt one long call
into compiled code (a huge matrix product): that one ends by itself or with the notebook's stop button.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator


class TimeLimitReached(BaseException):
    """The call took longer than it may; not an Exception, so that `except Exception` in the call lets it pass."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitReached inside the block once `seconds` have passed; keeps a timer that was already set."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        with _alarm(seconds):
            yield
    else:
        with _raised_from_outside(seconds):
            yield


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """The limit by the system's timer; rings again each half second in case a bare `except` swallowed it."""

    def ring(*_: object) -> None:
        raise TimeLimitReached

    before = signal.signal(signal.SIGALRM, ring)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, remaining, interval)


@contextlib.contextmanager
def _raised_from_outside(seconds: float) -> Iterator[None]:
    """The limit by a second thread that plants the exception in this one between two steps of Python."""
    thread = ctypes.c_ulong(threading.get_ident())
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeLimitReached))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
