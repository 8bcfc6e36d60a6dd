"""Make .venv hold the lock and the package: once, quickly when nothing changed, and again after a break.

Standard library only, readable by any Python 3. A stamp makes a second call quick: a hash of the requirement files,
of pyproject.toml and of the Python, written when everything has succeeded. After an interrupted installation the
environment is made again from nothing (downloads are kept by pip). What to say when something fails is in advice.py.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from tools import advice

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "logra-lab.stamp"
UNFINISHED = VENV / "logra-lab.unfinished"
LOG = ROOT / "build" / "install.log"
OLDEST = (3, 11)
SUITABLE = ("python3.11", "python3.12", "python3.13", "python3.14")
INPUTS = ("requirements.txt", "requirements-optional.txt", "pyproject.toml")
# Files of JupyterLab's settings in the environment: no pop-up that asks the network for news, and no extension that
# only the notebook builder uses.
LAB_SETTINGS = {
    "share/jupyter/lab/settings/overrides.json": {
        "@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"}
    },
    "etc/jupyter/labconfig/page_config.json": {"disabledExtensions": {"jupyterlab-jupytext": True}},
    "etc/jupyter/jupyter_server_config.d/zz-logra-lab.json": {
        "ServerApp": {"jpserver_extensions": {"jupyterlab_jupytext": False}}
    },
}


class Stop(Exception):
    """What is missing, in words for the person at the keyboard; `touched` if an installation broke off half-way."""

    def __init__(self, words: str, touched: bool = False) -> None:
        super().__init__(words)
        self.touched = touched


def python() -> str:
    """Path of the environment's Python."""
    return str(VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def ensure_environment() -> None:
    """Make or complete .venv so that it holds the lock and the package; returns at once when it already does."""
    if up_to_date():
        return
    base = find_python(sys.version_info[:2], sys.executable)
    if UNFINISHED.exists() or not works(python(), "pip"):
        create(base)
    UNFINISHED.write_text("an installation began and did not end\n", encoding="utf-8")
    if STAMP.exists():
        STAMP.unlink()
    try:
        install()
    except Stop as stop:
        if not stop.touched:
            UNFINISHED.unlink()
        raise
    write_lab_settings()
    STAMP.write_text(fingerprint(), encoding="utf-8")
    UNFINISHED.unlink()


def up_to_date() -> bool:
    """True if the stamp matches the files and the Python that are there now."""
    if UNFINISHED.exists() or not STAMP.exists():
        return False
    return STAMP.read_text(encoding="utf-8") == fingerprint()


def fingerprint() -> str:
    """Hash of everything the environment is made from, and where the repository lies."""
    digest = hashlib.sha256()
    for name in INPUTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        digest.update(text.partition("\n[tool.ruff")[0].encode("utf-8"))  # settings of tools install nothing
    answer = ask(python(), "import sys; print(sys.version)")
    digest.update(("%s\n%s" % (answer, ROOT)).encode("utf-8"))
    return digest.hexdigest()


def find_python(version: Tuple[int, int], executable: str) -> str:
    """A Python that is new enough: this one, or the first suitable one on the path."""
    if version >= OLDEST:
        return executable
    for name in SUITABLE:
        path = shutil.which(name)
        if path and works(path, "ensurepip"):
            return path
    raise Stop(advice.python_too_old(version, OLDEST))


def works(path: str, module: str) -> bool:
    """True if this Python starts, is new enough and has `module`."""
    return ask(path, "import sys, %s; print(sys.version_info >= %r)" % (module, OLDEST)) == "True"


def ask(path: str, code: str) -> Optional[str]:
    """What a Python prints for a line of code, None if it can't."""
    try:
        done = subprocess.run(
            [path, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8").strip() if done.returncode == 0 else None


def create(base: str) -> None:
    """Make an empty .venv with `base`, in place of whatever lies there."""
    trouble = advice.little_space(shutil.disk_usage(str(ROOT)).free)
    if trouble:
        raise Stop(trouble)
    print("Making the environment in .venv with %s. The first time takes some minutes." % base)
    done = subprocess.run(
        [base, "-m", "venv", "--clear", str(VENV)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise Stop(advice.no_venv(done.stdout.decode("utf-8", "replace"), base))


def install() -> None:
    """Install the lock, the optional packages one by one, and this package in place."""
    pip(["install", "--requirement", "requirements.txt"])
    for line in (ROOT / "requirements-optional.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            try:
                pip(["install", "--no-deps", line], quiet=True)
            except Stop as stop:
                print("Going on without %s. %s" % (line.split(";")[0], str(stop).splitlines()[0]))
    pip(["install", "--no-deps", "--no-build-isolation", "--editable", "."])


def pip(arguments: List[str], quiet: bool = False) -> None:
    """Run pip, show its lines and keep them in build/install.log; raises Stop with what to do."""
    command = [python(), "-m", "pip", "--disable-pip-version-check"] + arguments
    pipes: Dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "universal_newlines": True,
    }
    LOG.parent.mkdir(exist_ok=True)
    lines = []
    with LOG.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=str(ROOT), **pipes)
        for line in process.stdout or ():
            lines.append(line)
            log.write(line)
            if not quiet and not line.startswith("Requirement already"):
                sys.stdout.write(line)
                sys.stdout.flush()
    if process.wait():
        output = "".join(lines)
        words = advice.explain_install(output, shutil.disk_usage(str(ROOT)).free)
        raise Stop(words, touched="Installing collected packages" in output)


def write_lab_settings() -> None:
    """Write LAB_SETTINGS into the environment."""
    for name, settings in LAB_SETTINGS.items():
        path = VENV / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=2), encoding="utf-8")
