"""Runs Triton kernels on the CPU in one child process, where the interpreter is switched on before Triton loads.

The switch is read when a kernel is defined, so that the tests' own process stays as it was. Tensors travel as
bytes, with their strides.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context

import torch


class Interpreter:
    """A child process that calls functions of `logra_lab.kernels` under `TRITON_INTERPRET=1`."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_interpret)

    def call(self, module: str, function: str, *args, **kwargs):
        """`(result, args, kwargs)` as the call left them: arguments changed in place come back changed."""
        return _unpack(self._pool.submit(_call, module, function, _pack((args, kwargs))).result(timeout=120))

    def close(self) -> None:
        """End the child."""
        self._pool.shutdown()


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["LOGRA_KERNELS"] = "triton"
    torch.set_num_threads(1)


def _call(module: str, function: str, packed: bytes) -> bytes:
    args, kwargs = _unpack(packed)
    result = getattr(import_module(module), function)(*args, **kwargs)
    return _pack((result, args, kwargs))


def _pack(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(packed: bytes):
    return torch.load(io.BytesIO(packed), weights_only=True)
