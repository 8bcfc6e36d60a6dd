"""The command line trains, shows progress, resumes, and says how it ended."""

from __future__ import annotations

import json

from logra_lab.rl.__main__ import main
from logra_lab.rl.metrics import read_metrics
from logra_lab.rl.tokenizer import character_tokenizer
from tests.rl.models import llama


def test_a_run_from_the_command_line_finishes_says_so_and_refuses_to_start_over(tmp_path, capsys):
    llama().save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    settings = {
        "model": str(tmp_path / "model"), "task_options": [["largest", 12]], "steps": 2, "prompts": 4, "eval_every": 1,
        "eval_problems": 4, "max_new_tokens": 2,
        "probe_sequences": 4, "arm": {"name": "adamw", "control": "none", "lr": 1e-3},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    arguments = ["--folder", str(tmp_path / "run"), "--config", str(tmp_path / "config.json")]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert "finished: all 2 steps done" in output.out and "step-000002" in output.out
    assert "2/2" in output.err and "held-out" in output.err
    assert [m["step"] for m in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]
    assert main([*arguments, "--resume"]) == 0
