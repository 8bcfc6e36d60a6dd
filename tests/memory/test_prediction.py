"""Held to account: the planner within 10 % of the ledger, for five models times five methods and single settings."""

import pytest

from logra_lab.memory import ModelShape, Settings, measure, plan

MODELS = (
    ModelShape("square", 2, 96, 256, 4, 4, 24, 300, tied=False),
    ModelShape("grouped heads", 3, 128, 352, 4, 2, 32, 500, tied=True),
    ModelShape("biased", 2, 96, 512, 6, 2, 16, 400, tied=True, qkv_bias=True),
    ModelShape("wide words", 2, 64, 160, 4, 2, 16, 4000, tied=True),
    ModelShape("deep", 6, 64, 192, 4, 1, 16, 200, tied=False),
)
METHODS = ("adamw", "lora", "galore", "apollo", "logra")
BASE = Settings(method="adamw", rank=8, dtype="fp32", device="cpu", batch=4, context=64, chunk=64)


def check(shape, settings, tolerance=0.10):
    made, measured = plan(shape, settings), measure(shape, settings, child=False)
    assert set(made.phases) == set(measured.phases)
    assert made.peak.total == pytest.approx(measured.peak.peak.total, rel=tolerance)
    for name, phase in measured.phases.items():
        assert made.phases[name].total == pytest.approx(phase.peak.total, rel=tolerance), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.name)
def test_the_plan_is_within_a_tenth_of_the_ledger(shape, method):
    pytest.importorskip(
        {"lora": "peft", "galore": "galore_torch", "apollo": "apollo_torch"}.get(method, "torch")
    )
    check(shape, BASE.but(method=method, rest=None))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "adamw", "dtype": "bf16", "precision": "master"},
        {"method": "adamw", "dtype": "bf16", "precision": "nearest"},
        {"method": "adamw", "dtype": "bf16", "precision": "fp32"},
        {"method": "adamw", "micro_batches": 2, "checkpointing": True},
        {"method": "logra", "dtype": "bf16", "precision": "split"},
        {"method": "logra", "dtype": "bf16", "precision": "stochastic"},
        {"method": "logra", "dtype": "bf16", "precision": "fp32"},
        {"method": "logra", "rest": "native"},
        {"method": "logra", "checkpointing": True, "padded": True},
        {"method": "logra", "chunk": 0, "shared": False},
    ],
    ids=lambda changes: " ".join(f"{key}={value}" for key, value in changes.items()),
)
def test_the_plan_follows_each_setting(changes):
    check(MODELS[1], BASE.but(**{"precision": None, "rest": None, **changes}))


def test_the_plan_follows_a_probe_and_a_rollout():
    changes = {
        "method": "logra",
        "rest": None,
        "probe_tokens": 128,
        "rollout": "transformers",
        "rollouts": 16,
    }
    check(MODELS[3], BASE.but(**changes))


def test_the_classes_agree_too_where_the_peak_is_the_same_moment():
    settings = BASE.but(method="logra", rest=None)
    made, measured = plan(MODELS[4], settings), measure(MODELS[4], settings, child=False)
    for name in ("weights", "sketches", "projections", "optimizer state", "saved activations"):
        found = measured.phases["forward"].peak[name]
        assert abs(made.phases["forward"][name] - found) < 0.05 * measured.phases["forward"].peak.total, name
