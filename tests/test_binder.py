"""The Binder and conda set: every spec can be read, it is one truth with the base dependencies, pip installs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.sources import ROOT
from tests.test_lock import EVERY, project

LESSONS = sorted((ROOT / "notebooks").glob("0*.ipynb"))
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
FILES = ("environment.yml", "binder/environment.yml")
# A conda match spec as this file uses it: a name, then nothing or versions joined by commas. "=" means "=3.11.*".
SPEC = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]*)(?P<versions>(?:(?:==|>=|<=|!=|<|>|=)[0-9][0-9a-z.*]*,?)*)")
CONDA_NAMES = {"pytorch-cpu": "torch", "matplotlib-base": "matplotlib"}


def environment(file: str) -> dict:
    """The parsed file."""
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))


def conda_spec(text: str) -> Requirement:
    """A conda match spec as a requirement under pip's name; ValueError for one that can't be read."""
    found = SPEC.fullmatch(text)
    if found is None or found["versions"].endswith(","):
        raise ValueError(f"{text!r} is no match spec")
    versions = re.sub(r"(?<![=<>!])=(?!=)([0-9.]+)", r"==\1.*", found["versions"])
    SpecifierSet(versions)
    return Requirement(f"{CONDA_NAMES.get(found['name'], found['name'])}{versions}")


def specs(file: str) -> list[Requirement]:
    """Every requirement of the file: conda's, then pip's."""
    entries = environment(file)["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    return [conda_spec(entry) for entry in entries if isinstance(entry, str)] + [
        Requirement(text) for text in pip
    ]


@pytest.mark.parametrize("file", FILES)
def test_every_spec_can_be_read_and_names_a_package_once(file: str) -> None:
    names = [requirement.name for requirement in specs(file)]
    assert len(names) == len(set(names)) and {"python", "pip"} <= set(names)
    assert set(environment(file)) == {"name", "channels", "dependencies"}
    assert environment(file)["channels"] == ["conda-forge"]


@pytest.mark.parametrize(
    "text", ["torch>=", "torch 2", "To rch", "torch>=2,", "torch=>2", "torch>=2;linux", ""]
)
def test_a_spec_that_conda_could_not_read_is_found(text: str) -> None:
    with pytest.raises(ValueError):
        conda_spec(text)


def test_the_set_holds_each_base_dependency_with_the_same_bounds_and_what_the_lock_pins_fits() -> None:
    found = {requirement.name: requirement for requirement in specs(FILES[0])}
    for wanted in map(Requirement, project()["dependencies"]):
        assert found[wanted.name].specifier == wanted.specifier, str(wanted)
        assert next(iter(EVERY[wanted.name].specifier)).version in found[wanted.name].specifier
    extra = set(found) - {Requirement(text).name for text in project()["dependencies"]}
    assert extra == {"python", "pip"}
    assert "3.11" in found["python"].specifier and "3.11" in SpecifierSet(project()["requires-python"])


def test_binder_and_the_root_have_one_truth() -> None:
    assert environment(FILES[0]) == environment(FILES[1])


def test_binder_installs_the_package_caps_threads_and_opens_lab_with_its_token() -> None:
    build, start = (ROOT / "binder" / name for name in ("postBuild", "start"))
    assert "pip install --no-deps --editable ." in build.read_text(encoding="utf-8")
    text = start.read_text(encoding="utf-8")
    assert "OMP_NUM_THREADS=2" in text and text.rstrip().endswith('exec "$@"')
    assert "token" not in text, "Binder gives a token, and nothing here may take it away"
    for script in (build, start):
        assert os.access(script, os.X_OK) and script.read_text(encoding="utf-8").startswith(
            "#!/usr/bin/env bash"
        )
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_every_lesson_was_measured_below_the_memory_that_binder_gives() -> None:
    rows = re.findall(
        r"^\| (\d\d)_\S+ \| [\d.]+ \| (\d+) \|", (ROOT / "TIMINGS.md").read_text(encoding="utf-8"), re.M
    )
    assert [number for number, _ in rows] == [f"{n:02}" for n in range(11)]
    assert all(int(peak) < 1500 for number, peak in rows if number != "10")


def new_environment(folder: Path, packages: list[str]) -> tuple[str, dict[str, str]]:
    """A clean environment in `folder` with `packages`: its Python, and variables without anything of ours.

    Skips where the packages can't be had.
    """
    venv.create(folder, with_pip=True)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    ours = ("PYTHONPATH", "HF_HUB_OFFLINE", "VIRTUAL_ENV")
    clean = {key: value for key, value in os.environ.items() if key not in ours}
    done = subprocess.run([python, *PIP, *packages], env=clean, capture_output=True, text=True)
    if done.returncode and re.search(
        r"resolution|unreachable|connection|No matching distribution", done.stderr
    ):
        pytest.skip(f"The packages can't be had from here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return python, clean


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_repo2docker_makes_a_recipe_of_the_binder_folder(tmp_path: Path) -> None:
    python, clean = new_environment(tmp_path / "env", ["jupyter-repo2docker"])  # it needs no Docker for this
    options = ["--no-build", "--debug", "--user-id", "1000", "--user-name", "x"]
    command = [python, "-m", "repo2docker", *options, "."]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=120)
    recipe = done.stdout + done.stderr
    assert done.returncode == 0, recipe[-2000:]
    for line in ('--file "binder/environment.yml"', "RUN ./binder/postBuild", "binder/start"):
        assert line in recipe


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """The set in its versions of the lock and the package, installed by pip: as Binder does with conda."""
    wanted = [
        r
        for r in specs(FILES[0])
        if r.name not in ("python", "pip") and (r.marker is None or r.marker.evaluate())
    ]
    pins = [f"{r.name}=={next(iter(EVERY[r.name].specifier)).version}" for r in wanted]
    python, clean = new_environment(tmp_path_factory.mktemp("set") / "env", pins)
    subprocess.run([python, *PIP, "--no-deps", str(ROOT)], env=clean, check=True, capture_output=True)
    return python, clean


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_pip_installs_the_set_in_a_clean_environment_and_nothing_is_missing(
    installed: tuple[str, dict[str, str]],
) -> None:
    python, clean = installed
    done = subprocess.run([python, "-m", "pip", "check"], env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lesson", LESSONS, ids=[path.stem for path in LESSONS])
def test_the_lesson_runs_to_its_end_on_the_base_set_alone(
    lesson: Path, installed: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    python, clean = installed
    notebooks = shutil.copytree(
        lesson.parent, tmp_path / "notebooks"
    )  # a learner's own folder, away from here
    command = [python, "-m", "jupyter", "execute", lesson.name]
    done = subprocess.run(command, cwd=notebooks, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
