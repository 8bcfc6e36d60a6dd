"""Lesson 00's pictures say what they show, and its loop is the kit's own."""

from __future__ import annotations

import pytest

from logra_lab.lab import lesson00
from logra_lab.lab.live import LivePicture


@pytest.fixture(scope="module")
def learner():
    return lesson00.trainer(steps=2, eval_problems=40)


def test_the_sketch_is_a_twelfth_of_the_gradient_or_less(learner):
    kib = lesson00.sizes(learner.arm.optimizer)
    # a target's share is rank / columns, here 8/96 and 8/288
    assert kib["dense gradient"] / kib["sketch"] >= 12


def test_the_picture_tells_start_end_and_control_in_words(learner):
    draw = lesson00.tour_picture(
        learner.arm.optimizer, [{"step": 0, "accuracy": 0.3}, {"step": 10, "accuracy": 0.25}]
    )
    picture = draw([{"step": 0, "accuracy": 0.3}, {"step": 5}, {"step": 10, "accuracy": 0.8}])
    assert "After 10 updates 80% of held-out sums are right, against 30%" in picture.caption
    assert "With shuffled rewards: 25%" in picture.caption
    assert "from 0.30 to 0.80" in picture.alt and "ends at 0.25" in picture.alt


def test_the_table_lines_problems_up_with_answers(learner):
    problems = learner.task.held_out[:3]
    given = lesson00.answers(learner.policy, problems)
    assert given == lesson00.answers(learner.policy, problems)
    text = lesson00.table(problems, {"before": given, "after": ["", "7", "8"]})
    assert len(text.splitlines()) == 4 and "(none)" in text
    assert all(len(line) == len(text.splitlines()[0]) for line in text.splitlines())


def test_a_live_picture_redraws_only_when_an_accuracy_arrives(learner, monkeypatch):
    drawn = []
    live = LivePicture(
        lambda history: drawn.append(len(history)) or lesson00.tour_picture(learner.arm.optimizer)(history)
    )
    monkeypatch.setattr(
        "logra_lab.lab.live.display",
        lambda *args, **kwargs: type("H", (), {"update": lambda self, x: None})(),
    )
    live.add({"step": 0, "accuracy": 0.3})
    live.add({"step": 1})
    live.add({"step": 2, "accuracy": 0.4})
    assert drawn == [1, 3]


def test_shuffled_rewards_keep_their_number(learner):
    control = lesson00.trainer(shuffle_rewards=True, steps=1, eval_problems=40)
    batch, plain = control._rollout(), learner._rollout()
    assert sorted(batch.rewards.tolist()) == sorted(plain.rewards.tolist())
    assert not batch.rewards.equal(plain.rewards)
