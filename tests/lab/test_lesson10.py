"""What lesson 10 draws and says: plans that fit or not, the dashboard, the interrupt, dense runs, recorded runs."""

from __future__ import annotations

import json
import re

import pytest
import torch

from logra_lab.lab import lesson10, lesson10_live, lesson10_trainers
from logra_lab.lab.lesson10_live import LivePlot, dashboard, summary
from logra_lab.rl.interrupt import StopRequest
from logra_lab.scale.fitting import TooLarge
from logra_lab.scale.presets import preset


def history(steps=3, measured=False):
    lines = [{"step": 0, "accuracy": 0.3, "greedy": 0.3}]
    for step in range(1, steps + 1):
        lines.append({
            "step": step, "right": 0.3 + 0.1 * step, "predicted_kl": 1e-3, "budget": 2e-3, "scale": 1.5,
            "measured_kl": 9e-4 if measured else None, "total_tokens_per_second": 120.0,
            **({"accuracy": 0.5} if step == steps else {}),
        })  # fmt: skip
    return lines


def test_every_row_of_the_table_says_whether_it_fits():
    rows = lesson10.fit_rows()
    assert len(rows) == 12 and {row["model"] for row in rows} == set(lesson10.MODELS)
    assert all(row["plan"] is None or row["plan"].fits(row["card"]) for row in rows)
    assert any(row["plan"] is None for row in rows) and any(row["dense"] for row in rows)
    lines = lesson10.fit_table(rows).splitlines()
    assert (
        len(lines) == 13
        and len({line.find("does not fit", 90) for line in lines if "does not fit" in line[90:]}) == 1
    )


@pytest.mark.parametrize(
    ("model", "card", "words"),
    [
        ("7B", "80 GB", "LoGRA fits with"),
        ("27B", "24 GB", "LoGRA is"),
        ("1.5B", "141 GB", "dense AdamW fits too"),
    ],
)
def test_the_plan_picture_says_what_it_shows(model, card, words):
    picture = lesson10.plan_picture(model, card)
    assert words in picture.caption and card in picture.caption and picture.caption in picture.alt


def test_a_higher_rank_leaves_less_room():
    def room(rank):
        return float(
            lesson10.plan_picture("7B", "80 GB", rank).caption.split("fits with ")[1].split(" GiB")[0]
        )

    assert room(16) > room(64) > room(256)


def test_the_dashboard_draws_what_was_measured_and_nothing_else():
    memory = {"weights": 2**22, "gradients": 2**18}
    with_measure, without = (dashboard(history(measured=m), 5, memory) for m in (True, False))
    labels = [[line.get_label() for line in p.figure.axes[1].get_lines()] for p in (with_measure, without)]
    assert labels == [["budget", "predicted", "measured"], ["budget", "predicted"]]
    assert (
        "Step 3 of 5: 60% of the step's answers are right, 50% of held-out ones (30% before)"
        in without.caption
    )
    assert "1.0e-03 of 2.0e-03 allowed" in without.caption and "tokens/s" not in without.caption
    assert "nothing has been trained yet" in dashboard([{"step": 0, "accuracy": 0.3}], 5, memory).caption


def test_speed_and_time_left_are_told_where_time_is_known():
    assert "120 tokens/s, 0:20 left" in summary(history(3), 5, elapsed=30.0)
    assert "0:20 left" in summary(
        history(3), 5, elapsed=10.0, since=2
    )  # resumed after step 2: one step, ten seconds
    assert "left" not in summary(history(3), 5, elapsed=10.0, since=3)


class FakeTrainer:
    """A run that is looked at."""

    def __init__(self):
        self.config = preset("tiny", steps=5).run
        self.step = 0
        self.log = type("Log", (), {"history": history(2)})()
        self.arm = type("Arm", (), {"memory": staticmethod(lambda: {"weights": 2**20})})()


def test_the_live_plot_redraws_and_presses_stop_where_told(monkeypatch):
    shown = []
    handle = type("Handle", (), {"update": lambda self, html: shown.append(html.data)})()
    monkeypatch.setattr(
        "IPython.display.display", lambda html, display_id: (shown.append(html.data), handle)[1]
    )
    trainer = FakeTrainer()
    live = LivePlot(trainer, seconds=0.0, stop_at=2)
    with StopRequest() as stop:
        live({"step": 1})
        assert not stop.requested
        live({"step": 2})
        assert stop.requested
    assert len(shown) == 3 and all("<figcaption>" in html and "alt=" in html for html in shown)
    assert lesson10_live.summary(trainer.log.history, 5).startswith("Step 2 of 5")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("tried to allocate 20 GiB"),
        TooLarge("does not fit by 3 GiB"),
        MemoryError("no more"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"
        ),
    ],
)
def test_a_dense_run_that_runs_out_of_memory_is_a_result(error):
    def make():
        raise error

    assert lesson10.dense_steps(make).startswith("dense AdamW: out of memory (" + str(error))


def test_another_error_of_a_dense_run_is_an_error():
    def make():
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        lesson10.dense_steps(make)


def test_27b_on_one_card_is_predicted_and_derived_and_marked_so():
    text = "\n".join(lesson10.one_card_rows())
    assert text.count("predicted:") == text.count("derived:") == 2 and "measured" not in text
    assert "80 GB (micro-batch 1" in text and "halves on the host" in text


def test_the_ledger_of_the_twin_confirms_the_plan():
    table, off = lesson10.ledger_twin()
    assert abs(off) < 0.05 and "difference" in table


def test_without_recorded_runs_it_says_so_and_with_one_it_shows_it(tmp_path, monkeypatch):
    monkeypatch.setattr(lesson10, "RUNS", tmp_path)
    assert lesson10.recorded().count("not yet measured on a GPU.") == 2
    record = {"summary": "Pass@1 up", "device": "Card X", "command": "logra-train"}
    (tmp_path / "full-scale-7b.json").write_text(json.dumps(record), encoding="utf-8")
    assert lesson10.recorded().splitlines()[0] == "measured, full-scale-7b: Pass@1 up (Card X, logra-train)"


def test_a_gpu_check_is_shown_as_measured_and_one_of_a_cpu_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(lesson10, "RUNS", tmp_path)
    step = {"planned_gib": 10.0, "peak_gib": 9.5, "seconds": 1.0, "tokens_per_s": 1000.0}
    check = {
        "machine": {"device": "Card X", "memory_gib": 80.0},
        "sections": {
            "sketch": {"error": 0.0},
            "step_7B": {
                "logra": step,
                "adamw": {"skipped": "the plan needs 100 GiB"},
                "section_seconds": 3.0,
            },
            "step_27B": step | {"hours_per_100_updates": 12.5, "section_seconds": 5.0},
        },
    }
    (tmp_path / "gpu-check.json").write_text(json.dumps(check), encoding="utf-8")
    told = lesson10.recorded()
    assert "measured with random weights on Card X" in told
    assert "step_7B logra: peak 9.5 GiB (planned 10.0), 1000 tokens/s in training" in told
    assert "step_27B: peak" in told and told.endswith("12.5 hours per 100 updates") and "adamw" not in told
    check["machine"]["memory_gib"] = None
    (tmp_path / "gpu-check.json").write_text(json.dumps(check), encoding="utf-8")
    assert lesson10.recorded().endswith("tests/gpu/check.py): not yet measured on a GPU.")


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setattr(lesson10_trainers, "find_spec", lambda name: None)
    for attempt in (lesson10_trainers.try_grpo, lesson10_trainers.try_trainer):
        assert "logra-lab[scale]" in attempt(lambda *_: pytest.fail("was run"))


def shown_functions(repository) -> dict[str, str]:
    """The functions that the notebook shows, by name, without blank lines."""
    text = (repository / "notebooks" / "sources" / "10_full_scale.py").read_text(encoding="utf-8")
    found = re.findall(r"^def (\w+)\(.*\n(?:(?: .*)?\n)*", text, flags=re.MULTILINE)
    bodies = re.finditer(r"^def \w+\(.*\n(?:(?: .*)?\n)*", text, flags=re.MULTILINE)
    return {
        name: "\n".join(line for line in body[0].splitlines() if line.strip())
        for name, body in zip(found, bodies, strict=True)
    }


@pytest.mark.parametrize("name", ["trainer_with_logra", "grpo_with_logra"])
def test_logra_enters_another_trainer_in_ten_lines_of_the_notebook(repository, name):
    pytest.importorskip("trl", reason="TRL is missing: pip install 'logra-lab[scale]'")
    source = shown_functions(repository)[name]
    assert len(source.splitlines()) <= 10
    space = {"lesson10_trainers": lesson10_trainers}
    exec(source, space)
    attempt = lesson10_trainers.try_trainer if name.startswith("trainer") else lesson10_trainers.try_grpo
    told = attempt(space[name])
    assert re.match(r"[123] updates in (GRPO)?Trainer; 0 of 14 targets hold a gradient", told), told


def test_each_reason_to_refuse_is_listed():
    told = lesson10_trainers.refusals()
    for name in (
        "args.deepspeed",
        "CPU offload",
        "args.fsdp",
        "quantised",
        "peft",
        "args.fp16",
        "args.n_gpu",
    ):
        assert f"- {name}" in told or f"- a {name}" in told


def test_the_twin_gets_a_fresh_folder_and_a_real_run_a_lasting_one():
    first, second = lesson10.run_folder(preset("tiny")), lesson10.run_folder(preset("tiny"))
    assert first != second and not first.exists()
    assert lesson10.run_folder(preset("org/model")).as_posix() == "runs/org_model"
