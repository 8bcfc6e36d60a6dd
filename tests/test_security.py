"""What code, data or a stranger could use to run something: none of it is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, SOURCES, name_of
from tools import bootstrap

# A call by its dotted name, and what makes it safe: a keyword with this value, or nothing at all (None).
FORBIDDEN: dict[str, tuple[str, object] | None] = {
    "pickle.load": None, "pickle.loads": None, "pickle.Unpickler": None, "dill.load": None, "joblib.load": None,
    "marshal.load": None, "marshal.loads": None, "shelve.open": None, "pandas.read_pickle": None,
    "torch.load": ("weights_only", True), "yaml.load": None, "yaml.unsafe_load": None, "torch.hub.load": None,
    "eval": None, "exec": None, "compile": None, "os.system": None, "os.popen": None,
}  # fmt: skip
# The hub's loaders run code of a model's repository only if asked to: we never ask.
HUB = ("from_pretrained", "from_config", "load_dataset", "pipeline")


def faults(tree: ast.AST) -> Iterator[str]:
    """Every forbidden call in a file, as `line: name`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, given = name_of(node.func), {word.arg: word.value for word in node.keywords}
        rule = FORBIDDEN.get(name, ())
        if rule is None or (rule and not _is(given.get(rule[0]), rule[1])):
            yield f"{node.lineno}: {name}"
        if name == "numpy.load" or name == "np.load":
            if "allow_pickle" in given and not _is(given["allow_pickle"], False):
                yield f"{node.lineno}: {name} with allow_pickle"
        if name.rsplit(".", 1)[-1] in HUB and "trust_remote_code" in given:
            if not _is(given["trust_remote_code"], False):
                yield f"{node.lineno}: {name} with trust_remote_code"
        if "shell" in given and not _is(given["shell"], False):
            yield f"{node.lineno}: {name} with shell"


def _is(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize("file", SOURCES)
def test_a_file_neither_unpickles_nor_runs_what_it_reads(file: str) -> None:
    found = list(faults(ast.parse((ROOT / file).read_text(encoding="utf-8"))))
    assert found == [], f"{file} line {found[0]}"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.load(f)",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=flag)",
        "yaml.load(f)",
        "eval(text)",
        "exec(text)",
        "os.system('x')",
        "subprocess.run('x', shell=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=trust)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_the_search_finds_what_it_should(code: str) -> None:
    assert list(faults(ast.parse(code)))


def test_the_search_lets_safe_calls_pass() -> None:
    code = "torch.load(f, weights_only=True)\nmodel.eval()\nre.compile(x)\ntorch.compile(m)\nX.from_pretrained(n)"
    assert list(faults(ast.parse(code))) == []


@pytest.mark.parametrize(
    "name", ["; touch ran", "$(touch ran)", "../../etc/passwd", "--upload-pack=touch ran", "`touch ran`"]
)
def test_the_name_of_a_model_is_looked_up_and_never_run(name: str, tmp_path: Path, monkeypatch) -> None:
    from logra_lab.scale.loading import CannotLoad, read_config

    monkeypatch.chdir(tmp_path)
    with pytest.raises((CannotLoad, ValueError, OSError)):
        read_config(name)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_brings_code_is_refused_and_its_code_not_run(tmp_path: Path) -> None:
    from logra_lab.scale.loading import CannotLoad, read_config

    (tmp_path / "config.json").write_text(
        '{"model_type": "ours", "auto_map": {"AutoConfig": "configuration_ours.Ours"}}', encoding="utf-8"
    )
    code = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    (tmp_path / "configuration_ours.py").write_text(code, encoding="utf-8")
    with pytest.raises((CannotLoad, ValueError)):
        read_config(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_the_lab_is_started_with_its_token_for_this_machine_only() -> None:
    command = " ".join(bootstrap.lab_command()).lower()
    for word in ("token=", "password=", "disable_check_xsrf", "allow_origin", "allow_remote_access", "ip="):
        assert word not in command, f"{word} weakens what protects the lab"
