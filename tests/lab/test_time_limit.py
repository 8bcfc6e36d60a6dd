"""The time limit, on the main thread and on another."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from logra_lab.lab.time_limit import TimeLimitReached, time_limit


def spin() -> None:
    """Loop for ever in Python."""
    while True:
        pass


def test_a_loop_on_the_main_thread_is_stopped() -> None:
    with pytest.raises(TimeLimitReached), time_limit(0.1):
        spin()


def test_a_loop_on_another_thread_is_stopped() -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            with time_limit(0.1):
                spin()
        except TimeLimitReached:
            seen.append("stopped")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert seen == ["stopped"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timer")
def test_a_bare_except_that_swallows_the_first_ring_is_stopped_by_a_later_one() -> None:
    def stubborn() -> None:
        try:
            spin()
        except:  # noqa: E722
            spin()

    with pytest.raises(TimeLimitReached), time_limit(0.1):
        stubborn()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timer")
def test_a_timer_that_was_running_before_runs_on() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    waiting = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with time_limit(5):
            pass
        time.sleep(0.5)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *waiting)
    assert rung == [1]


def test_a_quick_call_is_left_alone() -> None:
    with time_limit(5):
        value = sum(range(10))
    time.sleep(0.01)
    assert value == 45
