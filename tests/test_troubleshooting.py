"""Each entry has symptom, cause and cure, and quotes messages that the code really prints."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.sources import ROOT, SOURCES

PAGE = (ROOT / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (.+)\n((?:(?!^##).*\n?)*)", PAGE, re.MULTILINE))
OBSERVED = ('"The loss is 0"',)  # what a trainer's log shows, not what anybody prints
PRINTED = [*SOURCES, "tests/conftest.py", "tests/offline/sitecustomize.py"]


def texts(file: str) -> str:
    """Every text in a file's code, neighbours joined, what a format fills in cut out."""
    found = []
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            found.append("\0".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found)


CODE = re.sub(r"%[.\d]*[srdf]|\{\w+\}", "\0", "\n".join(texts(file) for file in PRINTED))


def pieces(message: str) -> list[str]:
    """The parts of a quoted message that the code must hold: all but numbers, names, colons and ellipses."""
    parts = re.split(r"…|: |\d+(?:\.\d+)*|\w+-\w+==", message)
    return [part.strip() for part in parts if len(part.strip()) > 6]


def test_the_page_has_its_entries() -> None:
    assert len(ENTRIES) >= 20 and PAGE.count("### ") == len(ENTRIES)


@pytest.mark.parametrize("title", ENTRIES)
def test_an_entry_says_why_and_what_to_do(title: str) -> None:
    assert re.search(r"^\*\*Cause\.\*\* \S", ENTRIES[title], re.MULTILINE), "no cause"
    assert re.search(r"^\*\*Cure\.\*\* \S", ENTRIES[title], re.MULTILINE), "no cure"


@pytest.mark.parametrize("title", [title for title in ENTRIES if '"' in title and title not in OBSERVED])
def test_a_quoted_message_is_one_that_the_code_prints(title: str) -> None:
    for message in re.findall(r'"([^"]+)"', title):
        wanted = pieces(message)
        assert wanted, f"{message!r} is too short to be found"
        for piece in wanted:
            assert piece in CODE, f"nothing in the code says {piece!r}"


def test_a_message_that_nobody_prints_is_found() -> None:
    assert all(piece not in CODE for piece in pieces("The moon is in the way of 3 satellites"))


def test_every_make_target_that_is_advised_exists() -> None:
    targets = set(re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    pages = [ROOT / name for name in ("README.md", "TROUBLESHOOTING.md", "CONTRIBUTING.md")]
    for page in pages:
        for command in re.findall(r"`make (?:[A-Z]+=\S+ )?([a-z-]+)", page.read_text(encoding="utf-8")):
            assert command in known, f"{Path(page).name} advises `make {command}`"
