"""What the process itself says: resident memory from the operating system, peaks from the CUDA allocator.

On Linux the figure is anonymous resident memory (RssAnon), whose peak is VmHWM less the mapped files; the kernel's
high-water mark is reset at the start of a phase. File pages (libraries) come in lazily and are no tensor, so they are
left out. Elsewhere the figure is None, and the ledger then says "not available here".

glibc keeps freed blocks and hides differences: measure in a child with `MALLOC_MMAP_THRESHOLD_=262144`
(`run_in_child`), where every block above 256 KiB goes back to the system when it is freed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
CHILD_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TOP_PAD_": "0", "PYTHONHASHSEED": "0"}


def _status() -> dict[str, int]:
    """The memory lines of the process's status, in bytes."""
    with STATUS.open(encoding="utf-8") as lines:
        pairs = [
            line.split() for line in lines if line.startswith(("VmHWM", "RssAnon", "RssFile", "RssShmem"))
        ]
    return {pair[0].rstrip(":"): int(pair[1]) * 1024 for pair in pairs}


def resident_bytes() -> int | None:
    """Anonymous resident memory of this process now, or None where the system does not tell."""
    return _status()["RssAnon"] if STATUS.exists() else None


def give_back() -> None:
    """Collect garbage and hand glibc's free pages back, so that a base read next holds no room for later tensors."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def reset_peak(device: torch.device | None = None) -> bool:
    """Forget the peak so far, the CUDA allocator's or the process's own; False where that is not possible."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        with CLEAR.open("w", encoding="utf-8") as handle:
            handle.write("5")
    except OSError:
        return False
    return True


def peak_bytes(device: torch.device | None = None) -> int | None:
    """The peak since `reset_peak`: allocated bytes on a CUDA device, anonymous resident bytes on the CPU."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    if not STATUS.exists():
        return None
    lines = _status()
    return lines["VmHWM"] - lines["RssFile"] - lines["RssShmem"]


def run_in_child(function: str, argument: dict, *, timeout: float = 600.0, exact: bool = True) -> dict:
    """Call `function` ("package.module:name") with `argument` in a fresh Python and return its dictionary.

    Both travel as JSON. `exact=False` leaves the allocator as a user's notebook has it: faster, and a peak that
    includes freed blocks it keeps. RuntimeError with the child's last lines if it fails, TimeoutError after `timeout`
    seconds.
    """
    command = [sys.executable, "-m", "logra_lab.memory.process", function]
    environment = {**os.environ, **(CHILD_ENVIRONMENT if exact else {})}
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [environment.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command,
            input=json.dumps(argument),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"{function} took longer than {timeout:g} s; pass a larger timeout or a smaller model."
        ) from None
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-6:])
        raise RuntimeError(f"{function} failed in the child process (exit {done.returncode}):\n{tail}")
    return json.loads(done.stdout.splitlines()[-1])


def _child() -> None:
    module, name = sys.argv[1].split(":")
    argument = json.load(sys.stdin)
    result = getattr(importlib.import_module(module), name)(argument)
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    _child()
