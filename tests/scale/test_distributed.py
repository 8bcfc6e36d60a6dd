"""Two gloo processes equal one process on the joined batch; a bad rank stops both; what is sent is counted."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as multiprocessing

from logra_lab.method import LoGRA, TrustRegion
from logra_lab.scale.distributed import AllReduce, ShardedRows
from tests.method.worlds import llama, stack
from tests.scale import ranks, sharded_ranks


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> dict[str, list]:
    """Each scenario's results, rank 0 and rank 1; one pair of processes for all of them."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(ranks.main, (str(folder),), nprocs=ranks.WORLD)
    results = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(ranks.WORLD)]
    return {name: [result[name] for result in results] for name in ranks.SCENARIOS}


def alone(**options) -> dict:
    return ranks.train([slice(0, 10)], **options)


def assert_equal_to_one_process(pair: list, reference: dict, tolerance: float = 1e-11) -> None:
    first, second = pair
    for name, expected in reference["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        torch.testing.assert_close(first["weights"][name], expected, rtol=tolerance, atol=tolerance, msg=name)
    for name, expected in reference.get("moments", {}).items():
        torch.testing.assert_close(first["moments"][name], expected, rtol=1e-9, atol=1e-18)


def assert_same_reports(pair: list, reference: dict) -> None:
    keys = ("update", "sketch_norm", "predicted_kl", "measured_kl", "budget", "scale", "mismatch")
    for mine, other, expected in zip(
        pair[0]["reports"], pair[1]["reports"], reference["reports"], strict=True
    ):
        first, second, one = (
            [-1.0 if r[key] is None else r[key] for key in keys] for r in (mine, other, expected)
        )
        assert first == second == pytest.approx(one, rel=1e-8)
        assert mine["status"] == other["status"] == expected["status"] == "updated"


def test_unequal_micro_batches_with_trust_region_and_mismatch_equal_one_process(both):
    reference = alone(
        mismatch=lambda share, step: float(ranks.differences(share, step).mean()), **ranks.REGION
    )
    pair = both["paper_with_trust_region"]
    assert_equal_to_one_process(pair, reference)
    assert_same_reports(pair, reference)
    assert all(report["scale"] != 1 and report["mismatch"] > 0 for report in reference["reports"])


def test_the_mismatch_counts_by_tokens_and_a_rank_without_any_takes_part(both):
    reference = alone(
        mismatch=lambda share, step: float(ranks.differences(share, step).mean()), **ranks.REGION
    )
    assert_same_reports(both["mismatch_of_one_rank_only"], reference)
    own = [float(torch.cat([ranks.differences(ranks.SHARE[rank], 0)]).mean()) for rank in range(ranks.WORLD)]
    per_rank = 0.3 * sum(own) / len(own)  # what a mean of means would have charged
    charged = both["paper_with_trust_region"][0]["reports"][0]["mismatch"]
    assert charged == pytest.approx(reference["reports"][0]["mismatch"]) != pytest.approx(per_rank, rel=0.05)


def test_a_plain_mismatch_must_be_the_same_on_all_ranks(both):
    for result in both["plain_mismatches"]:
        assert result["agreed"][0] == pytest.approx(0.3 * 3e-4)
        assert "differs between processes" in result["message"] and "Mismatch.of" in result["message"]
        assert result["kept"]


def test_clipping_and_decay_equal_one_process(both):
    reference = alone(**ranks.CLIPPED)
    assert_equal_to_one_process(both["clipped_with_decay"], reference)
    assert_same_reports(both["clipped_with_decay"], reference)
    assert all(report["sketch_norm"] > ranks.CLIPPED["max_grad_norm"] for report in reference["reports"])


def test_a_verified_region_shrinks_alike_on_both_ranks(both):
    region = TrustRegion(budget=1e-6, final_budget=1e-6, verify=True)
    reference = alone(rule="paper", update_ratio=2e-2, trust_region=region)
    assert_equal_to_one_process(both["verified"], reference)
    assert_same_reports(both["verified"], reference)
    assert all(report["measured_kl"] is not None for report in reference["reports"])


def test_a_mean_of_equal_shares_equals_one_process(both):
    assert_equal_to_one_process(both["mean_of_equal_shares"], alone(**ranks.CLIPPED))


def test_a_rank_without_data_takes_part(both):
    assert_equal_to_one_process(both["empty_rank"], alone(**ranks.REGION))
    assert [report["status"] for report in both["empty_rank"][1]["reports"]] == ["updated"] * 3


def test_no_signal_on_any_rank_moves_nothing(both):
    start = llama().double().state_dict()
    for result in both["no_signal_anywhere"]:
        assert [report["status"] for report in result["reports"]] == ["no signal"] * 2
        assert all(torch.equal(value, start[name]) for name, value in result["weights"].items())


def test_under_ddp_with_one_trainable_parameter_too(both):
    reference = ranks.train_native([slice(0, 10)])
    assert_equal_to_one_process(both["ddp_with_one_trainable_parameter"], reference)
    assert both["ddp_with_one_trainable_parameter"][0]["names"] == reference["names"]
    start = llama().double().model.norm.weight
    assert not torch.equal(reference["weights"]["model.norm.weight"], start)


def test_a_nan_on_one_rank_stops_both_with_one_message(both):
    first, second = both["nan_on_one_rank"]
    assert first == second
    assert first["status"] == "non-finite" and "layers.0.q_proj" in first["message"]
    assert first["kept"] and first["next"] == "updated"


def test_a_step_makes_one_collective_for_the_sketches_and_one_per_scalar_decision(both):
    plain, judged = both["clipped_with_decay"][0]["calls"], both["paper_with_trust_region"][0]["calls"]
    assert plain == 1  # sketches
    assert judged == 4  # sketches, tokens, mismatch, KL


def test_bytes_on_the_wire_are_counted_against_the_gradients_that_ddp_would_reduce(both):
    shapes = [module.weight.shape for name, module in llama().named_modules() if name.endswith("_proj")]
    for result in both["counted_on_the_wire"]:
        assert len(result["sizes"]) == result["calls"] == 4  # sketches, tokens, mismatch, KL
        assert sum(result["sizes"]) == result["bytes"]
        assert max(result["sizes"]) == 8 * sum(rows * 5 for rows, _ in shapes) and min(result["sizes"]) <= 16
        assert result["dense"] == 8 * sum(rows * columns for rows, columns in shapes)
        assert result["dense"] > 10 * result["bytes"]
    wire = both["clipped_with_decay"][0]["wire"]
    assert wire.sketches == max(both["counted_on_the_wire"][0]["sizes"])
    assert wire.gradients == both["counted_on_the_wire"][0]["dense"] and wire.ratio > 10


def test_sharded_rows_equal_one_process_even_where_a_rank_has_none(both):
    expected = sharded_ranks.train_stack(
        stack(*sharded_ranks.SHAPES, dtype=torch.float64), [slice(0, 10)], update_ratio=1e-2
    )
    assert both["rows_sharded"][0]["local"] == [17, 1, 24] and both["rows_sharded"][1]["local"] == [16, 0, 23]
    assert_equal_to_one_process(both["rows_sharded"], {"weights": sharded_ranks.whole_weights(expected)})


def test_split_halves_sharded_by_rows_equal_one_process_to_fp32_rounding(both):
    optimizer = LoGRA(stack(*sharded_ranks.SHAPES).bfloat16(), rank=4, precision="split", update_ratio=1e-3)
    sharded_ranks.fill_and_commit(optimizer, 5)
    expected = sharded_ranks.whole_weights(optimizer)
    for result in both["split_rows_sharded"]:
        for name, weight in result["weights"].items():
            torch.testing.assert_close(weight, expected[name], rtol=5e-7, atol=1e-9)


def test_whole_weights_at_the_step_are_refused_since_the_shard_would_miss_the_update(both):
    for result in both["unsharded_by_accident"]:
        assert "is not sharded now" in result["message"] and "call reshard(model)" in result["message"]
        assert result["after"] == "updated"


@pytest.mark.parametrize("precision", ["fp32", "split"])
def test_a_sharded_trainer_feeds_a_whole_replica(both, precision):
    for result in both["sharded_trainer_feeds_a_replica"]:
        assert result[precision]["status"] == ["applied"] * 5 and result[precision]["drift"] < 1e-6
        assert result[precision]["late"] and result[precision]["others"]


def test_without_a_process_group_both_seams_say_what_to_do():
    for kind in (AllReduce, ShardedRows):
        with pytest.raises(RuntimeError, match=f"{kind.__name__} needs a process group: start with torchrun"):
            kind()
    with pytest.raises(ValueError, match="op='max': choose"):
        AllReduce("max")
