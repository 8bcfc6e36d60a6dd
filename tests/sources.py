"""The Python files that this project ships, and names in their syntax trees, for tests that read code."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("logra_lab", "tools", "bench", "notebooks/sources")
SOURCES = sorted(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
)


def name_of(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute; "" for anything else in front keeps the last part, as in `.load`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return ""
