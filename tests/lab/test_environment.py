"""The environment check says what is here and what works, and never fails itself."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import torch

from logra_lab.lab import environment


def test_the_module_prints_versions_device_and_what_works() -> None:
    done = subprocess.run([sys.executable, "-m", "logra_lab"], capture_output=True, text=True, check=True)
    assert f"torch {torch.__version__}" in done.stdout and "Device:" in done.stdout
    assert "lessons 00 to 09" in done.stdout and done.stderr == ""


def test_a_missing_package_is_said_to_be_missing(monkeypatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ("no-such-package-here",))
    assert environment.versions() == {"no-such-package-here": "not installed"}


def test_a_missing_extra_is_named_with_the_way_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(environment, "EXTRAS", (("no_such_module", "flying", "pip install wings"),))
    (extra,) = environment.extras()
    assert not extra.works and extra.because == "pip install wings"


def test_a_small_machine_is_told_before_it_swaps() -> None:
    assert not environment.lessons(2.0).works and "2.0 GiB" in environment.lessons(2.0).because
    assert environment.lessons(8.0).works and environment.lessons(None).works


def test_a_gpu_is_described_and_opens_full_scale(monkeypatch) -> None:
    card = SimpleNamespace(name="Card", total_memory=80 * 1024**3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    assert environment.accelerator() == ("cuda", "2 × Card, 80 GiB each")
    assert environment.full_scale("cuda").works and not environment.full_scale("cpu").works


def test_kernels_name_their_twins_where_triton_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    assert not environment.kernels("cpu").works and "torch twins" in environment.kernels("cpu").because
