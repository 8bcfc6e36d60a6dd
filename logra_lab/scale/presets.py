"""What to run on the GPU at hand: presets by size, and a configuration for any other model.

    config = preset_for()                               # by the GPU found; the CPU gets the twin on data/tiny-math
    config = preset("7B")                               # or "tiny", "1.5B", "27B"
    config = preset("org/model-or-folder", task="gsm8k")  # any causal LM

`fitted` then lowers what costs memory, in order of price, until the planner says that it fits (fitting.py).

Left out: tuning. Step sizes and budgets are the paper's (method.md §2, §3) for real models, and those of lesson 07 for
the twin, which is 6000 times smaller and can afford larger steps. No preset was measured on a GPU yet.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from logra_lab.memory import Card, Settings, card_here
from logra_lab.rl.config import ArmConfig, RunConfig, config_hash
from logra_lab.rl.reading import as_table, check_fields

SHARDINGS = ("replicated", "fsdp")
ENGINES = ("transformers", "worker", "vllm")
OPTIONS = (
    "precision",
    "halves",
    "targets",
    "shared",
    "refresh",
    "beta2",
)  # of LoGRA, kept in the arm's options
ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
PROMPT_TOKENS = 256  # assumed by the planner in front of an answer


@dataclass(frozen=True)
class ScaleConfig:
    """A run at any size: the loop's own settings, and how the model is held, sharded and sampled from.

    Attributes:
        run: the loop's settings. Its arm's options hold "precision" and "halves" (method.md §6).
        name: the preset's name.
        device, dtype: "auto" lets `choose_device` decide.
        checkpointing: recompute activations in backward.
        attention: in training; the probe uses plain attention and puts this back.
        sharding: of several processes: "replicated" weights, or "fsdp" rows.
        engine: who samples: "transformers" in process, a "worker" fed by packets, or "vllm".
        rollouts: answers sampled at once in process; None for all.
        chat: use the chat template (None: where there is one); prefill begins each answer.
        pass_answers, pass_problems: k of Pass@k, and how many held-out problems it is taken over (None: all).
    """

    run: RunConfig = field(default_factory=RunConfig)
    name: str = "custom"
    device: str = "auto"
    dtype: str = "auto"
    checkpointing: bool = False
    attention: str = "sdpa"
    sharding: str = "replicated"
    engine: str = "transformers"
    rollouts: int | None = None
    chat: bool | None = None
    prefill: str = ""
    pass_answers: int = 4
    pass_problems: int | None = 200

    def __post_init__(self) -> None:
        for name, known in (("sharding", SHARDINGS), ("engine", ENGINES), ("attention", ATTENTIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(known)}")
        for name in ("rollouts", "pass_answers", "pass_problems"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} does nothing; use at least 1")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the arm's optimizer."""
        return dict(self.run.arm.options)

    def but(self, **changes: Any) -> ScaleConfig:
        """The same run with some values changed: own fields, fields of the loop, of the arm, and arm options
        (OPTIONS), all by name; the arm itself is "arm_name". TypeError for a name that is none of these."""
        own, loop, arm = _names(ScaleConfig), _names(RunConfig), _names(ArmConfig) - {"name"}
        parts: dict[str, dict[str, Any]] = {"own": {}, "loop": {}, "arm": {}, "option": {}}
        for name, value in changes.items():
            if name == "arm_name":
                parts["arm"]["name"] = value
                continue
            place = "own" if name in own else "loop" if name in loop else "arm" if name in arm else "option"
            if place == "option" and name not in OPTIONS:
                known = sorted({*own, *loop, *arm, *OPTIONS, "arm_name"})
                raise TypeError(f"{name!r} is no setting; known are {', '.join(known)}")
            parts[place][name] = value
        options = tuple(sorted((self.options | parts["option"]).items()))
        base = dataclasses.replace(self, **parts["own"])
        changed_arm = dataclasses.replace(base.run.arm, **{"options": options} | parts["arm"])
        return dataclasses.replace(
            base, run=dataclasses.replace(base.run, **{"arm": changed_arm} | parts["loop"])
        )

    def memory(self, dtype: str, gpus: int = 1, method: str | None = None) -> Settings:
        """The same run as the planner sees it, on each of `gpus` GPUs; `method` instead of the arm's own."""
        method = method or {"adamw_targets": "adamw", "row_adam": "adamw"}.get(
            self.run.arm.name, self.run.arm.name
        )
        run, options = self.run, self.options
        answers = max(1, run.prompts * run.answers // gpus)
        precision = options.get("precision", "split" if dtype == "bf16" else "fp32")
        placed = {"transformers": "transformers", "worker": "none", "vllm": "vllm"}[self.engine]
        logra = method == "logra"
        halves = options.get("halves", "device") if logra and dtype == "bf16" else "device"
        return Settings(
            method=method, rank=run.arm.rank, dtype=dtype, precision=precision if logra else "fp32",
            batch=min(run.micro_batch or answers, answers), context=PROMPT_TOKENS + run.max_new_tokens,
            micro_batches=max(1, answers // (run.micro_batch or answers)), checkpointing=self.checkpointing, gpus=gpus,
            sharding=self.sharding if gpus > 1 else "replicated", rollout=placed,
            rollouts=min(self.rollouts or answers, answers), halves=halves,
            probe_tokens=run.probe_tokens if logra and run.arm.control == "trust_region" else 0, padded=True,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold and `from_json` reads."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ScaleConfig:
        """The configuration that `to_json` wrote; ReadingError for unknown names and values of another type."""
        values = as_table(values, "the configuration")
        check_fields(cls, values)
        return cls(**values | {"run": RunConfig.from_json(values.get("run", {}))})

    def hash(self) -> str:
        """Twelve hex digits that name this configuration."""
        return config_hash(self.to_json())


def _names(kind: type) -> set[str]:
    return {entry.name for entry in dataclasses.fields(kind)}


TWIN = ScaleConfig(
    name="tiny", device="cpu", dtype="fp32", pass_problems=64,
    run=RunConfig(
        steps=20, prompts=128, micro_batch=64, eval_every=5, eval_problems=256, checkpoint_every=10,
        arm=ArmConfig(options=(("precision", "fp32"),)),
    ),
)  # fmt: skip
PAPER_ARM = ArmConfig(lr=6e-5, rank=64, budget=2e-4, final_budget=2e-5)
REAL = ScaleConfig(
    run=RunConfig(
        task="gsm8k", steps=300, prompts=128, max_new_tokens=768, micro_batch=8, probe_sequences=2, probe_tokens=2048,
        probe_rows=1, eval_every=25, eval_problems=200, checkpoint_every=25, arm=PAPER_ARM,
    ),
)  # fmt: skip
HUB = {"1.5B": "Qwen/Qwen2.5-Math-1.5B", "7B": "Qwen/Qwen2.5-Math-7B", "27B": "google/gemma-3-27b-it"}
# What a card of at least so many GiB is asked to train; the planner has the last word.
BY_CARD = ((120.0, "27B"), (70.0, "7B"), (0.0, "1.5B"))
PRESETS = ("tiny", *HUB)


def preset(name: str, **changes: Any) -> ScaleConfig:
    """The preset called "tiny", "1.5B", "7B" or "27B"; any other name is a hub id or a folder.

    `changes` are settings by name, as in `ScaleConfig.but`.
    """
    if name == "tiny":
        return TWIN.but(**changes)
    if name in HUB:
        more = {"chat": True} if name == "27B" else {}
        return REAL.but(name=name, model=HUB[name], **more).but(**changes)
    if not name.strip():
        raise ValueError(
            f"the model's name is {name!r}; use a preset ({', '.join(PRESETS)}), a hub id or a folder"
        )
    return REAL.but(name=name, model=name).but(**changes)


def preset_for(card: Card | None = None, **changes: Any) -> ScaleConfig:
    """The preset for the GPU found (or for `card`); without one, the twin on data/tiny-math."""
    card = card or card_here()
    if card is None:
        return preset("tiny", **changes)
    name = next(name for gib, name in BY_CARD if card.capacity >= gib * 2**30)
    return preset(name, **changes)
