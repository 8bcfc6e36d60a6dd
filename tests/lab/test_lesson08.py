"""What lesson 08 shows is a real run, its receivers end where the lesson says, and its pictures say their numbers."""

from __future__ import annotations

import pytest
import torch

from logra_lab.lab import lesson08, lesson08_figures, packet_size, parcels, second_process
from logra_lab.lab.exercises.lesson08 import (
    apply_packet,
    faulty_receiver,
    packet_bytes,
    repaired_receiver,
    stream,
)
from logra_lab.lab.exercises.lesson08_chain import follow
from logra_lab.memory import MODELS
from logra_lab.method import PacketError, Sender
from logra_lab.method.packet import decode
from logra_lab.method.sparse_patch import changed_entries
from logra_lab.scale.rollouts import RemoteWorker

pytestmark = pytest.mark.lesson08
LOST = 2


@pytest.fixture(scope="module")
def trip() -> lesson08.Journey:
    return lesson08.journey(updates=6)


def test_the_formula_is_the_size_of_the_factors_in_a_real_packet(trip) -> None:
    packet = decode(trip.packets[0])
    shapes = [(target.rows, target.columns) for target in trip.targets]
    sent = sum(
        t.numel() * t.element_size() for name, t in packet.tensors.items() if name.startswith("factor/")
    )
    assert sent == packet_bytes(shapes, lesson08.RANK)


def test_the_papers_sizes_for_7b_come_out() -> None:
    for rank, megabytes in ((64, 178), (256, 712)):
        made = packet_size.sizes("Qwen2.5-Math-7B", rank, 6e-5)
        assert round(made["packet"] / 1e6) == megabytes
        assert made["full bf16 weights"] / 1e9 == pytest.approx(15.2, abs=0.05)


def test_a_receiver_and_a_replica_end_at_the_trainer(trip) -> None:
    plain = lesson08.follow_blindly(trip, apply_packet)
    library, complaints = lesson08.follow_by_chain(trip)
    moved = lesson08.distance(trip.start, trip.after[-1])
    assert moved > 0.01 and lesson08.distance(plain[-1], trip.after[-1]) < 1e-4 * moved
    assert lesson08.equal_share(library[-1], trip.after[-1]) == 1.0 and complaints == []


def test_the_learner_s_function_drives_the_blind_receivers(trip) -> None:
    still = lesson08.follow_blindly(trip, lambda weight, *rest: weight)
    assert lesson08.equal_share(still[-1], trip.start) == 1.0


def test_after_a_lost_packet_only_the_chained_receiver_comes_back(trip) -> None:
    chained, complaints = lesson08.follow_by_chain(trip, LOST)
    paths = {
        "chained": chained,
        "skips": lesson08.follow_blindly(trip, apply_packet, LOST),
        "counts": lesson08.follow_blindly(trip, apply_packet, LOST, own_count=True),
    }
    costs = lesson08.kl_to_trainer(trip, paths)
    assert len(complaints) == 1 and "update 2 was due" in complaints[0]
    assert costs["chained"][LOST] > 0 and costs["chained"][-1] == 0
    assert costs["counts"][-1] > 2 * costs["skips"][-1] > 1e-6
    assert f"{costs['counts'][-1]:.2g}" in lesson08_figures.lost_packet(costs, LOST).caption


def test_the_exercise_s_rule_is_the_library_s_on_real_packets(trip) -> None:
    arriving = [0, 2, 1, 1, 2, 5, 3]
    verdicts, _ = follow(trip.root, [parcels.opened(trip.packets[n]) for n in arriving])
    copy = lesson08.replica()
    assert verdicts == [copy.apply(trip.packets[n]).status for n in arriving]


def test_a_damaged_packet_can_t_be_opened(trip) -> None:
    data = trip.packets[0]
    with pytest.raises(PacketError):
        parcels.opened(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


def test_a_receiver_in_bf16_loses_the_papers_step_and_a_repaired_one_nothing(trip) -> None:
    for size in (1.0, 1 / 50):
        assert max(lesson08.arrivals(trip, repaired_receiver, size).differ) < 0.005
    course, paper = (lesson08.arrivals(trip, faulty_receiver, size) for size in (1.0, 1 / 50))
    assert course.differ[-1] > course.differ[0] > 0
    assert paper.displacement < 0.2 < 0.8 < course.displacement
    caption = lesson08_figures.receivers({"course": course, "paper": paper}).caption
    assert f"{paper.displacement:.0%} of the way" in caption


def test_the_colleagues_own_test_passes_as_the_story_says() -> None:
    start, updates = stream(1, 0.3)
    error = faulty_receiver(start, updates).float() - repaired_receiver(start, updates).float()
    assert 0 < error.norm() < 0.01 * start.norm()


def test_a_replica_refuses_another_precision_and_finds_a_stray_write(trip) -> None:
    other = lesson08.replica(precision="split", model_dtype=torch.bfloat16)
    assert "precision" in other.apply(trip.packets[0]).reason
    assert "drifted" in lesson08.touched_by_a_stray_write().reason


def test_the_signature_figure_says_where_packet_and_patch_are_equal(trip) -> None:
    report = lesson08.traffic(4, updates=1)
    shapes = [(target.rows, target.columns) for target in trip.targets]
    seven = MODELS["Qwen2.5-Math-7B"]
    picture = lesson08_figures.bytes_against_rank([report], report, packet_bytes, shapes, seven, (3e-3, 6e-5))
    assert f"near rank {report.equal_rank:.0f}" in picture.caption and "178 MB" in picture.caption


def test_a_smaller_step_makes_a_smaller_patch_and_leaves_the_packet_alone() -> None:
    made = [packet_size.sizes("Qwen2.5-Math-7B", 64, ratio) for ratio in packet_size.RATIOS]
    patches = [one["sparse patch"] for one in made]
    assert patches == sorted(patches) and len({one["packet"] for one in made}) == 1
    assert packet_size.equal_rank("Qwen2.5-Math-7B", 6e-5) > packet_size.equal_rank("Qwen2.5-Math-7B", 6e-6)


def test_tiny_math_s_shape_in_the_widget_is_that_of_its_weights(trip) -> None:
    shape = packet_size.SHAPES["tiny-math"]
    assert shape.target_rows == sum(target.rows for target in trip.targets)
    assert shape.parameters == sum(p.numel() for p in lesson08.tiny_policy().model.parameters())


def test_a_gaussian_weight_s_patch_is_near_a_real_one(trip) -> None:
    start, end = ({n: w.to(torch.bfloat16) for n, w in ws.items()} for ws in (trip.start, trip.after[0]))
    changed = changed_entries(start, end) / sum(w.numel() for w in start.values())
    assert packet_size.patch_bits(lesson08.COURSE_RATIO)[1] == pytest.approx(changed, abs=0.15)


@pytest.mark.parametrize("changed", ["model", "rank", "ratio", "link"])
def test_the_widgets_sentence_follows_each_control(changed) -> None:
    first = {"model": "Qwen2.5-Math-7B", "rank": 64, "ratio": 6e-5, "link": "10 Gbit/s"}
    other = (
        first
        | {"model": "tiny-math", "rank": 256, "ratio": 6e-6, "link": "1 Gbit/s"}
        | {key: first[key] for key in first if key != changed}
    )
    assert packet_size.packet_size(**first).caption != packet_size.packet_size(**other).caption
    assert "the packet is 1.7 times smaller" in packet_size.caption(**first)
    assert "the patch is 8.8 times smaller" in packet_size.caption(**first | {"rank": 256, "ratio": 6e-6})


def test_bytes_and_times_have_their_units() -> None:
    assert [packet_size.bytes_in_words(n) for n in (12, 36816, 1.78e8, 1.52e10)] == [
        "12 bytes", "36.8 kB", "178 MB", "15.2 GB",
    ]  # fmt: skip
    assert [packet_size.time_in_words(s) for s in (12.2, 0.248, 3e-5)] == ["12 s", "248 ms", "30 µs"]


@pytest.mark.slow
def test_a_real_second_process_stays_bit_equal_through_a_lost_packet() -> None:
    with second_process.worker_process() as folder:
        run = lesson08.trainer()
        wire = second_process.Losing(second_process.end(folder), lose=1)
        worker = RemoteWorker(Sender(run.arm.optimizer), wire, timeout=120.0)
        run.arm.optimizer.on_commit.append(worker.publish)
        run.sampler = worker.sample
        for _ in range(3):
            run.train_step()
        assert second_process.answers_alike(run, worker)
        worker.stop()
    kinds = [sync.kind for sync in worker.syncs]
    assert kinds == ["update", "update", "full", "update"]
    assert wire.sent > sum(sync.bytes for sync in worker.syncs)
    assert "packet 1" in second_process.log_of(worker.syncs)
