"""A JupyterLab started as `make lab` starts it, for tests: on a free port, without a browser, stopped at the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import bootstrap

TOKEN = "a-token-for-this-test-only"
START_SECONDS = 90


@dataclass(frozen=True)
class Lab:
    """A running server: its address and token, and its process."""

    url: str
    token: str
    process: subprocess.Popen

    def ask(self, path: str, method: str = "GET", token: str | None = TOKEN) -> tuple[int, Any]:
        """Status and decoded answer of a request to the server's API; status 0 if nobody answers."""
        request = urllib.request.Request(
            f"{self.url}{path}", method=method, data=b"" if method == "POST" else None
        )
        if token:
            request.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                body = answer.read()
                return answer.status, json.loads(body) if body else None
        except urllib.error.HTTPError as refusal:
            return refusal.code, None
        except OSError:
            return 0, None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_lab(home: Path, root: Path | None = None, start: str | None = None) -> Iterator[Lab]:
    """Start JupyterLab with `make lab`'s own command, its settings kept under `home`, on `root` if another is given."""
    port = free_port()
    command = bootstrap.lab_command(root or bootstrap.ROOT, start or bootstrap.START)
    command += [
        "--no-browser",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.ip=127.0.0.1",
    ]
    folders = {
        name: str(home / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    }
    folders |= {
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }
    with (home / "lab.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=root or bootstrap.ROOT,
            env={**os.environ, **folders, "JUPYTER_TOKEN": TOKEN},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    lab = Lab(f"http://127.0.0.1:{port}", TOKEN, process)
    try:
        wait_until_up(lab, home / "lab.log")
        yield lab
    finally:
        stop(lab)


def wait_until_up(lab: Lab, log: Path) -> None:
    """Return once the server answers; raises with its log if it ends or takes too long."""
    end = time.monotonic() + START_SECONDS
    while lab.ask("/api/status")[0] != 200:
        if lab.process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text(encoding='utf-8')[-3000:]}")
        time.sleep(0.2)


def stop(lab: Lab) -> None:
    """Ask the server to shut down, and end it if it does not."""
    lab.ask("/api/shutdown", "POST")
    try:
        lab.process.wait(15)
    except subprocess.TimeoutExpired:
        lab.process.kill()
        lab.process.wait(10)
