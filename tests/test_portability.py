"""No shell, no guessed encoding, one place that picks the device: the same code on Linux, macOS and Windows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from logra_lab.scale import device as devices
from logra_lab.scale.device import choose_device
from tests.sources import ROOT, SOURCES, name_of

TEXT_METHODS = ("read_text", "write_text")


def unnamed_encodings(tree: ast.AST) -> Iterator[int]:
    """Lines that open a text file without naming its encoding."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        last, words = name.rsplit(".", 1)[-1], [word.arg for word in node.keywords]
        if last in TEXT_METHODS:
            place = 1 if last == "write_text" else 0
            if "encoding" not in words and len(node.args) <= place and not _own(name, node):
                yield node.lineno
        elif (
            (name == "open" or name.endswith(".open")) and not _binary(node, name) and "encoding" not in words
        ):
            yield node.lineno


def _own(name: str, node: ast.Call) -> bool:
    return name == "read_text" and bool(node.args)  # logra_lab.rl.reading.read_text(path)


def _binary(node: ast.Call, name: str) -> bool:
    """Whether the file is opened in a binary mode, or is none (os.open, zipfile, webbrowser)."""
    modes = [
        argument for argument in [*node.args, *[word.value for word in node.keywords if word.arg == "mode"]]
    ]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    others = ("os.open", "webbrowser.open", "tarfile.open", "Image.open")  # files of other kinds, or none
    return name in others or any(re.fullmatch(r"[rwax]?\+?b\+?|[rwax]b\+?", text) for text in texts)


@pytest.mark.parametrize("file", SOURCES)
def test_every_text_file_is_opened_with_its_encoding_named(file: str) -> None:
    lines = list(unnamed_encodings(ast.parse((ROOT / file).read_text(encoding="utf-8"))))
    assert lines == [], f"{file} opens a text file without encoding= in lines {lines}"


@pytest.mark.parametrize(
    "code", ["open('x')", "p.open('w')", "p.read_text()", "p.write_text('x')", "open('x', mode='a')"]
)
def test_the_search_finds_a_guessed_encoding(code: str) -> None:
    assert list(unnamed_encodings(ast.parse(code))) == [1]


def test_the_search_lets_named_encodings_and_bytes_pass() -> None:
    code = "open('x', 'rb')\np.open('wb')\np.read_text(encoding='utf-8')\np.write_text('x', 'utf-8')\nos.open(p, 0)"
    assert list(unnamed_encodings(ast.parse(code))) == []


@pytest.mark.parametrize("file", SOURCES)
def test_no_path_of_one_system_is_written_into_the_code(file: str) -> None:
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            assert not re.match(r"/(?:tmp|home|usr|var|dev|bin)\b|[A-Z]:\\", node.value), (
                f"{file}:{node.lineno}"
            )


@pytest.mark.parametrize("file", [file for file in SOURCES if not file.startswith("notebooks")])
def test_the_unix_only_is_asked_for_before_it_is_used(file: str) -> None:
    """`resource`, `fcntl`, `pwd` and `os.nice` and the like are missing on Windows."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for node in tree.body:  # at the top of a file nothing can be asked
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not {"resource", "fcntl", "pwd", "grp", "termios"} & set(names), f"{file}:{node.lineno}"
    text = (ROOT / file).read_text(encoding="utf-8")
    for call in ("os.geteuid", "os.nice", "os.sched_getaffinity", "os.fork"):
        if f"{call}(" in text:
            asked = call.split(".")[1]
            assert f'hasattr(os, "{asked}")' in text, f"{file} uses {call} without asking whether it is there"


def test_an_apple_gpu_is_chosen_with_fp32_and_says_why(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    choice = choose_device()
    assert (choice.device.type, choice.dtype, choice.precision) == ("mps", torch.float32, "fp32")
    assert "Apple" in choice.because and "fp32" in choice.because


def test_a_card_without_bf16_gets_fp32_and_refuses_bf16_with_the_reason(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    choice = choose_device()
    assert (choice.device.type, choice.dtype) == ("cuda", torch.float32)
    assert "Tesla T4 has no bf16" in choice.because
    with pytest.raises(ValueError, match="Tesla T4 has no bf16"):
        choose_device(dtype="bf16")


def test_no_other_file_asks_for_a_device_and_picks_a_type_by_it() -> None:
    askers = {
        file
        for file in SOURCES
        if file.startswith("logra_lab/")
        and "get_device_capability" in (ROOT / file).read_text(encoding="utf-8")
    }
    assert askers == {Path(devices.__file__).resolve().relative_to(ROOT).as_posix()}


def test_the_route_without_make_is_written_down() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "TROUBLESHOOTING.md").read_text(
        encoding="utf-8"
    )
    for words in (
        "conda env create -f environment.yml",
        "conda activate logra-lab",
        "python tools/bootstrap.py lab",
    ):
        assert words in text, f"nobody is told of `{words}`"
