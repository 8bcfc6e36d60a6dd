"""Who computes what: torch on the CPU, Triton where it can run, and clear words where it can't."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from logra_lab import kernels
from logra_lab.kernels import plain

HAS_TRITON = kernels.triton_available()
needs_triton = pytest.mark.skipif(
    not HAS_TRITON, reason="Triton is not installed here: it runs on Linux only."
)


@pytest.fixture(autouse=True)
def unforced(monkeypatch):
    monkeypatch.delenv("LOGRA_KERNELS", raising=False)


def test_a_tensor_on_the_cpu_goes_to_torch():
    assert kernels.backend(torch.zeros(2)) == "torch"


def test_the_variable_forces_torch(monkeypatch):
    monkeypatch.setenv("LOGRA_KERNELS", "torch")
    assert kernels.backend(torch.zeros(2)) == "torch"


def test_the_variable_forces_triton_in_the_interpreter(interpreter):
    result, _, _ = interpreter.call("logra_lab.kernels", "backend", torch.zeros(2))
    assert result == "triton"


def test_float64_stays_with_torch_even_when_triton_is_forced(interpreter):
    assert interpreter.call("logra_lab.kernels", "backend", torch.zeros(2).double())[0] == "torch"


@needs_triton
def test_triton_on_a_cpu_tensor_without_the_interpreter_is_refused(monkeypatch):
    monkeypatch.setenv("LOGRA_KERNELS", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        kernels.project(torch.zeros(2, 3), (0, 0), 1)


def test_triton_that_is_missing_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setenv("LOGRA_KERNELS", "triton")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="not installed: install it, or unset LOGRA_KERNELS"):
        kernels.backend(torch.zeros(2))


def test_an_unknown_word_in_the_variable_is_refused(monkeypatch):
    monkeypatch.setenv("LOGRA_KERNELS", "cuda")
    with pytest.raises(ValueError, match="'cuda' is neither 'torch' nor 'triton'"):
        kernels.backend(torch.zeros(2))


def test_the_package_imports_and_projects_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, logra_lab.method\n"
        "from logra_lab import kernels\n"
        "assert kernels.project(torch.ones(2, 3), (1, 2), 4).shape == (2, 4)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": "."}, timeout=120
    )


def test_the_callers_own_torch_version_is_taken_where_torch_is_chosen():
    marker = torch.tensor([5.0])
    assert kernels.project(torch.zeros(2, 3), (0, 0), 1, plain=lambda: marker) is marker
    called = []
    weight = torch.ones(2, 3)
    kernels.merge(weight, torch.ones(2, 1), (0, 0), kind="fp32", plain=lambda: called.append(True))
    assert called and torch.equal(weight, torch.ones(2, 3))


def test_without_a_version_of_the_callers_the_twin_is_taken():
    x, weight = torch.randn(4, 40), torch.randn(4, 40)
    assert torch.equal(kernels.project(x, (5, 6), 3), plain.project(x, (5, 6), 3))
    expected = weight.clone()
    plain.merge(expected, torch.ones(4, 2), (5, 6), kind="fp32")
    kernels.merge(weight, torch.ones(4, 2), (5, 6), kind="fp32")
    assert torch.equal(weight, expected)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"kind": "fp8"}, ValueError, "'fp8' is unknown: choose one of fp32, split"),
        ({"kind": "nearest"}, TypeError, "bfloat16 weights, but this one is torch.float32"),
        ({"kind": "split"}, TypeError, "bfloat16 weights, but this one is torch.float32"),
    ],
)
def test_a_kind_that_does_not_fit_is_refused_before_anything_changes(options, error, words):
    weight = torch.ones(3, 3)
    with pytest.raises(error, match=words):
        kernels.merge(weight, torch.ones(3, 1), (0, 0), **options)
    assert torch.equal(weight, torch.ones(3, 3))


def test_split_without_lower_halves_is_refused():
    with pytest.raises(ValueError, match="pass lower="):
        kernels.merge(torch.ones(3, 3).bfloat16(), torch.ones(3, 1), (0, 0), kind="split")
