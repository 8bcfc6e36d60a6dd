"""The package can be built and used away from this repository, its data with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from setuptools import find_packages

from logra_lab import data_files
from logra_lab.data_files import located
from tests.sources import ROOT

USE = """
import sys
sys.path.insert(0, sys.argv[1])
import logra_lab.data_files
from logra_lab.lab.lesson07 import recorded
from logra_lab.rl.policy import load_policy
print(logra_lab.data_files.__file__)
print(load_policy("data/tiny-math").model.num_parameters(), sorted(recorded())[0])
"""


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("logra_lab", "data"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(folder), "."], cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("logra_lab-*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_all_data(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "logra_lab").rglob("*.py")}
    data = {f"logra_lab/{path.relative_to(ROOT).as_posix()}" for path in tracked("data")}
    assert modules | data <= set(wheel.namelist())


@pytest.mark.slow
def test_elsewhere_it_finds_its_model_and_its_recorded_runs(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "there")
    command = [sys.executable, "-P", "-c", USE, str(tmp_path / "there")]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    place, words = done.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path / "there")
    assert int(words.split()[0]) > 100_000


def tracked(folder: str) -> list[Path]:
    """The files under `folder` that belong to the repository: none of a run that is still going on."""
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if not (path.parent.name == "runs" and path.suffix == ".jsonl")]


def test_every_package_and_every_kind_of_data_file_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert set(listed["packages"]) == {*find_packages(str(ROOT), include=["logra_lab*"]), "logra_lab.data"}
    patterns = listed["package-data"]["logra_lab.data"]
    matched = {path for pattern in patterns for path in (ROOT / "data").glob(pattern)}
    assert set(tracked("data")) <= matched


def test_data_is_found_from_any_folder_and_a_folder_of_ones_own_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("data/tiny-math") == ROOT / "data" / "tiny-math"
    (tmp_path / "data" / "tiny-math").mkdir(parents=True)
    assert located("data/tiny-math") == Path("data/tiny-math")


def test_inside_an_installed_package_its_own_data_comes_before_a_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "logra_lab"
    for folder in (package / "data" / "runs", package.parent / "data" / "runs"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(data_files, "PACKAGE", package)
    monkeypatch.chdir(tmp_path)
    assert located("data/runs") == package / "data" / "runs"


@pytest.mark.parametrize("path", ["org/name", "data/nothing-of-ours", "logra_lab/method", "."])
def test_what_is_not_the_kits_data_passes_through(path: str) -> None:
    assert located(path).as_posix() == path
