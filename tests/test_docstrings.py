"""Every public name of the package says in words what it is, and in types what it takes and gives."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

import pytest

from tests.sources import ROOT

PACKAGES = ("method", "rl", "memory", "kernels", "scale")
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for path in (ROOT / "logra_lab" / package).rglob("*.py")
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Triton traces these as source: their arguments are pointers and compile-time constants, which annotations can't say.
TRACED = ("triton.jit", "jit")


def faults(tree: ast.Module) -> Iterator[str]:
    """What a file's public names lack."""
    if not ast.get_docstring(tree):
        yield "the file has no docstring"
    yield from _of(tree, "")


def _of(holder: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for node in holder.body:
        if not isinstance(node, Definition) or node.name.startswith("_") or _waived(node):
            continue
        if not ast.get_docstring(node):
            yield f"{prefix}{node.name} (line {node.lineno}) has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from _of(node, f"{prefix}{node.name}.")
        elif missing := _unannotated(node, method=isinstance(holder, ast.ClassDef)):
            yield f"{prefix}{node.name} (line {node.lineno}) has no annotation of {', '.join(missing)}"


def _waived(node: Definition) -> bool:
    names = [ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list]
    return any(name in TRACED or name.endswith((".setter", "overload")) for name in names)


def _unannotated(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> list[str]:
    named = node.args
    arguments = [
        *named.posonlyargs,
        *named.args,
        *named.kwonlyargs,
        *filter(None, (named.vararg, named.kwarg)),
    ]
    if method and arguments and arguments[0].arg in ("self", "cls"):
        arguments = arguments[1:]
    missing = [argument.arg for argument in arguments if argument.annotation is None]
    return missing + (["what it returns"] if node.returns is None else [])


@pytest.mark.parametrize("file", FILES)
def test_its_public_names_are_documented_and_annotated(file: str) -> None:
    assert list(faults(ast.parse((ROOT / file).read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_can_be_imported_and_explains_itself(package: str) -> None:
    module = importlib.import_module(f"logra_lab.{package}")
    assert module.__doc__
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if callable(value) and value.__module__.startswith("logra_lab"):
            assert value.__doc__, f"logra_lab.{package}.{name} has no docstring"


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        '"""D."""\ndef f(x: int) -> int:\n    return x',
        '"""D."""\ndef f(x) -> int:\n    """D."""',
        '"""D."""\ndef f(x: int):\n    """D."""',
        '"""D."""\nclass A:\n    """D."""\n    def f(self) -> int:\n        return 1',
        '"""D."""\ndef f(*x, **y) -> int:\n    """D."""',
    ],
)
def test_the_search_finds_what_is_missing(code: str) -> None:
    assert list(faults(ast.parse(code)))
