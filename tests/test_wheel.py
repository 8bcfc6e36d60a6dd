"""The package can be built and used away from this repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_imports_from_it(repository: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        repository / "logra_lab", source / "logra_lab", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), "."], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("logra_lab-*.whl")
    modules = {path.relative_to(source).as_posix() for path in (source / "logra_lab").rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        assert modules <= set(archive.namelist())
        archive.extractall(tmp_path / "elsewhere")
    code = "import logra_lab.method; print(logra_lab.method.__file__)"
    run = [
        sys.executable,
        "-P",
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path / 'elsewhere')!r}); {code}",
    ]
    done = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "elsewhere")
