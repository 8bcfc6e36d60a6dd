"""The pieces of `make verify`: a clone holds what is committed, the lab is really asked, a failure stops the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab_server import TOKEN, running_lab
from tools import bootstrap, verify


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with one committed file and one that is not."""
    folder = tmp_path / "source"
    folder.mkdir()
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], cwd=folder, check=True)
    (folder / "page.md").write_text("one\n", encoding="utf-8")
    subprocess.run([*git, "add", "page.md"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "First"], cwd=folder, check=True)
    (folder / "page.md").write_text("two\n", encoding="utf-8")
    (folder / "stray.txt").write_text("x\n", encoding="utf-8")
    return folder


def test_a_clone_holds_what_is_committed_and_nothing_else(small: Path, tmp_path: Path) -> None:
    verify.clone(small, tmp_path / "clone")
    assert (tmp_path / "clone" / "page.md").read_text(encoding="utf-8") == "one\n"
    assert not (tmp_path / "clone" / "stray.txt").exists()
    verify.unchanged(tmp_path / "clone")
    (tmp_path / "clone" / "left.txt").write_text("x", encoding="utf-8")
    with pytest.raises(verify.Failed, match="the run changed left.txt"):
        verify.unchanged(tmp_path / "clone")


def test_a_folder_that_holds_something_is_not_cloned_into(small: Path) -> None:
    with pytest.raises(verify.Failed, match="is not empty: choose another folder"):
        verify.clone(small, small)
    with pytest.raises(verify.Failed, match="no commit 'nowhere'"):
        verify.clone(small, small.parent / "other", "nowhere")


def test_the_first_step_that_fails_is_the_last_and_its_reason_is_told(capsys) -> None:
    def broken() -> None:
        raise verify.Failed("the moon is in the way")

    done: list[str] = []
    outcomes = verify.carry_out(
        [("one", lambda: None), ("two", broken), ("three", lambda: done.append("three"))]
    )
    assert [outcome.trouble for outcome in outcomes] == [None, "the moon is in the way"] and done == []
    assert "FAILED" in str(outcomes[1]) and "ok" in str(outcomes[0]) and "== two" in capsys.readouterr().out


def test_a_command_that_fails_is_named_with_its_status(tmp_path: Path) -> None:
    verify.call([sys.executable, "-c", "pass"], tmp_path)
    with pytest.raises(verify.Failed, match="ended with status 3"):
        verify.call([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_a_running_lab_answers_for_lesson_00(tmp_path: Path) -> None:
    with running_lab(tmp_path) as lab:
        verify.answered(lab.url, TOKEN, lab.process, 5)


def test_the_labs_own_command_is_started_asked_and_ended(tmp_path: Path, monkeypatch) -> None:
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    verify.lab(bootstrap.ROOT, [*bootstrap.lab_command(), "--no-browser"], 90)


def test_a_lab_that_ends_or_never_answers_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(verify.Failed, match="the lab ended before it answered, with status 4"):
        verify.lab(tmp_path, [sys.executable, "-c", "raise SystemExit(4)"], 20)
    with pytest.raises(verify.Failed, match="the lab did not answer within 1 s"):
        verify.lab(tmp_path, [sys.executable, "-c", "import time; time.sleep(60)"], 1)


def test_a_server_without_a_token_is_a_failure(tmp_path: Path) -> None:
    class Open:
        returncode = None

        def poll(self) -> None:
            return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "ask", lambda address, token, method="GET": (200, "{}"))
        with pytest.raises(verify.Failed, match="answers without its token"):
            verify.answered("http://127.0.0.1:1", "t", Open(), 1)


def test_every_target_that_ci_calls_exists(repository: Path) -> None:
    text = (repository / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    for target in ("lint", "test-slow", "test"):
        assert f"make {target}" in text and target in makefile
    assert "verify" in makefile
