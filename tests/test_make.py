"""The two commands: the lab really serves, the environment is made once, and what is missing is said plainly."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.lab_server import running_lab
from tools import advice, bootstrap, environment


def test_the_lab_serves_lesson_00_to_who_has_the_token_and_to_nobody_else(tmp_path: Path) -> None:
    with running_lab(tmp_path) as lab:
        assert lab.ask("/api/status")[0] == 200
        assert lab.ask("/api/status", token=None)[0] == 403
        assert lab.ask("/api/status", token="guessed")[0] == 403
        status, folder = lab.ask("/api/contents/notebooks")
        assert status == 200 and "00_start_here.ipynb" in [entry["name"] for entry in folder["content"]]
        assert lab.ask("/api/shutdown", "POST")[0] == 200
        assert lab.process.wait(20) == 0
    log = (tmp_path / "lab.log").read_text(encoding="utf-8")
    assert "/lab/tree/notebooks/00_start_here.ipynb" in log, "the address to open was not printed"
    assert "token=..." in log, "the token is not part of the address"


def test_without_a_screen_the_lab_prints_that_the_address_must_be_opened_by_hand(monkeypatch, capsys) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    called: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "run", lambda command, extra=None: called.append(command) or 0)
    assert bootstrap.lab([]) == 0
    assert "--no-browser" in called[0] and "Open the address" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no root")
@pytest.mark.parametrize("user, allowed", [(0, True), (1000, False)])
def test_root_is_allowed_to_start_the_lab_and_others_need_no_leave(
    monkeypatch, user: int, allowed: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--allow-root" in bootstrap.lab_command()) is allowed


# ---------------------------------------------------------------- what is missing, in words


def test_an_old_python_is_told_which_one_is_needed(monkeypatch) -> None:
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(
        environment.Stop, match=r"This is Python 3\.9, and logra-lab needs Python 3\.11 or newer"
    ):
        environment.find_python((3, 9), "/somewhere/python3")


def test_an_old_python_hands_over_to_a_newer_one_on_the_path(monkeypatch) -> None:
    monkeypatch.setattr(
        environment.shutil, "which", lambda name: "/new/" + name if name == "python3.12" else None
    )
    monkeypatch.setattr(environment, "works", lambda path, module: True)
    assert environment.find_python((3, 9), "/old/python3") == "/new/python3.12"
    assert environment.find_python((3, 11), "/good/python3") == "/good/python3"


NETWORK = "The network can't be reached"
SYMPTOMS = {
    "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution": NETWORK,
    "NewConnectionError('<...>: Failed to establish: [Errno 101] Network is unreachable')": NETWORK,
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": "The disk is full",
    "ERROR: No matching distribution found for torch==2.13.0": "torch==2.13.0",
    "ERROR: Package 'x' requires a different Python: 3.10.1 not in '>=3.11'": "Use Python 3.11",
    "error: command 'gcc' failed: No such file or directory": "C compiler",
    "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...": "certificate",
    "[Errno 13] Permission denied: 'x'": "can't be written",
    "something else broke": "The installation failed: something else broke",
}  # fmt: skip


@pytest.mark.parametrize("output", SYMPTOMS)
def test_what_pip_says_becomes_a_cause_and_a_remedy(output: str) -> None:
    assert SYMPTOMS[output] in advice.explain_install(f"Collecting torch\n{output}\n", 10**12)


def test_a_network_that_fails_is_the_cause_even_if_pip_then_finds_no_distribution() -> None:
    output = "Temporary failure in name resolution\nERROR: No matching distribution found for torch==2.13.0"
    assert NETWORK in advice.explain_install(output, 10**12)


def test_a_disk_without_space_is_the_cause_whatever_pip_says() -> None:
    assert "The disk is full" in advice.explain_install("Killed", 1000)


def test_too_little_space_is_said_before_anything_is_made(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(
        environment.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 2 * 1024**3})
    )
    with pytest.raises(environment.Stop, match="2.0 GiB free"):
        environment.create(sys.executable)
    assert not (tmp_path / ".venv").exists()


def test_a_python_without_venv_is_told_what_to_install() -> None:
    output = "The virtual environment was not created successfully because ensurepip is not available."
    assert "apt install python3-venv" in advice.no_venv(output, "python3")


# ---------------------------------------------------------------- once, quick, and again after a break


@pytest.fixture
def small(monkeypatch, tmp_path: Path) -> Path:
    """A repository in miniature: an environment without packages, and an installer that only counts its calls."""
    for name in environment.INPUTS:
        (tmp_path / name).write_text("", encoding="utf-8")
    venv.create(tmp_path / ".venv", with_pip=False, symlinks=os.name != "nt")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "STAMP", tmp_path / ".venv" / "stamp")
    monkeypatch.setattr(environment, "UNFINISHED", tmp_path / ".venv" / "unfinished")
    monkeypatch.setattr(environment, "works", lambda path, module: True)
    return tmp_path


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """What was done, in order: "create" and "install"."""
    done: list[str] = []
    monkeypatch.setattr(environment, "create", lambda base: done.append("create"))
    monkeypatch.setattr(environment, "install", lambda: done.append("install"))
    return done


def test_a_second_call_installs_nothing_until_the_lock_changes(small: Path, calls: list[str]) -> None:
    environment.ensure_environment()
    environment.ensure_environment()
    assert calls == ["install"]
    (small / "requirements.txt").write_text("x==1\n", encoding="utf-8")
    environment.ensure_environment()
    assert calls == ["install", "install"]


def test_an_interrupted_installation_starts_from_nothing_the_next_time(
    small: Path, calls, monkeypatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            environment.ensure_environment()
    environment.ensure_environment()
    assert calls == ["create", "install"] and environment.up_to_date()


@pytest.mark.parametrize("touched, expected", [(False, ["install"]), (True, ["create", "install"])])
def test_a_failed_download_keeps_the_environment_and_a_half_installed_one_is_made_anew(
    small: Path, calls: list[str], monkeypatch, touched: bool, expected: list[str]
) -> None:
    def failing() -> None:
        raise environment.Stop("no network", touched=touched)

    with monkeypatch.context() as patch:
        patch.setattr(environment, "install", failing)
        with pytest.raises(environment.Stop):
            environment.ensure_environment()
    assert not environment.up_to_date()
    environment.ensure_environment()
    assert calls == expected


def test_an_optional_package_that_fails_is_told_and_the_rest_is_installed(
    small: Path, monkeypatch, capsys
) -> None:
    (small / "requirements-optional.txt").write_text("# why\nbad==1; x\ngood==2\n", encoding="utf-8")
    installed: list[str] = []

    def pip(arguments: list[str], quiet: bool = False) -> None:
        if "bad==1; x" in arguments:
            raise environment.Stop("It needs a C compiler.\nDetails.")
        installed.append(arguments[-1])

    monkeypatch.setattr(environment, "pip", pip)
    environment.install()
    assert installed == ["requirements.txt", "good==2", "."]
    assert "Going on without bad==1. It needs a C compiler." in capsys.readouterr().out


def test_pip_without_a_network_ends_in_one_plain_sentence(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "LOG", tmp_path / "install.log")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    nowhere = ["--index-url", "http://127.0.0.1:9/simple", "--retries", "1", "--timeout", "2"]
    with pytest.raises(environment.Stop, match=NETWORK) as caught:
        environment.pip(
            ["install", "--target", str(tmp_path / "x"), *nowhere, "no-such-package-as-this"], quiet=True
        )
    assert not caught.value.touched and "no-such-package" in (tmp_path / "install.log").read_text(
        encoding="utf-8"
    )


def test_an_unknown_command_names_those_there_are(capsys) -> None:
    assert bootstrap.main(["lap"]) == 1
    assert "There is no command 'lap'" in capsys.readouterr().err


def test_an_old_python_can_read_the_bootstrap_far_enough_to_be_told(repository: Path) -> None:
    import ast

    for name in ("bootstrap.py", "environment.py", "advice.py"):
        ast.parse((repository / "tools" / name).read_text(encoding="utf-8"), feature_version=(3, 6))


def test_make_lists_its_targets_without_an_environment(repository: Path) -> None:
    done = subprocess.run(["make", "help"], cwd=repository, capture_output=True, text=True, check=True)
    assert "make lab" in done.stdout and "make test" in done.stdout
