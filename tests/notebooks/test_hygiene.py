"""What every built notebook must be before a reader sees it."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.notebook_files import FILES, ROOT, code_cells, outputs, read, shown_text

IMAGE_TAG = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(")
LINK = re.compile(r"""\]\(([^)\s]+)[^)]*\)|\b(?:src|href)=["']([^"']+)["']""")
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:home|Users|root|tmp|work|usr|opt|var|private)/|[A-Z]:\\\\?Users")
ABSOLUTE = re.compile(r"^(?:file:|/|localhost|https?://(?:localhost|127\.0\.0\.1))")

pytestmark = pytest.mark.parametrize("file", FILES)


def test_it_was_run_once_from_top_to_bottom(file: str) -> None:
    counts = [cell.execution_count for cell in code_cells(file) if cell.source.strip()]
    assert counts == list(range(1, len(counts) + 1))


def test_no_cell_ended_in_an_error(file: str) -> None:
    assert [output.ename for output in outputs(file) if output.output_type == "error"] == []


def test_nothing_was_written_to_stderr(file: str) -> None:
    assert [output.text for output in outputs(file) if output.get("name") == "stderr"] == []


def test_its_metadata_name_the_kernel_and_nothing_else(file: str) -> None:
    metadata = read(file).metadata
    assert metadata.kernelspec.name == "python3"
    assert set(metadata) == {"kernelspec", "language_info"} and metadata.language_info == {"name": "python"}
    assert all(set(cell.metadata) <= {"tags"} for cell in read(file).cells)


def test_no_output_needs_a_live_kernel(file: str) -> None:
    kinds = {kind for output in outputs(file) for kind in output.get("data", {})}
    assert not [kind for kind in kinds if "widget" in kind]


def test_it_names_no_path_of_the_machine_it_was_built_on(file: str) -> None:
    assert MACHINE_PATH.findall(shown_text(file)) == []


def test_it_installs_nothing(file: str) -> None:
    for cell in code_cells(file):
        assert not re.search(r"^\s*[!%]\s*(?:pip|conda|uv|apt)|pip\s+install", cell.source, re.MULTILINE)


def test_its_links_resolve(file: str) -> None:
    folder = (ROOT / file).parent
    for cell in read(file).cells:
        if cell.cell_type != "markdown":
            continue
        for match in LINK.finditer(cell.source):
            link = match[1] or match[2]
            assert not ABSOLUTE.match(link), f"{link} is an absolute link"
            if not re.match(r"[a-z]+:|#", link):
                assert (folder / link.split("#")[0]).exists(), f"{link} leads nowhere"


def test_each_image_has_alt_text(file: str) -> None:
    for cell in read(file).cells:
        if cell.cell_type == "markdown":
            assert all(alt.strip() for alt in MARKDOWN_IMAGE.findall(cell.source))
    for tag in IMAGE_TAG.findall(shown_text(file)):
        assert re.search(r"""\balt=["'][^"']*\w""", tag), f"an image without alt text: {tag[-60:]}"
    for output in outputs(file):
        bare = [kind for kind in output.get("data", {}) if kind.startswith("image/")]
        assert bare == [], "a bare image has no alt text: show it with logra_lab.lab.plots.show"


def test_it_is_small_enough_to_open_quickly(file: str) -> None:
    assert (ROOT / file).stat().st_size <= 600_000


def test_its_cells_can_be_taken_in(file: str) -> None:
    assert len(read(file).cells) <= 40
    long = [cell.id for cell in code_cells(file) if len(cell.source.splitlines()) > 25]
    assert long == []


def test_every_output_to_compare_is_text(file: str) -> None:
    for cell in code_cells(file):
        if "nbval-check-output" in cell.metadata.get("tags", []):
            assert cell.outputs, f"{cell.id} is to be compared and has no output"


def test_the_builder_left_no_marker_in_it(file: str) -> None:
    text = "\n".join(cell.source for cell in read(file).cells)
    assert not re.search(r"^\s*# (?:SOLUTION|STUB|END)\s*$", text, re.MULTILINE)
