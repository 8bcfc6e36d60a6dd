"""The lock pins everything pyproject.toml asks for, is what is installed here, and knows other platforms."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FILES = ("requirements.txt", "requirements-optional.txt")
ROOT = Path(__file__).resolve().parents[1]


def pins(file: str) -> dict[str, Requirement]:
    """The requirements of one file by canonical name."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in wanted}


LOCK = {file: pins(file) for file in FILES}
EVERY = {**LOCK[FILES[1]], **LOCK[FILES[0]]}


def project() -> dict:
    """pyproject.toml's project table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("file", FILES)
def test_every_package_is_pinned_to_one_version_and_named_once(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text(encoding="utf-8").splitlines() if "==" in line]
    assert len(lines) == len(LOCK[file])
    for requirement in LOCK[file].values():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], str(requirement)
        assert requirement.url is None


def test_the_lock_fulfils_every_requirement_of_the_project() -> None:
    wanted = project()["dependencies"] + sum(project()["optional-dependencies"].values(), [])
    for requirement in map(Requirement, wanted):
        pin = EVERY[canonicalize_name(requirement.name)]
        assert Version(next(iter(pin.specifier)).version) in requirement.specifier, (
            f"{pin} against {requirement}"
        )


def test_what_is_installed_here_is_what_the_lock_says() -> None:
    for name, requirement in LOCK["requirements.txt"].items():
        if requirement.marker is None or requirement.marker.evaluate():
            assert Version(version(name)) in requirement.specifier


def test_optional_packages_are_installed_in_their_pinned_version_or_not_at_all() -> None:
    for name, requirement in LOCK["requirements-optional.txt"].items():
        try:
            assert Version(version(name)) in requirement.specifier
        except PackageNotFoundError:
            continue


@pytest.mark.parametrize(
    "system, absent, present",
    [
        (
            "darwin",
            ["triton", "bitsandbytes", "galore-torch", "apollo-torch", "pywinpty"],
            ["appnope", "pexpect"],
        ),
        ("win32", ["triton", "bitsandbytes", "pexpect", "ptyprocess"], ["colorama", "pywinpty"]),
        ("linux", ["pywinpty", "appnope"], ["triton", "pexpect", "galore-torch"]),
    ],
)
def test_markers_keep_packages_to_the_platforms_they_exist_on(system: str, absent, present) -> None:
    here = {"sys_platform": system}
    needed = {name for name, pin in EVERY.items() if pin.marker is None or pin.marker.evaluate(here)}
    assert needed.isdisjoint(absent) and needed.issuperset(present)


def test_triton_is_the_one_that_the_cuda_build_of_torch_asks_for() -> None:
    # torch 2.13.0's CUDA wheels for Linux require exactly triton 3.7.1; another pin could not be installed there.
    pair = {name: next(iter(EVERY[name].specifier)).version for name in ("torch", "triton")}
    assert pair == {"torch": "2.13.0", "triton": "3.7.1"}


def test_binder_and_conda_share_one_environment() -> None:
    ours, binders = (
        (ROOT / "environment.yml").read_bytes(),
        (ROOT / "binder" / "environment.yml").read_bytes(),
    )
    assert ours == binders
    text = ours.decode("utf-8")
    for requirement in map(Requirement, project()["dependencies"]):
        assert requirement.name.replace("torch", "pytorch-cpu") in text and str(requirement.specifier) in text
