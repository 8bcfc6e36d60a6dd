"""Two gloo processes train as one does, replicated and sharded; checkpoints resume at the other world size."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.multiprocessing as multiprocessing
from transformers import AutoModelForCausalLM, AutoTokenizer

from logra_lab.rl.checkpoint import CheckpointError
from logra_lab.scale.saving import save_pretrained
from logra_lab.scale.world import World, WrongWorld, start_world
from tests.scale import train_ranks as ranks


@pytest.fixture(scope="module")
def model(repository) -> str:
    return str(repository / "data" / "tiny-math")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model):
    """One process writes the checkpoint that two will resume."""
    folder = tmp_path_factory.mktemp("trainers")
    one = ranks.trainer(model, World(), folder / "one", **ranks.SPLIT)
    ranks.steps(one, 2)
    one.save()
    return folder


@pytest.fixture(scope="module")
def both(folder, model) -> list[dict]:
    multiprocessing.spawn(ranks.main, (str(folder), model), nprocs=ranks.WORLD)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks.WORLD)]


def moved(weights: dict, start: dict) -> float:
    return torch.stack([(weights[name] - start[name]).norm() for name in start]).norm().item()


def assert_like_one_process(pair: list[dict], one: dict, start: dict, tolerance: float) -> None:
    """Both ranks hold the same; the distance to one process is a small part of the way that training went."""
    first, second = pair
    assert all(torch.equal(first["weights"][name], second["weights"][name]) for name in start)
    assert first["metrics"] == second["metrics"] and first["baseline"] == second["baseline"]
    assert moved(first["weights"], one["weights"]) < tolerance * moved(one["weights"], start)
    for mine, theirs in zip(first["metrics"], one["metrics"], strict=True):
        assert mine["status"] == theirs["status"] == "updated"
        for name in ("reward", "right", "length", "no_signal"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-6), name
        for name in ("predicted_kl", "scale", "sketch_norm", "budget"):
            assert mine[name] == pytest.approx(theirs[name], rel=max(tolerance, 1e-4)), name


def start_of(model: str, **options) -> dict:
    return ranks.weights(ranks.trainer(model, World(), **options))


@pytest.mark.parametrize("kind", ["replicated", "fsdp"])
def test_two_processes_take_the_steps_of_one(both, model, kind):
    one = ranks.steps(ranks.trainer(model, World()), 3)
    assert_like_one_process([result[kind] for result in both], one, start_of(model), 1e-3)


def test_sharding_with_checkpointing_changes_nothing(both, model):
    one = ranks.steps(ranks.trainer(model, World()), 1)
    assert_like_one_process([result["fsdp, checkpointing"] for result in both], one, start_of(model), 1e-3)


def test_split_halves_sharded_by_rows_train_as_whole_ones(both, model):
    one = ranks.steps(ranks.trainer(model, World(), **ranks.SPLIT), 2)
    assert_like_one_process([result["split"] for result in both], one, start_of(model, **ranks.SPLIT), 0.1)
    whole = [target.rows for target in ranks.trainer(model, World()).arm.optimizer.targets]
    assert [sum(rows) for rows in zip(*(result["local rows"] for result in both), strict=True)] == whole
    assert all(rows < total for rows, total in zip(both[0]["local rows"], whole, strict=True))


def test_a_checkpoint_of_two_resumes_in_one_exactly_and_goes_on(both, folder, model):
    one = ranks.trainer(model, World(), folder / "two", True, **ranks.SPLIT)
    assert one.step == 2 and one.arm.optimizer.updates == 2
    saved, further = both[0]["split"], both[0]["split, after its checkpoint"]
    assert all(torch.equal(value, saved["weights"][name]) for name, value in ranks.weights(one).items())
    assert one.baseline == saved["baseline"]
    after = ranks.steps(one, 1)
    assert moved(after["weights"], further["weights"]) < 0.1 * moved(further["weights"], saved["weights"])


def test_a_checkpoint_of_one_resumes_in_two(both, folder, model):
    one = ranks.trainer(model, World(), folder / "one", True, **ranks.SPLIT)
    start, result = ranks.weights(one), both[0]["resumed from one"]
    after = ranks.steps(one, 1)
    assert result["start"] == one.step - 1 == 2
    assert moved(result["weights"], after["weights"]) < 0.1 * moved(after["weights"], start)


def test_one_process_resumes_bit_for_bit(folder, model, tmp_path):
    whole = ranks.trainer(model, World(), tmp_path / "run", **ranks.SPLIT)
    ranks.steps(whole, 2)
    whole.save()
    expected = ranks.steps(whole, 1)
    again = ranks.steps(ranks.trainer(model, World(), tmp_path / "run", True, **ranks.SPLIT), 1)
    assert all(torch.equal(value, again["weights"][name]) for name, value in expected["weights"].items())
    assert again["metrics"] == expected["metrics"]


def test_the_saved_model_holds_the_full_precision_value_of_the_shards(both, folder):
    saved = AutoModelForCausalLM.from_pretrained(folder / "exported")
    assert type(saved).__name__ == "LlamaForCausalLM" and saved.dtype == torch.float32
    for name, value in both[0]["split"]["weights"].items():
        assert torch.equal(saved.get_submodule(name).weight, value)
    assert AutoTokenizer.from_pretrained(folder / "exported")("1+2=")["input_ids"]
    assert json.loads((folder / "exported" / "config.json").read_text())["architectures"] == [
        "LlamaForCausalLM"
    ]


def test_held_out_problems_are_shared_and_their_rates_agree(both, model):
    one = ranks.trainer(model, World())
    ranks.steps(one, 3)
    for result in both:
        assert result["passes"]["found"]["pass@1"] == pytest.approx(one.evaluate_passes()["pass@1"], abs=0.2)
        assert result["passes"]["found"]["problems"] == 7
        assert result["passes"]["accuracy"]["greedy"] == pytest.approx(one.evaluate(None)["greedy"], abs=0.03)
    assert both[0]["passes"] == both[1]["passes"]
    assert both[0]["passes under fsdp"] == both[1]["passes under fsdp"]


def test_a_stop_in_one_process_ends_both_after_the_same_step(both, folder):
    assert [result["stop"]["status"] for result in both] == ["interrupted"] * 2
    assert both[0]["stop"]["step"] == both[1]["stop"]["step"] < 4
    lines = (folder / "stopped" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(both[0]["stop"]["step"] + 1))


def test_runs_that_do_not_fit_their_processes_are_refused_in_both(both):
    for result in both:
        refused = result["refused"]
        assert "prompts=15 can't be shared equally by 2 processes; use prompts=16" in refused["prompts"]
        assert "the processes differ in configuration (rank 0: " in refused["configurations"]
        assert "can't measure the KL" in refused["measured KL"]
        for engine in ("vllm", "server", "colocated"):
            assert "takes weights from one trainer process, and here are 2; start one" in refused[engine]
            assert "engine='worker' with a worker for each" in refused[engine]


def test_a_folder_with_a_run_is_not_written_over(folder, model):
    with pytest.raises(FileExistsError, match="pass resume=True or use another folder"):
        ranks.trainer(model, World(), folder / "one", **ranks.SPLIT)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder / "one", tmp_path / "copy")


def test_other_settings_are_refused_on_resume(copy, model):
    with pytest.raises(CheckpointError, match="was written by configuration"):
        ranks.trainer(model, World(), copy, True, rank=4, **ranks.SPLIT)


def test_how_a_run_is_cut_over_cards_may_change_on_resume(copy, model):
    assert (
        ranks.trainer(
            model, World(), copy, True, micro_batch=8, rollouts=3, halves="host", **ranks.SPLIT
        ).step
        == 2
    )


def flipped(file) -> None:
    """One bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def emptied(file) -> None:
    """A block of zeros at the end, as a crash may leave it; the length stays."""
    data = file.read_bytes()
    file.write_bytes(data[:-512] + bytes(512))


DAMAGE = {
    "short": (
        "*.distcp",
        lambda file: file.write_bytes(file.read_bytes()[:-100]),
        "NAME has .* bytes, it was written",
    ),
    "missing": ("*.distcp", lambda file: file.unlink(), "NAME is missing, it was written with"),
    "flipped": ("*.distcp", flipped, "NAME is not as it was written .its SHA-256 differs"),
    "emptied": ("*.distcp", emptied, "NAME is not as it was written .its SHA-256 differs"),
    "index": (".metadata", flipped, "NAME is not as it was written .its SHA-256 differs"),
    "state": ("../state.json", lambda file: file.write_text('{"step": 2, "conf'), "NAME.* is not JSON"),
    "number": (
        "../state.json",
        lambda file: file.write_text(file.read_text().replace('"step": 2', '"step": 3')),
        "is damaged: NAME has the digest",
    ),
    "headless": ("../state.json", lambda file: file.unlink(), "is damaged: NAME is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_found_by_file_and_nothing_is_written_over(copy, model, damage):
    where, harm, words = DAMAGE[damage]
    file = next(next(copy.glob("step-*")).glob(f"shards/{where}")).resolve()
    harm(file)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    told = words.replace("NAME", file.name.replace(".", "[.]"))
    with pytest.raises(CheckpointError, match=f"{told}.*no other checkpoint.*nothing was written over"):
        ranks.trainer(model, World(), copy, True, **ranks.SPLIT)
    assert before == {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}


def test_the_remedy_names_the_checkpoint_before(model, tmp_path):
    made = ranks.trainer(model, World(), tmp_path / "run", **ranks.SPLIT)
    for _ in range(2):
        ranks.steps(made, 1)
        made.save()
    flipped(next((tmp_path / "run" / "step-000002" / "shards").glob("*.distcp")))
    with pytest.raises(
        CheckpointError, match="step-000002 is damaged.*move it away and resume from step-000001"
    ):
        ranks.trainer(model, World(), tmp_path / "run", True, **ranks.SPLIT)
    shutil.move(tmp_path / "run" / "step-000002", tmp_path / "away")
    assert ranks.trainer(model, World(), tmp_path / "run", True, **ranks.SPLIT).step == 1


def test_a_saved_model_is_not_written_over(model, tmp_path):
    one = ranks.trainer(model, World())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="choose another folder"):
        save_pretrained(one.policy, one.arm.optimizer, tmp_path / "model", World())
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["notes.txt"]


def test_a_half_described_world_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(WrongWorld, match="RANK.* is not set; start with torchrun --nproc-per-node 4"):
        start_world()
