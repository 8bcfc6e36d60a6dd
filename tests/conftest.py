"""Settings for every test: no network, threads shared among workers, slow tests on request, a marker per lesson."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = max(1, CORES // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
# Before torch is first imported, here and in the kernels and processes that tests start.
# A worker of xdist inherits what the controller set for itself, so it has to overwrite; waiting threads must sleep,
# since other workers want the core.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
os.environ.setdefault("MPLBACKEND", "agg")

# No connection to another machine, here and in every Python that a test starts; see the file itself.
OFFLINE = str(Path(__file__).resolve().parent / "offline")
if OFFLINE not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (OFFLINE, os.environ.get("PYTHONPATH"))))
runpy.run_path(str(Path(OFFLINE) / "sitecustomize.py"))

LESSON = re.compile(r"(?:lesson_?|/|\[)(\d\d)(?=[_.])")  # in a test's id: a file's name or a parameter


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def gsm8k() -> Path:
    """The folder with real GSM8K files, named by LOGRA_GSM8K; skips with a sentence where there is none."""
    folder = os.environ.get("LOGRA_GSM8K")
    if not folder or not Path(folder).is_dir():
        pytest.skip("No GSM8K files here: set LOGRA_GSM8K to a folder that holds test.jsonl.")
    return Path(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give a lesson's tests its marker, and leave slow tests out unless `-m` speaks of them."""
    for item in items:
        found = LESSON.search(item.nodeid)
        if found and int(found[1]) <= 10:
            item.add_marker(f"lesson{found[1]}")
    if "slow" in config.option.markexpr:
        return
    named = any("::" in argument for argument in config.args)
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow and not named:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
