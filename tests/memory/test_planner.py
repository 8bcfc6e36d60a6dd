"""The planner: the classic sentences come out of it, every setting moves the bytes it should, bad input is refused."""

import pytest

from logra_lab.memory import (
    CARDS,
    GB,
    GIB,
    MIB,
    Bytes,
    ModelShape,
    Settings,
    plan,
    published_rows,
    published_table,
    suggest,
)
from logra_lab.memory.cards import card_table, first_fit
from logra_lab.memory.published import layouts_27b

SQUARE = ModelShape("one 4096 × 4096 block", 1, 4096, 4096, 32, 32, 128, 8, tied=True)


def test_sketch_of_rank_64_turns_64_mib_into_one():
    dense = 4 * 4096 * 4096
    sketches = plan(SQUARE, "logra", rank=64, dtype="fp32").phases["forward"]["sketches"]
    assert (dense, sketches) == (64 * MIB, 7 * MIB)  # seven square targets in the block, 1 MiB each


def test_projections_cost_another_mib_per_group_unless_they_are_regenerated():
    cached = plan(SQUARE, "logra", rank=64, dtype="fp32").phases["forward"]
    fresh = plan(SQUARE, "logra", rank=64, dtype="fp32", projections="regenerated").phases["forward"]
    assert (cached["projections"], fresh["projections"]) == (4 * MIB, 0)
    separate = plan(SQUARE, "logra", rank=64, dtype="fp32", shared=False).phases["forward"]
    assert separate["projections"] == 7 * MIB


def test_7b_weights_are_15_gb_in_bf16_and_several_times_that_in_training():
    made = plan("7B", "adamw", precision="master", checkpointing=True, batch=1)
    assert 15 * GB < made.phases["forward"]["weights"] < 15.5 * GB
    assert made.peak.total > 7 * made.phases["forward"]["weights"]


def test_adamw_keeps_16_bytes_a_parameter_whichever_way_its_fp32_copy_is_kept():
    for precision in ("fp32", "master"):
        step = plan("1.5B", "adamw", precision=precision, checkpointing=True).phases["step"]
        kept = step["weights"] + step["gradients"] + step["optimizer state"]
        assert kept == 16 * 1_543_714_304


def test_dense_27b_fits_a_node_of_8_but_not_the_4_gpus_that_the_paper_trained_on():
    table = layouts_27b().splitlines()
    four = next(line for line in table if line.startswith("4 training"))
    eight = next(line for line in table if line.startswith("8 training"))
    assert "short by" in four.split("fits")[0] and "fits" in four  # dense is short, LoGRA fits
    assert "short" not in eight


def test_one_141_gb_card_trains_27b_in_split_and_one_24_gb_card_trains_7b():
    assert first_fit("27B", CARDS["141 GB"], ("logra",))[1].settings.precision == "split"
    assert first_fit("7B", CARDS["24 GB"], ("logra",))[1].settings.halves == "host"
    assert first_fit("27B", CARDS["80 GB"], ("logra",))[1].settings.halves == "host"
    assert first_fit("27B", CARDS["48 GB"]) is None  # its bf16 weights alone are 50 GiB
    assert "does not fit" in card_table(("27B",))


def test_host_halves_leave_two_bytes_a_weight_on_the_card_and_put_two_on_the_host():
    device = plan("7B", "logra", precision="split")
    host = plan("7B", "logra", precision="split", halves="host")
    moved = device.phases["forward"]["weights"] - host.phases["forward"]["weights"]
    assert moved == host.host == 2 * 6_525_288_448  # the seven targets of 28 blocks


def test_sharding_divides_weights_and_states_but_not_sketches():
    one, four = (plan("7B", "logra", rank=256, gpus=g, sharding="fsdp").phases["forward"] for g in (2, 4))
    assert one["sketches"] == four["sketches"]
    assert one["weights"] > four["weights"]
    dense2, dense4 = (plan("7B", "adamw", gpus=g, sharding="fsdp").phases["step"] for g in (2, 4))
    assert dense2["optimizer state"] == 2 * dense4["optimizer state"]


def test_a_rollout_engine_of_its_own_pays_for_a_second_copy_of_the_weights():
    shared = plan("1.5B", "logra", rollout="transformers").phases["rollout"]
    second = plan("1.5B", "logra", rollout="vllm").phases["rollout"]
    assert second["weights"] - shared["weights"] == 2 * 1_543_714_304


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ({"rank": 16}, {"rank": 64}),
        ({"batch": 1}, {"batch": 8}),
        ({"context": 512}, {"context": 1024}),
        ({"checkpointing": True}, {"checkpointing": False}),
        ({"chunk": None}, {"chunk": 0}),
        ({"padded": False}, {"padded": True}),
        (
            {"checkpointing": True, "context": 4096},
            {"checkpointing": True, "context": 4096, "probe_tokens": 4096},
        ),
        ({"rollout": "none"}, {"rollout": "transformers", "rollouts": 512}),
        ({"method": "logra"}, {"method": "adamw"}),
        ({"method": "adam8bit"}, {"method": "adamw"}),
        ({"micro_batches": 1, "method": "adamw"}, {"micro_batches": 2, "method": "adamw"}),
    ],
)
def test_what_should_cost_more_costs_more(smaller, larger):
    base = {"method": "logra", "rank": 32}
    assert plan("1.5B", **{**base, **smaller}).peak.total < plan("1.5B", **{**base, **larger}).peak.total


def test_published_rows_hold_predicted_less_published_and_judge_the_out_of_memory():
    rows = {
        (figure.model, figure.method, figure.gib): (made, diff) for figure, made, diff in published_rows()
    }
    assert {made.settings.precision for made, _ in rows.values()} == {"fp32"}  # the paper's, for every method
    made, difference = rows["Qwen2.5-Math-7B", "logra", 17.29]
    assert difference == pytest.approx(made.peak.total / GIB - 17.29)
    assert not rows["Gemma-3-27B", "adamw", None][0].fits("80 GB")
    assert "out of memory on 80 GB" in published_table()


def test_a_planned_fit_agrees_with_its_margin_and_says_so_in_gib():
    made = plan("7B", "adamw", batch=1, checkpointing=True)
    assert not made.fits("80 GB") and made.margin("80 GB") < 0
    assert "does not fit by" in made.sentence("80 GB") and "optimizer state" in made.sentence("80 GB")
    assert "fits with" in made.sentence("141 GB")


def test_a_suggestion_makes_it_fit_with_one_change_where_one_is_enough():
    made = plan("7B", "logra", batch=8, padded=True)
    found = suggest(made, "48 GB")
    assert [list(change[2]) for change in found.changes] == [["checkpointing"]] and found.fits
    assert not suggest(made, "141 GB").changes


def test_a_suggestion_combines_changes_and_keeps_only_those_that_are_needed():
    found = suggest(plan("27B", "logra", batch=8, rollout="transformers", rollouts=64), "80 GB")
    assert found.fits and len(found.changes) > 1
    for left_out in found.changes:
        kept = {}
        for change in found.changes:
            kept |= {} if change is left_out else change[2]
        fewer = Settings(method="logra", batch=8, rollout="transformers", rollouts=64).but(**kept)
        assert not plan("27B", fewer).fits("80 GB")


def test_a_suggestion_says_what_is_missing_where_nothing_helps():
    found = suggest(plan("27B", "logra"), "24 GB")
    assert not found.fits and "still missing" in str(found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": -1}, "batch=-1 must be a whole number of at least 1"),
        ({"context": 0}, "context=0"),
        ({"rank": 2.5}, "rank=2.5 must be a whole number"),
        ({"probe_tokens": -4}, "probe_tokens=-4"),
        ({"method": "lion"}, "method='lion' is unknown; choose 'adamw'"),
        ({"precision": "int4"}, "LoGRA has no precision 'int4'; choose 'fp32'"),
        ({"precision": "split", "dtype": "fp32"}, 'needs dtype="bf16"'),
        ({"precision": "fp32", "halves": "host"}, 'halves="host" moves the lower halves'),
        ({"sharding": "fsdp"}, "needs gpus of at least 2"),
        ({"rank": 4096}, "rank=4096 is above 1536, the width of Qwen2.5-Math-1.5B's q_proj"),
        ({"method": "lora", "rank": 512}, "rank=512 is above 256, the width of Qwen2.5-Math-1.5B's k_proj"),
        ({"rollout": "sglang"}, "rollout='sglang' is unknown"),
    ],
)
def test_bad_input_is_refused_with_the_value_and_the_remedy(settings, words):
    with pytest.raises(ValueError) as error:
        plan("1.5B", **{"method": "logra", **settings})
    assert words in str(error.value)


def test_a_setting_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(TypeError, match="Unknown setting 'ranks'; the settings are method, rank"):
        plan("1.5B", ranks=4)


def test_bytes_add_up_by_class_and_refuse_a_class_they_do_not_know():
    both = Bytes({"weights": 3}) + {"weights": 4, "logits": 5}
    assert (both["weights"], both.total, both.largest(1)) == (7, 12, [("weights", 7)])
    with pytest.raises(ValueError, match="Unknown class of bytes 'gradient'"):
        Bytes({"gradient": 1})
