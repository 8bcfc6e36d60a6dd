"""The fixture `lesson`: open a built notebook in JupyterLab in Chromium, or skip and say what is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder carries the marker `browser`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@pytest.fixture
def lesson(tmp_path: Path) -> Callable[[str | Path], AbstractContextManager]:
    """`with lesson("03_sketching") as page:` opens a copy of that notebook (or of the file at a path)."""
    pytest.importorskip("playwright", reason="Playwright is not installed: pip install playwright.")
    from tests.browser.lab_page import CHROMIUM, open_lesson

    if CHROMIUM is None:
        pytest.skip(
            "No Chromium on the path: install one (Debian: apt install chromium) to run browser tests."
        )

    def start(notebook: str | Path) -> AbstractContextManager:
        path = notebook if isinstance(notebook, Path) else ROOT / "notebooks" / f"{notebook}.ipynb"
        return open_lesson(path, ROOT / "data", tmp_path, ROOT / "build" / "screenshots")

    return start
