"""One interpreter for all kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Calls kernels in Triton's interpreter; skips with a sentence where Triton is not installed."""
    pytest.importorskip("triton", reason="Triton is not installed here: it runs on Linux only.")
    child = Interpreter()
    yield child
    child.close()
