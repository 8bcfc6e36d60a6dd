"""A rollout worker answers from the trainer's weights, whatever it lost: in a thread, then as a real process."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
import torch

from logra_lab.method.packet import decode, encode
from logra_lab.rl.generation import sample_tokens
from logra_lab.rl.logprobs import token_scores
from logra_lab.rl.policy import Rollout
from logra_lab.scale.rollouts import WorkerError, mismatch
from logra_lab.scale.transport import Directory, Stream
from logra_lab.scale.worker import Worker, main
from tests.method.worlds import llama
from tests.scale.trainers import Trainer


@contextlib.contextmanager
def worker_thread(transport, load=lambda terms: llama(), **options):
    worker = Worker(transport, load, **options)
    thread = threading.Thread(target=worker.serve, args=(30.0,), daemon=True)
    thread.start()
    yield worker
    thread.join(30.0)
    assert not thread.is_alive()


class Lossy:
    """A transport between the two that damages what the trainer sends, as told."""

    def __init__(self, transport):
        self.transport, self.damage, self.sent = transport, [], []

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        for message in (self.damage.pop(0) if self.damage else lambda data: [data])(data):
            self.transport.send(message)

    def receive(self, timeout: float) -> bytes | None:
        return self.transport.receive(timeout)

    def close(self) -> None:
        self.transport.close()


def test_a_worker_in_step_needs_no_resync_and_samples_bit_equal(tmp_path):
    trainer = Trainer(Directory(tmp_path, "trainer"))
    with worker_thread(Directory(tmp_path, "worker")):
        assert trainer.answers_are_right()
        for _ in range(3):
            trainer.train()
            assert trainer.answers_are_right()
        trainer.remote.stop()
    assert trainer.resyncs() == []
    assert [(sync.kind, sync.update) for sync in trainer.remote.syncs] == [("update", n) for n in (1, 2, 3)]
    assert all(sync.bytes > 1000 and sync.seconds > 0 for sync in trainer.remote.syncs)


DAMAGE = {
    "lost": lambda data: [],
    "repeated": lambda data: [data, data],
    "cut": lambda data: [data[:-9]],
    "flipped": lambda data: [data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]],
    "noise": lambda data: [b"noise"],
    "foreign": lambda data: [encode({**decode(data).header, "parent": "f" * 64}, decode(data).tensors)],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_whatever_happens_to_a_packet_the_next_answers_are_right(damage):
    ends = [Stream(end) for end in socket.socketpair()]
    lossy = Lossy(ends[0])
    trainer = Trainer(lossy, timeout=30.0)
    with worker_thread(ends[1]):
        assert trainer.answers_are_right()
        lossy.damage = [DAMAGE[damage]]
        trainer.train(2)
        assert trainer.answers_are_right()
        assert len(trainer.resyncs()) >= 1
        before = len(trainer.resyncs())
        trainer.train(2)
        assert trainer.answers_are_right() and len(trainer.resyncs()) == before
        trainer.remote.stop()


def test_damaged_full_weights_and_lost_requests_are_asked_for_again():
    ends = [Stream(end) for end in socket.socketpair()]
    lossy = Lossy(ends[0])
    trainer = Trainer(lossy, timeout=30.0)
    trainer.train(2)
    with worker_thread(ends[1]):
        cut_full = [
            lambda data: [data] if decode(data).kind != "full" else [data[:100] + b"?" + data[101:]]
        ] * 4
        lossy.damage = cut_full
        assert trainer.answers_are_right()
        trainer.remote.stop()


def test_a_trainer_with_other_terms_makes_the_worker_begin_anew(tmp_path):
    with worker_thread(Directory(tmp_path, "worker")) as worker:
        first = Trainer(Directory(tmp_path, "trainer"))
        assert first.answers_are_right()
        second = Trainer(Directory(tmp_path, "trainer"), rank=6)
        second.train()
        assert second.answers_are_right() and worker.replica.terms.rank == 6
        second.remote.stop()


def test_sampling_that_fails_is_reported_and_the_worker_goes_on(tmp_path):
    trainer = Trainer(Directory(tmp_path, "trainer"))
    fails = [True]

    def sampler(*arguments):
        if fails.pop() if fails else False:
            raise ValueError("out of cheese")
        return sample_tokens(*arguments)

    with worker_thread(Directory(tmp_path, "worker"), sampler=sampler):
        with pytest.raises(WorkerError, match="sampling failed: ValueError: out of cheese"):
            trainer.answers_are_right()
        assert trainer.answers_are_right()
        trainer.remote.stop()


def test_a_silent_worker_ends_the_wait_with_the_remedy(tmp_path):
    trainer = Trainer(Directory(tmp_path, "trainer"), timeout=0.2)
    with pytest.raises(WorkerError, match="no answer within 0 s: is the worker running"):
        trainer.answers_are_right()
    assert Worker(Directory(tmp_path / "b", "worker"), lambda terms: llama()).serve(idle=0.05) == "idle"


def test_the_mismatch_is_over_tokens_of_answers_that_ended(tmp_path):
    trainer = Trainer(Directory(tmp_path, "trainer"))
    with worker_thread(Directory(tmp_path, "worker")):
        ids, mask, *rest = trainer.arguments()
        sampled = trainer.remote.sample(trainer.model, ids, mask, *rest, torch.Generator().manual_seed(0))
        trainer.remote.stop()
    real = torch.arange(sampled.tokens.shape[1]) < sampled.lengths[:, None]
    generated = torch.cat([torch.zeros_like(ids, dtype=torch.bool), real], -1)
    attended = torch.cat([mask.bool(), real], -1)
    whole = torch.cat([ids, sampled.tokens], -1)
    answers = Rollout(
        whole,
        attended,
        generated,
        sampled.log_probs[real],
        sampled.lengths,
        sampled.finished,
        ("",) * len(ids),
    )
    assert 0 < int(answers.finished.sum()) < len(ids)
    with torch.no_grad():
        same = token_scores(trainer.model, whole, attended, generated).log_probs
    assert abs(mismatch(answers, same)) < 1e-6
    trainer.train(2)  # the trainer moved on, the worker's answers are old
    with torch.no_grad():
        moved = token_scores(trainer.model, whole, attended, generated).log_probs
    by_hand = [
        float(answers.log_probs[i] - moved[i])
        for i, (row, _) in enumerate(generated.nonzero().tolist()) if answers.finished[row]
    ]  # fmt: skip
    assert mismatch(answers, moved) == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)
    none = Rollout(*[getattr(answers, name) for name in list(vars(answers))[:5]], torch.zeros(6).bool(), ())
    assert mismatch(none, moved) is None


def test_the_command_line_refuses_a_wrong_address_and_missing_transport(capsys):
    for arguments in (["--model", "x", "--connect", "nowhere"], ["--model", "x"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "is no HOST:PORT" in capsys.readouterr().err
