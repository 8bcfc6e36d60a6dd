"""Train from the command line.

python -m logra_lab.rl --folder runs/first                 # the defaults: LoGRA on tiny-math
python -m logra_lab.rl --folder runs/first --resume        # go on from the newest checkpoint
python -m logra_lab.rl --folder runs/mine --config my.json # settings as `RunConfig.to_json` writes them
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from logra_lab.rl.checkpoint import CheckpointError
from logra_lab.rl.config import RunConfig
from logra_lab.rl.metrics import progress_line
from logra_lab.rl.reading import read_json
from logra_lab.rl.training import Trainer


def main(arguments: list[str] | None = None) -> int:
    """0 if the run finished, 1 if it ended early, 2 for bad input; the reason stands on the last line."""
    parser = argparse.ArgumentParser(
        prog="python -m logra_lab.rl", description="Train a policy; see RunConfig for settings."
    )
    parser.add_argument("--folder", type=Path, required=True, help="receives metrics.jsonl and checkpoints")
    parser.add_argument("--config", type=Path, help="JSON with settings that differ from the defaults")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint in the folder"
    )
    options = parser.parse_args(arguments)
    try:
        config = RunConfig.from_json(read_json(options.config) if options.config else {})
        trainer = Trainer(config, folder=options.folder, resume=options.resume)
    except (ValueError, OSError, ImportError, CheckpointError) as error:
        print(f"logra_lab.rl: {error}", file=sys.stderr)
        return 2
    result = trainer.run(on_step=_Progress(trainer))
    print(f"\n{result.status}: {result.message}; checkpoint: {result.checkpoint}")
    return 0 if result.status == "finished" else 1


class _Progress:
    """Rewrites one line of a terminal; elsewhere writes a line per evaluation."""

    def __init__(self, trainer: Trainer) -> None:
        self.steps, self.first, self.started = trainer.config.steps, trainer.step, time.perf_counter()

    def __call__(self, metrics: dict) -> None:
        line = progress_line(
            metrics, self.steps, time.perf_counter() - self.started, metrics["step"] - self.first
        )
        if sys.stderr.isatty():
            print(f"\r{line:<110}", end="", file=sys.stderr, flush=True)
        elif metrics.get("accuracy") is not None:
            print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
