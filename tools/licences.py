"""Write docs/licences.md: every package of the lock, with the licence that it declares itself.

    python -m tools.licences          # after a new lock

Read from the installed packages' metadata. A package that is not installed on this platform, or says nothing there, is
in BY_HAND. Left out: reading licence texts, and what a package bundles.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
FILES = ("requirements.txt", "requirements-optional.txt")
BY_HAND = {
    "apollo-torch": "CC-BY-NC (not for commercial use; parts Apache-2.0)",
    "appnope": "BSD-2-Clause",
    "colorama": "BSD-3-Clause",
    "pywinpty": "MIT",
    "zss": "BSD-style (its LICENSE file)",
}
HEADER = """\
# Licences of the packages that the lock names

Written by `python -m tools.licences` from the packages' own metadata. Each is installed from its own source and none is
part of this repository. The base packages and why they are there: [README](../README.md#dependencies-and-why-each).

| package | version | licence |
|-|-|-|
"""


def main() -> int:
    """Write the page; 1 with their names if packages declare no licence."""
    rows = table()
    PAGE.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8", newline="\n")
    silent = [row for row in rows if "| ? |" in row]
    print(f"{len(rows)} packages; without a licence: {silent or 'none'}", file=sys.stderr)
    return 1 if silent else 0


def table() -> list[str]:
    """A row per package of the lock."""
    found = []
    for requirement in sorted(locked(), key=lambda one: one.name.lower()):
        version = next(iter(requirement.specifier)).version
        found.append(f"| {requirement.name} | {version} | {licence(requirement.name)} |")
    return found


def locked() -> list[Requirement]:
    """What the lock pins."""
    lines = [line for file in FILES for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def licence(name: str) -> str:
    """The licence that an installed package declares, in a few words; "?" if it says nothing."""
    if name in BY_HAND:
        return BY_HAND[name]
    try:
        return declared(metadata(name))
    except PackageNotFoundError:
        return "?"


def declared(about: PackageMetadata) -> str:
    """The licence expression, the classifiers, or a short licence field, in this order; "?" without any."""
    if "License-Expression" in about:
        return about["License-Expression"]
    classifiers = [
        entry.rsplit(" :: ", 1)[-1]
        for entry in about.get_all("Classifier") or ()
        if entry.startswith("License :: ")
    ]
    named = [entry for entry in classifiers if entry != "OSI Approved"]
    if named:
        return ", ".join(named)
    first = about["License"].strip().splitlines()[:1] if "License" in about else []
    text = re.sub(r"\s+", " ", first[0]) if first else ""
    return text if 0 < len(text) <= 60 else "?"


if __name__ == "__main__":
    sys.exit(main())
