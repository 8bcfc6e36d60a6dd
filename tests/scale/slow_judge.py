"""A worker of `MathVerifier` for tests: as math-verify, but an answer that says so takes a minute."""

from __future__ import annotations

import time

from logra_lab.rl.rewards import math_equal


def answer_slowly(pipe) -> None:
    """The conversation of `rewards._answer_questions`."""
    math_equal("1", "1")
    pipe.send("ready")
    while True:
        response, gold = pipe.recv()
        if "slow" in response:
            time.sleep(60)
        pipe.send(math_equal(response, gold))
