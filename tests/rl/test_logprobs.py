"""The chunked head: the same numbers and gradients as whole logits, without whole logits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logra_lab.method import LoGRA
from logra_lab.rl.logprobs import (
    apply_head,
    hidden_states,
    plain_score_tokens,
    positions_per_chunk,
    score_tokens,
    token_scores,
)
from tests.rl.models import gpt2, llama


def scored(score, chunk, head_trains=True, temperature=0.7):
    model = llama()
    model.lm_head.weight.requires_grad_(head_trains)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(37, 24, generator=generator).requires_grad_()
    targets = torch.randint(22, (37,), generator=generator)
    scores = score(hidden, targets, model, temperature, chunk)
    weights = torch.randn(37, generator=generator)
    (weights * scores.log_probs).sum().backward()
    return scores, hidden.grad, model.lm_head.weight.grad


@pytest.mark.parametrize("chunk", [1, 5, 37, 64, None])
@pytest.mark.parametrize("head_trains", [True, False])
def test_chunks_of_any_size_give_the_plain_log_probs_entropies_and_gradients(chunk, head_trains):
    ours, hidden, head = scored(score_tokens, chunk, head_trains)
    plain, plain_hidden, plain_head = scored(plain_score_tokens, None, head_trains)
    torch.testing.assert_close(ours.log_probs, plain.log_probs)
    torch.testing.assert_close(ours.entropy, plain.entropy)
    torch.testing.assert_close(hidden, plain_hidden)
    if head_trains:
        torch.testing.assert_close(head, plain_head, rtol=1e-4, atol=1e-5)
    else:
        assert head is None and plain_head is None


class HeadProducts(TorchDispatchMode):
    """Counts matrix products by the head, [22, 24] or turned."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.count += any(isinstance(a, torch.Tensor) and set(a.shape) == {22, 24} for a in args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("head_trains", "products"), [(False, 2), (True, 3)])
def test_a_frozen_head_is_multiplied_by_twice_a_chunk_and_a_trained_one_thrice(head_trains, products):
    with HeadProducts() as seen:
        scored(
            score_tokens, 13, head_trains
        )  # its own gradient is a product by hidden states, not by the head
    assert seen.count == 3 * products


def test_a_sketched_head_takes_part_in_backward_though_its_weight_asks_for_nothing():
    model = llama()
    optimizer = LoGRA(model, rank=4, targets=["lm_head"], rule="lr")
    weights = torch.randn(37, generator=torch.Generator().manual_seed(1))
    sketches = {}
    for score in (score_tokens, plain_score_tokens):
        hidden = torch.randn(37, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()
        (weights * score(hidden, torch.arange(37) % 22, model, 1.0, 13).log_probs).sum().backward()
        sketches[score] = optimizer.sketches["lm_head"].clone()
        optimizer.zero_grad()
    assert sketches[score_tokens].norm() > 0
    torch.testing.assert_close(sketches[score_tokens], sketches[plain_score_tokens])


def test_log_probs_and_entropy_are_those_of_the_softmax_at_the_temperature():
    scores, _, _ = scored(score_tokens, 8, temperature=0.5)
    generator = torch.Generator().manual_seed(0)
    hidden, targets = torch.randn(37, 24, generator=generator), None
    targets = torch.randint(22, (37,), generator=generator)
    distribution = torch.distributions.Categorical(logits=(llama().lm_head(hidden) / 0.5))
    torch.testing.assert_close(scores.log_probs, distribution.log_prob(targets))
    torch.testing.assert_close(scores.entropy, distribution.entropy())


class Largest(TorchDispatchMode):
    """The most elements of any floating tensor made inside."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.elements = max(self.elements, value.numel())
        return result


@pytest.mark.parametrize(("score", "whole"), [(score_tokens, False), (plain_score_tokens, True)])
def test_no_tensor_of_positions_times_vocabulary_is_made_forward_or_backward(score, whole):
    positions, vocabulary, chunk = 301, 997, 16
    model = llama(vocabulary=vocabulary)
    model.lm_head.weight.requires_grad_(False)
    hidden = torch.randn(positions, 24).requires_grad_()
    with Largest() as largest:
        score(hidden, torch.arange(positions), model, 1.0, chunk).log_probs.sum().backward()
    assert (largest.elements == positions * vocabulary) is whole
    assert whole or largest.elements <= max(chunk * vocabulary, positions * 24, vocabulary * 24)


CHILD = """
import resource, sys, torch
from logra_lab.rl.logprobs import score_tokens, plain_score_tokens
from tests.rl.models import llama
torch.set_num_threads(1)
score = {"chunked": score_tokens, "plain": plain_score_tokens}[sys.argv[1]]
model = llama(vocabulary=40_000)
model.requires_grad_(False)
peaks = []
for positions in (64, 1024):
    hidden = torch.randn(positions, 24).requires_grad_()
    score(hidden, torch.arange(positions), model, 1.0, 64).log_probs.sum().backward()
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is counted in kB on Linux only")
def test_measured_peak_memory_does_not_grow_with_positions_times_vocabulary(repository):
    def growth(kind):  # MiB, in a process of its own where freed blocks go back to the system
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, "-c", CHILD, kind],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(run.stdout)

    logits = 1024 * 40_000 * 4 / 2**20
    assert growth("plain") > logits
    assert growth("chunked") < 0.2 * logits


@pytest.mark.parametrize("make", [llama, gpt2])
def test_head_applied_to_body_gives_the_models_own_logits(make):
    model = make()
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        torch.testing.assert_close(apply_head(model, hidden_states(model, ids)), model(input_ids=ids).logits)


def test_scalings_after_the_head_are_applied():
    model, hidden = llama(), torch.randn(3, 24)
    plain = apply_head(model, hidden)
    model.config.final_logit_softcapping = 2.0
    torch.testing.assert_close(apply_head(model, hidden), 2 * torch.tanh(plain / 2))
    model.config.final_logit_softcapping = None
    model.config.logits_scaling = 4.0
    torch.testing.assert_close(apply_head(model, hidden), plain / 4)
    model.config.logits_scaling, model.config.logit_scale = None, 0.5
    torch.testing.assert_close(apply_head(model, hidden), plain / 2)


def test_a_chunk_of_logits_stays_within_64_mib_but_never_below_64_positions():
    assert positions_per_chunk(22) * 22 * 4 <= 64 * 2**20 < (positions_per_chunk(22) + 1) * 22 * 4
    assert positions_per_chunk(10**6) == 64


IDS = torch.tensor([[3, 4, 5, 6]])
REAL = torch.ones(1, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("attention", "generated", "temperature", "message"),
    [
        (REAL, REAL, 1.0, "nothing before it"),
        (REAL, ~REAL, 1.0, "marks no token"),
        (REAL[:, :3], REAL, 1.0, r"attention_mask is \[1, 3\]"),
        (REAL, REAL[:, :3], 1.0, r"generated_mask is \[1, 3\]"),
        (REAL, REAL.long(), 1.0, "torch.int64; make it bool"),
        (
            torch.tensor([[1, 1, 1, 0]]),
            torch.tensor([[False, False, False, True]]),
            1.0,
            "marks padding as sampled",
        ),
        (torch.tensor([[0, 1, 1, 1]]), torch.tensor([[False, True, False, False]]), 1.0, "nothing before it"),
        (REAL, torch.tensor([[False, False, False, True]]), 0.0, "temperature=0.0"),
    ],
)
def test_masks_and_temperatures_that_can_not_be_scored_are_refused(
    attention, generated, temperature, message
):
    with pytest.raises(ValueError, match=message):
        token_scores(llama(), IDS, attention, generated, temperature=temperature)
