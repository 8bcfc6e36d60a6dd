"""A child process that holds one trial and steps when told: settings and orders come as lines of JSON.

So that a race can take turns: every arm lives in a process of its own (its peak memory is its own), and the
parent lets one step at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.settings import Setting

ROOT = Path(__file__).resolve().parents[1]
# Blocks of 4 MiB and more (weights, gradients, moments, MLP activations) go back to the system when they are freed, so
# that peaks are honest; smaller ones stay with the process. Huge pages: else a step waits for the system's small ones.
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}  # fmt: skip


class Worker:
    """A child with one trial. `step()` waits for one step of it.

    Raises:
        RuntimeError: with the child's last words, if it fails.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", env=environment(setting.threads), cwd=ROOT,
        )  # fmt: skip
        assert child.stdin and child.stdout and child.stderr, "all three are pipes"
        self._child, self._orders, self._answers, self._words = child, child.stdin, child.stdout, child.stderr
        self.base = 0

    def ready(self) -> None:
        """Wait until the model is made. Children that were started together make theirs side by side."""
        self.base = self._ask(self.setting.to_json())["base"]

    def step(self) -> dict[str, float]:
        """One step's seconds by section, and its peak."""
        return self._ask({"order": "step"})

    def close(self) -> None:
        """End the child."""
        self._orders.close()
        self._child.wait(timeout=60)
        self._answers.close()
        self._words.close()

    def _ask(self, order: dict) -> dict:
        try:
            self._orders.write(json.dumps(order) + "\n")
            self._orders.flush()
            return json.loads(self._answers.readline())
        except (ValueError, OSError):
            self._child.kill()
            words = "\n".join(self._words.read().strip().splitlines()[-6:])
            raise RuntimeError(f"the trial {self.setting.name} failed in its process:\n{words}") from None


def environment(threads: int) -> dict[str, str]:
    """Of a child: honest memory, and as many threads as are measured."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **MEMORY, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}


def main() -> None:
    """Read a setting, then orders, until the input ends."""
    from bench.trial import Trial

    out, sys.stdout = sys.stdout, sys.stderr  # a package that prints must not disturb the protocol
    trial = Trial(Setting.from_json(json.loads(sys.stdin.readline())))
    print(json.dumps({"base": trial.base}), file=out, flush=True)
    for _ in sys.stdin:
        print(json.dumps(trial.step()), file=out, flush=True)


if __name__ == "__main__":
    main()
