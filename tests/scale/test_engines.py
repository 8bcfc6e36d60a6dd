"""Rollout engines: in process, a worker fed by packets, and vLLM against stand-ins of its two interfaces."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

from logra_lab.method import LoGRA
from logra_lab.rl.generation import Sampling, sample_tokens
from logra_lab.rl.policy import load_policy, pad_left
from logra_lab.rl.tasks import sums
from logra_lab.scale import vllm_engine
from logra_lab.scale.device import choose_device
from logra_lab.scale.engines import InProcess, Worker, joined, sync_metrics
from logra_lab.scale.loading import load
from logra_lab.scale.presets import preset
from logra_lab.scale.trainer import ScaleTrainer
from logra_lab.scale.transport import Directory
from logra_lab.scale.vllm_engine import VLLM, Answer
from logra_lab.scale.worker import Worker as WorkerProcess
from logra_lab.scale.worker import load_model
from tests.rl.models import generator, llama

PROMPTS = [[4, 5, 6], [7, 8], [9, 10, 11, 12], [3]]
SAMPLING = Sampling(max_new_tokens=4)


@pytest.fixture
def tiny_math(repository):
    return str(repository / "data" / "tiny-math")


def trainer(tiny_math, made_by=None, **changes):
    config = preset(
        "tiny", **dict(steps=3, prompts=16, eval_problems=8, pass_problems=8, model=tiny_math) | changes
    )
    return ScaleTrainer(load(config, choose_device("cpu")), task=sums(largest=20), engine=made_by)


def test_in_process_sampling_in_parts_gives_valid_samples_of_the_same_policy():
    model = llama()
    ids, mask = pad_left(PROMPTS, 0)
    whole = InProcess().sample(model, ids, mask, SAMPLING, (0,), 0, generator())
    assert torch.equal(whole.tokens, sample_tokens(model, ids, mask, SAMPLING, (0,), 0, generator()).tokens)
    parts = InProcess(rollouts=3).sample(
        model, ids, mask, dataclasses.replace(SAMPLING, temperature=0.0), (0,), 0, generator()
    )
    greedy = InProcess().sample(
        model, ids, mask, dataclasses.replace(SAMPLING, temperature=0.0), (0,), 0, generator()
    )
    for row, length in enumerate(greedy.lengths.tolist()):
        assert parts.lengths[row] == length and torch.equal(
            parts.tokens[row, :length], greedy.tokens[row, :length]
        )


def test_joined_samples_are_padded_to_the_longest():
    short, long = (
        sample_tokens(llama(), *pad_left([[5, 6]], 0), Sampling(max_new_tokens=n), (), 0, generator())
        for n in (2, 5)
    )
    both = joined([short, long], pad=9)
    assert both.tokens.shape == (2, 5) and both.tokens[0, 2:].tolist() == [9, 9, 9]
    assert both.log_probs[0, 2:].tolist() == [0, 0, 0] and both.lengths.tolist() == [2, 5]


def test_no_rollouts_at_once_are_refused():
    with pytest.raises(ValueError, match="rollouts=0 samples nothing"):
        InProcess(rollouts=0)


def test_a_worker_follows_the_run_by_packets_and_its_syncs_are_logged(tiny_math, tmp_path):
    process = WorkerProcess(Directory(tmp_path, "worker"), lambda terms: load_model(tiny_math, terms, "cpu"))
    thread = threading.Thread(target=process.serve, args=(60.0,), daemon=True)
    thread.start()
    made = trainer(
        tiny_math, Worker(Directory(tmp_path, "trainer"), timeout=60.0, checksum_every=2), engine="worker"
    )
    metrics = [made.train_step() for _ in range(3)]
    assert {line["status"] for line in metrics} == {"updated"}
    assert all(
        line["syncs"] == 1 and line["sync_bytes"] > 1000 and line["sync_seconds"] > 0 for line in metrics
    )
    assert {sync.kind for sync in made.engine.syncs} == {"update"}
    assert all(abs(line["mismatch"]) < 1e-5 for line in metrics)
    full = sum(p.numel() * p.element_size() for p in made.policy.model.parameters())
    assert max(line["sync_bytes"] for line in metrics) < full / 4
    made.engine.close()
    thread.join(60.0)
    assert not thread.is_alive()


def test_a_worker_before_it_is_attached_says_so(tmp_path):
    with pytest.raises(RuntimeError, match="call attach"):
        Worker(Directory(tmp_path, "trainer")).sample(None, None, None, SAMPLING, (), 0, generator())


class FakeTransfer:
    """vLLM's trainer side: copies the weights into the engine's model, and counts."""

    def __init__(self, source, target):
        self.source, self.target, self.sends = source, target, 0

    def send_weights(self):
        self.sends += 1
        self.target.load_state_dict(self.source.state_dict())


def fake_vllm(policy, path, skew=0.0, rounds=None):
    """An engine whose copy samples by itself, its log-probs `skew` too high."""
    copy = load_policy(path).model
    transfer = FakeTransfer(policy.model, copy)

    def generate(prompts, how):
        if rounds is not None:
            rounds.append(how)
        ids, mask = pad_left(prompts, 0)
        sampling = Sampling(temperature=how["temperature"], max_new_tokens=how["max_tokens"])
        noise = torch.Generator().manual_seed(how["seed"])
        found = sample_tokens(copy, ids, mask, sampling, how["stop_token_ids"], 0, noise)
        for row, length in enumerate(found.lengths.tolist()):
            log_probs = (found.log_probs[row, :length] + skew).tolist()
            yield Answer(found.tokens[row, :length].tolist(), log_probs, bool(found.finished[row]))

    return VLLM(generate, transfer), transfer


def test_vllm_gets_full_weights_once_per_commit_and_samples_the_trained_policy(tiny_math):
    rounds = []
    made = trainer(tiny_math, lambda one: fake_vllm(one.policy, tiny_math, rounds=rounds)[0], engine="vllm")
    metrics = [made.train_step() for _ in range(3)]
    made.evaluate(8)
    assert [line["syncs"] for line in metrics] == [1, 1, 1]
    full = sum(p.numel() * p.element_size() for p in made.policy.model.parameters())
    assert all(line["sync_bytes"] == full for line in metrics)
    assert [sync.update for sync in made.engine.syncs] == [0, 1, 2, 3]
    assert all(abs(line["mismatch"]) < 1e-5 for line in metrics)
    assert all(how["top_p"] == 1.0 and how["top_k"] == -1 and how["logprobs"] == 0 for how in rounds)
    assert len({how["seed"] for how in rounds}) == len(rounds)


def test_an_engine_that_disagrees_is_charged_to_the_budget(tiny_math):
    exact, skewed = (
        trainer(
            tiny_math, lambda one, s=skew: fake_vllm(one.policy, tiny_math, skew=s)[0], engine="vllm"
        ).train_step()
        for skew in (0.0, 5e-3)
    )
    assert skewed["mismatch"] == pytest.approx(0.3 * 5e-3, rel=1e-2)
    assert skewed["budget"] == pytest.approx(exact["budget"] - skewed["mismatch"], rel=1e-2)


def test_answers_without_log_probs_are_refused():
    with pytest.raises(ValueError, match="answer 1 has 2 tokens and 0 log-probs.*processed_logprobs"):
        vllm_engine.padded([Answer([1], [0.0], True), Answer([1, 2], [], True)], 0, torch.device("cpu"))


def test_vllm_that_loses_answers_is_an_error():
    engine = VLLM(lambda prompts, how: [], types.SimpleNamespace(send_weights=lambda: None))
    engine.attach(LoGRA(llama(), rank=2))
    with pytest.raises(RuntimeError, match="0 answers to 4 prompts"):
        engine.sample(None, *pad_left(PROMPTS, 0), SAMPLING, (0,), 0, generator())


def test_without_vllm_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match="needs vLLM.*Without it use engine='transformers'"):
        vllm_engine.colocated(llama(), "x")


def test_a_colocated_vllm_is_set_up_through_its_own_interface(monkeypatch):
    seen = {}

    class LLM:
        def __init__(self, **options):
            seen["llm"] = options

        def generate(self, requests, how, use_tqdm):
            seen["requests"], seen["how"] = requests, how.options
            output = types.SimpleNamespace(
                token_ids=[5, 0], finish_reason="stop",
                logprobs=[{5: types.SimpleNamespace(logprob=-1.0)}, {0: types.SimpleNamespace(logprob=-0.5)}],
            )  # fmt: skip
            return [types.SimpleNamespace(outputs=[output]) for _ in requests]

    class Params:
        def __init__(self, **options):
            self.options = options

    def init(init_info, client, source):
        seen["client"], seen["source"] = client, source
        return types.SimpleNamespace(send_weights=lambda: seen.update(sent=True))

    transfer = types.SimpleNamespace(
        WeightTransferTrainerFactory=types.SimpleNamespace(trainer_init=init),
        ModuleSource=lambda model: ("source", model),
    )
    record = types.SimpleNamespace
    for name, module in {
        "vllm": record(LLM=LLM, SamplingParams=Params),
        "vllm.config": record(WeightTransferConfig=lambda backend: backend),
        "vllm.distributed": record(),
        "vllm.distributed.weight_transfer": transfer,
        "vllm.distributed.weight_transfer.ipc_engine": record(IPCTrainerInitInfo=lambda **options: options),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    model = llama()
    engine = vllm_engine.colocated(model, "some/model", memory=0.2)
    engine.attach(LoGRA(model, rank=2))
    found = engine.sample(None, *pad_left(PROMPTS, 0), SAMPLING, (0,), 0, generator())
    assert (
        found.tokens.tolist() == [[5, 0]] * 4
        and found.finished.all()
        and found.log_probs[0].tolist() == [-1.0, -0.5]
    )
    assert (
        seen["llm"]["logprobs_mode"] == "processed_logprobs" and seen["llm"]["gpu_memory_utilization"] == 0.2
    )
    assert seen["requests"][1] == {"prompt_token_ids": [7, 8]} and seen["sent"] and seen["source"][1] is model
    for verb in (
        "init_weight_transfer_engine",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
    ):
        assert callable(getattr(seen["client"], verb))


def test_a_server_is_asked_for_tokens_and_log_probs_in_the_order_of_the_prompts():
    asked = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.update(
                path=self.path, body=json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            )
            choices = [
                {
                    "index": n,
                    "token_ids": [n, 0],
                    "logprobs": {"token_logprobs": [-1.0, -2.0]},
                    "finish_reason": reason,
                }
                for n, reason in ((1, "length"), (0, "stop"))
            ]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": choices}).encode("utf-8"))

        def log_message(self, *_):
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/"
        answers = vllm_engine.completions(url, [[1, 2], [3]], vllm_engine.settings(SAMPLING, (0,), 7), 10.0)
    finally:
        server.shutdown()
        server.server_close()
    assert [answer.tokens for answer in answers] == [[0, 0], [1, 0]] and [a.finished for a in answers] == [
        True,
        False,
    ]
    assert asked["path"] == "/v1/completions" and asked["body"]["prompt"] == [[1, 2], [3]]
    assert asked["body"]["return_token_ids"] is True and asked["body"]["stop_token_ids"] == [0]
    with pytest.raises(RuntimeError, match="gave no answers.*is it running"):
        vllm_engine.completions(url, [[1]], {}, 1.0)


def test_an_engine_that_follows_needs_logra(tiny_math):
    with pytest.raises(RuntimeError, match="follows LoGRA's commits"):
        trainer(tiny_math, None, engine="vllm", arm_name="adamw", control="none")


def test_an_engine_that_was_asked_for_must_be_there(tiny_math):
    with pytest.raises(RuntimeError, match="engine='worker' is asked for, but none was given"):
        trainer(tiny_math, None, engine="worker")


def test_sync_metrics_of_nothing_are_zero():
    assert sync_metrics([]) == {"syncs": 0, "sync_bytes": 0, "sync_seconds": 0}
