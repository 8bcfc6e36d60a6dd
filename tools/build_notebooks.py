"""Build, execute, check and time the notebooks.

    python -m tools.build_notebooks                    # what changed since the last build on this machine
    python -m tools.build_notebooks 03_sketching 05    # these, by name or number, changed or not
    python -m tools.build_notebooks --check            # compare cells with the sources, execute nothing
    python -m tools.build_notebooks --timings          # run every learner's notebook and write TIMINGS.md

`notebooks/sources/NN_name.py` becomes `notebooks/NN_name.ipynb` for the learner and
`notebooks/solutions/NN_name.ipynb` with the exercises solved (the format is described in tools/lesson_source.py).
Both are executed in their own folder. Ids, metadata and timestamps are overwritten and views of widgets dropped, so
that a second build of the same source writes the same bytes, as long as its cells print nothing that varies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.lesson_source import EDITIONS, Cell, Edition, cells
from tools.run_notebook import Usage, execute

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
HASHES = ROOT / "build" / "notebooks.json"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="lessons, by name (03_sketching) or number (03)")
    parser.add_argument("--check", action="store_true", help="compare built cells with the sources")
    parser.add_argument("--timings", action="store_true", help="time the notebooks and write TIMINGS.md")
    chosen = parser.parse_args(arguments)
    paths = sources(chosen.names)
    if chosen.check:
        return report_differences(paths)
    if chosen.timings:
        return write_timings(paths)
    return build_all(paths, always=bool(chosen.names))


def sources(names: list[str]) -> list[Path]:
    """The source files of the named lessons, all of them if none is named."""
    every = sorted((NOTEBOOKS / "sources").glob("[0-9][0-9]_*.py"))
    wanted = {Path(name).stem for name in names}
    unknown = wanted - {path.stem for path in every} - {path.stem[:2] for path in every}
    if unknown:
        raise SystemExit(f"No lesson {sorted(unknown)}. There are: {', '.join(path.stem for path in every)}.")
    return [path for path in every if not wanted or wanted & {path.stem, path.stem[:2]}]


def target(source: Path, edition: Edition) -> Path:
    """Where an edition of a lesson is written."""
    return NOTEBOOKS / ("solutions" if edition == "solution" else "") / f"{source.stem}.ipynb"


def notebook(parts: list[Cell]) -> NotebookNode:
    """A notebook of these cells, not yet executed, with numbered ids and nothing that varies."""
    nodes = []
    for number, cell in enumerate(parts):
        make = new_code_cell if cell.kind == "code" else new_markdown_cell
        metadata = {"tags": list(cell.tags)} if cell.tags else {}
        nodes.append(make(cell.source, id=f"cell-{number:03d}", metadata=metadata))
    return new_notebook(cells=nodes, metadata=METADATA)


# ---------------------------------------------------------------- build


def build_all(paths: list[Path], always: bool) -> int:
    """Build both editions of each lesson that changed (or `always`); returns 1 if one failed."""
    known = json.loads(HASHES.read_text(encoding="utf-8")) if HASHES.exists() else {}
    package = package_hash()
    failed = 0
    for path in paths:
        state = hashlib.sha256(path.read_bytes() + package).hexdigest()
        if not always and known.get(path.stem) == state and not differences(path):
            print(f"{path.stem}: unchanged")
            continue
        if build(path):
            known[path.stem] = state
        else:
            failed = 1
    HASHES.parent.mkdir(exist_ok=True)
    HASHES.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
    return failed


def package_hash() -> bytes:
    """Hash of the package's code: a change there may change what any notebook prints."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "logra_lab").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def build(source: Path) -> bool:
    """Execute and write both editions of one lesson; False if a cell failed (its error is printed)."""
    for edition in EDITIONS:
        path = target(source, edition)
        built = notebook(cells(source.read_text(encoding="utf-8"), edition))
        path.parent.mkdir(exist_ok=True)
        usage = execute(built, path.parent)
        if usage.error:
            print(f"{source.stem} ({edition}) failed:\n{usage.error}", file=sys.stderr)
            return False
        tidy(built)
        path.write_text(nbformat.writes(built) + "\n", encoding="utf-8", newline="\n")
        size = path.stat().st_size / 1000
        print(f"{source.stem} ({edition}): {usage.seconds:.0f} s, peak {usage.peak_mb:.0f} MB, {size:.0f} kB")
    return True


def tidy(built: NotebookNode) -> None:
    """Drop what execution added beside outputs: timings, widget state and widget views."""
    built.metadata = nbformat.from_dict(METADATA)
    for cell in built.cells:
        cell.metadata = nbformat.from_dict(
            {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        )
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_widget_view(output)]


def is_widget_view(output: NotebookNode) -> bool:
    """True for an output that only a live kernel can show."""
    return "application/vnd.jupyter.widget-view+json" in output.get("data", {})


# ---------------------------------------------------------------- check and time


def differences(source: Path) -> list[str]:
    """How the built editions of one lesson differ from its source, as sentences; empty if they don't."""
    found = []
    for edition in EDITIONS:
        path = target(source, edition)
        name = path.relative_to(ROOT).as_posix()
        if not path.exists():
            found.append(f"{name} is missing. Run: make notebooks NAMES={source.stem}")
            continue
        wanted = notebook(cells(source.read_text(encoding="utf-8"), edition)).cells
        there = nbformat.read(path, as_version=4).cells
        if len(wanted) != len(there):
            found.append(f"{name} has {len(there)} cells, its source {len(wanted)}.")
        for ours, theirs in zip(wanted, there):
            if any(ours[key] != theirs.get(key) for key in ("id", "cell_type", "source", "metadata")):
                found.append(
                    f"{name}: {ours['id']} differs from the source. Run: make notebooks NAMES={source.stem}"
                )
    return found


def report_differences(paths: list[Path]) -> int:
    """Print how notebooks differ from their sources; returns 1 if any does."""
    found = [sentence for path in paths for sentence in differences(path)]
    print("\n".join(found) or f"{len(paths)} lessons equal their sources.")
    return 1 if found else 0


def write_timings(paths: list[Path]) -> int:
    """Run each learner's notebook alone and write TIMINGS.md; returns 1 if one failed."""
    rows = []
    for path in paths:
        usage = execute(notebook(cells(path.read_text(encoding="utf-8"), "learner")), NOTEBOOKS)
        print(f"{path.stem}: {usage.seconds:.1f} s, peak {usage.peak_mb:.0f} MB")
        rows.append((path.stem, usage))
    (ROOT / "TIMINGS.md").write_text(timings_page(rows), encoding="utf-8", newline="\n")
    return 1 if any(usage.error for _, usage in rows) else 0


def timings_page(rows: list[tuple[str, Usage]]) -> str:
    """The text of TIMINGS.md."""
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        "# Timings",
        "",
        "Written by `make timings`: each lesson run alone from top to bottom, as the learner gets it, with its",
        "imports. A lesson should take about 25 s, never over 60 s, and stay below 1500 MB.",
        "",
        f"Machine: {where}, torch {version('torch')}.",
        "",
        "| lesson | seconds | peak memory (MB) |",
        "|-|-:|-:|",
    ]
    for name, usage in rows:
        cells_of_row = "failed | " if usage.error else f"{usage.seconds:.1f} | {usage.peak_mb:.0f}"
        lines.append(f"| {name} | {cells_of_row} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
