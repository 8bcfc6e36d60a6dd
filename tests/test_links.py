"""No dead link: files that are linked to exist, and so do the headings. Addresses on the web are not asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT

LINK = re.compile(r"""!?\[[^\]]*\]\(([^)\s]+)(?:\s+"[^"]*")?\)|\b(?:src|href)=["']([^"']+)["']""")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
IGNORED = {".venv", "build", "dist", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".git"}


def pages() -> list[str]:
    """Every page of prose in the project: Markdown files and notebooks."""
    found = [path.relative_to(ROOT) for kind in ("*.md", "*.ipynb") for path in ROOT.rglob(kind)]
    return sorted(path.as_posix() for path in found if not IGNORED & set(path.parts))


def text_of(path: Path) -> str:
    """A page's Markdown, without code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return CODE.sub("", text)


def links(path: Path) -> Iterator[str]:
    """Where a page links to, addresses on the web left out."""
    for match in LINK.finditer(text_of(path)):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as a code host makes them and as JupyterLab does."""
    found: set[str] = set()
    for heading in re.findall(
        r"^#{1,6}\s+(.+?)\s*#*$",
        path.read_text(encoding="utf-8") if path.suffix == ".md" else text_of(path),
        re.M,
    ):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*_]", lambda found: found[1] or "", heading)
        found |= {
            re.sub(r"[^\w\- ]", "", plain).strip().lower().replace(" ", "-"),
            plain.strip().replace(" ", "-"),
        }
    return found


def dead(path: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (
            anchor and target.suffix in (".md", ".ipynb") and anchor not in anchors(target)
        ):
            found.append(link)
        elif name and not target.is_relative_to(ROOT):
            found.append(f"{link} (outside the project)")
    return found


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_somewhere(page: str) -> None:
    assert dead(ROOT / page) == []


def test_a_dead_link_and_a_dead_heading_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tests.test_links.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# One `thing`, two\n[a](#one-thing-two) [b](#three) [c](other.md) ![d](x.png) [e](page.md#one-thing-two)\n"
        "`[f](none.md)` [g](https://example.org)\n",
        encoding="utf-8",
    )
    assert dead(page) == ["#three", "other.md", "x.png"]


def test_the_readme_links_to_every_lesson() -> None:
    linked = set(links(ROOT / "README.md"))
    assert {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")} <= linked


def test_no_page_names_an_address_that_only_its_author_can_open() -> None:
    for page in pages():
        hosts = re.findall(r"\bhttps?://([\w.-]+)", text_of(ROOT / page))
        bad = [host for host in hosts if host.startswith(("localhost", "127.", "10.", "192.168."))]
        assert bad == [], page
