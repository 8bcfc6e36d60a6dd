"""The whole-course check: a fresh clone, both commands, every lesson and every check, in an hour or so.

    make verify                       # or: python3 tools/verify.py [--into FOLDER] [--keep] [--from COMMIT]

Clones what is committed into an empty folder; runs `make lab` there, which makes the environment, and asks the server
for lesson 00 with the token and without; then runs `.ci/run`, which is style, types, spelling, notebooks against their
sources, the slow tests (solution notebooks among them) and the default ones. Standard library only.

Left out: an empty machine image, which is whatever this is started in; packages come from pip's cache if there is one
(PIP_NO_CACHE_DIR=1: not).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LESSON = "00_start_here.ipynb"
INSTALL_SECONDS = 3600.0


@dataclass(frozen=True)
class Outcome:
    """One step: its name, how long it took, and what went wrong (None if nothing did)."""

    name: str
    seconds: float
    trouble: str | None = None

    def __str__(self) -> str:
        return f"{'ok    ' if self.trouble is None else 'FAILED'}  {self.seconds:7.0f} s  {self.name}" + (
            f": {self.trouble}" if self.trouble else ""
        )


class Failed(Exception):
    """A step that did not do what it should, in words."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do every step, stop at the first that fails, print what was done; 0 if all held."""
    parser = argparse.ArgumentParser(
        prog="make verify", description="A fresh clone, both commands, everything."
    )
    parser.add_argument("--into", type=Path, help="an empty or new folder (default: a temporary one)")
    parser.add_argument("--from", dest="commit", default="HEAD", help="which commit (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the clone afterwards")
    options = parser.parse_args(arguments)
    folder = (options.into or Path(tempfile.mkdtemp(prefix="logra-lab-"))) / "logra-lab"
    steps: list[tuple[str, Callable[[], None]]] = [
        ("a fresh clone", lambda: clone(ROOT, folder, options.commit)),
        ("make lab: environment, server, lesson 00", lambda: lab(folder)),
        ("a second make is quick", lambda: quick(folder)),
        (".ci/run: lint, slow tests, tests, lessons", lambda: call([str(folder / ".ci" / "run")], folder)),
        ("the clone is as it was committed", lambda: unchanged(folder)),
    ]
    outcomes = carry_out(steps)
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n" + "\n".join(map(str, outcomes)))
    return 0 if len(outcomes) == len(steps) and outcomes[-1].trouble is None else 1


def carry_out(steps: Sequence[tuple[str, Callable[[], None]]]) -> list[Outcome]:
    """The outcomes of the steps, in order, up to the first that fails."""
    outcomes: list[Outcome] = []
    for name, step in steps:
        print(f"== {name}", flush=True)
        started, trouble = time.monotonic(), None
        try:
            step()
        except (Failed, OSError) as error:
            trouble = str(error)
        outcomes.append(Outcome(name, time.monotonic() - started, trouble))
        if trouble is not None:
            break
    return outcomes


def clone(source: Path, folder: Path, commit: str = "HEAD") -> None:
    """Clone the repository at `source` into `folder`, at `commit`; what is not committed stays behind."""
    if folder.exists() and any(folder.iterdir()):
        raise Failed(f"{folder.name} is not empty: choose another folder with --into")
    call(["git", "clone", "--quiet", "--no-hardlinks", str(source), str(folder)], source)
    found = subprocess.run(["git", "rev-parse", commit], cwd=source, capture_output=True, text=True)
    if found.returncode:
        raise Failed(f"there is no commit {commit!r}")
    call(["git", "checkout", "--quiet", "--detach", found.stdout.strip()], folder)


def lab(folder: Path, command: Sequence[str] = ("make", "lab"), seconds: float = INSTALL_SECONDS) -> None:
    """Start the lab, wait for its answer, ask for lesson 00 with its token and without, and end it."""
    port, token = free_port(), secrets.token_hex(16)
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"JUPYTER_TOKEN": token, "JUPYTER_PORT": str(port)}
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        answered(f"http://127.0.0.1:{port}", token, process, seconds)
        ask(f"http://127.0.0.1:{port}/api/shutdown", token, "POST")
        if process.wait(60):
            raise Failed(f"the lab ended with status {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()


def answered(address: str, token: str, process: subprocess.Popen, seconds: float) -> None:
    """Return once the server lists lesson 00 to who has the token, and to nobody else."""
    end = time.monotonic() + seconds
    while ask(f"{address}/api/status", token)[0] != 200:
        if process.poll() is not None:
            raise Failed(f"the lab ended before it answered, with status {process.returncode}")
        if time.monotonic() > end:
            raise Failed(f"the lab did not answer within {seconds:.0f} s")
        time.sleep(0.5)
    if ask(f"{address}/api/status", "guessed")[0] != 403:
        raise Failed("the lab answers without its token")
    names = [
        entry["name"] for entry in json.loads(ask(f"{address}/api/contents/notebooks", token)[1])["content"]
    ]
    if LESSON not in names:
        raise Failed(f"the lab does not list {LESSON}")


def ask(address: str, token: str, method: str = "GET") -> tuple[int, str]:
    """Status and body of a request to the server's API; (0, "") if nobody answers."""
    request = urllib.request.Request(address, method=method, data=b"" if method == "POST" else None)
    request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode("utf-8")
    except urllib.error.HTTPError as refusal:
        return refusal.code, ""
    except OSError:
        return 0, ""


def quick(folder: Path, seconds: float = 30.0) -> None:
    """A second `make env` finds everything there."""
    started = time.monotonic()
    call(["make", "env"], folder)
    if time.monotonic() - started > seconds:
        raise Failed(f"make env took more than {seconds:.0f} s although everything was there")


def unchanged(folder: Path) -> None:
    """Nothing that is committed was changed by the run, and nothing new lies about."""
    done = subprocess.run(["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True)
    if done.stdout.strip():
        raise Failed("the run changed " + ", ".join(line[3:] for line in done.stdout.splitlines()[:5]))


def call(command: Sequence[str], folder: Path) -> None:
    """Run a command with this terminal; Failed if it does not end well."""
    status = subprocess.call(command, cwd=folder)
    if status:
        raise Failed(f"{Path(command[0]).name} {' '.join(command[1:3])} ended with status {status}")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
