"""Importing the kit costs little beyond torch, and its method needs neither transformers nor a notebook."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SECONDS = 2.0
CODE = """
import json, sys, time
import torch
start, before = time.perf_counter(), set(sys.modules)
import {name}
seconds = time.perf_counter() - start
names = ("transformers", "matplotlib", "IPython", "ipywidgets", "peft", "trl")
heavy = [m for m in names if m in set(sys.modules) - before]
print(json.dumps([seconds, heavy]))
"""


@pytest.mark.parametrize("name", ["logra_lab", "logra_lab.method"])
def test_it_imports_within_two_seconds_of_torch_and_brings_nothing_heavy(name: str) -> None:
    seconds = []
    for _ in range(3):  # the least of three: another process may want the core
        run = [sys.executable, "-c", CODE.format(name=name)]
        taken, heavy = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
        assert heavy == []
        seconds.append(taken)
        if taken < SECONDS:
            break
    assert min(seconds) < SECONDS
