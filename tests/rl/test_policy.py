"""The policy: what is sampled is what is scored, and padding, modes and the stop token are handled by length."""

from __future__ import annotations

import pytest
import torch

from logra_lab.rl.generation import generate_tokens, sample_tokens
from logra_lab.rl.policy import (
    Sampling,
    encode_prompts,
    load_policy,
    pad_left,
    rollout,
    switch_dropout_off,
    token_scores,
)
from logra_lab.rl.tokenizer import character_tokenizer
from tests.rl.models import generator, gpt2, llama, policy

PROMPTS = ["1+2=", "45+6=", "7+88+9=", "3="]
SAMPLING = Sampling(max_new_tokens=6)


def sampled(model=None, seed=0, sampling=SAMPLING, sampler=sample_tokens, times=8):
    p = policy(model)
    return rollout(p, p.encode(PROMPTS * times), sampling, generator(seed), sampler=sampler)


def scores_of(model, ids, attention, generated, **options):
    return token_scores(model, ids, attention, generated, **options).log_probs


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_scored_log_probs_are_those_the_tokens_were_sampled_with(make, temperature):
    model = make()
    answers = sampled(model, sampling=Sampling(temperature, 6))
    scored = scores_of(
        model, answers.input_ids, answers.attention_mask, answers.generated_mask, temperature=temperature
    )
    torch.testing.assert_close(scored, answers.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_padding_left_right_or_none_gives_the_same_log_probs(make):
    model = make()
    answers = sampled(model, times=1)
    rows = [
        (ids[a], g[a]) for ids, a, g in zip(answers.input_ids, answers.attention_mask, answers.generated_mask)
    ]
    longest = max(len(ids) for ids, _ in rows) + 3

    def padded(left: bool):
        ids = torch.full((len(rows), longest), 5)  # what stands in the padding must not matter
        attention, generated = torch.zeros(2, len(rows), longest, dtype=torch.bool)
        for i, (tokens, g) in enumerate(rows):
            place = slice(longest - len(tokens), longest) if left else slice(0, len(tokens))
            ids[i, place], attention[i, place], generated[i, place] = tokens, True, g
        return scores_of(model, ids, attention, generated)

    alone = torch.cat([scores_of(model, ids[None], torch.ones_like(ids)[None], g[None]) for ids, g in rows])
    torch.testing.assert_close(padded(left=True), alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(padded(left=False), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_our_loop_and_hugging_face_generate_draw_the_same_tokens(make):
    ours, theirs = sampled(make(), seed=3), sampled(make(), seed=3, sampler=generate_tokens)
    assert torch.equal(ours.input_ids, theirs.input_ids)
    assert torch.equal(ours.generated_mask, theirs.generated_mask)
    assert torch.equal(ours.finished, theirs.finished) and ours.texts == theirs.texts
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=1e-5, rtol=0)


def test_greedy_decoding_is_the_same_in_both_samplers_and_needs_no_randomness():
    greedy = Sampling(temperature=0.0, max_new_tokens=6)
    runs = [
        sampled(seed=s, sampling=greedy, sampler=f, times=1)
        for s, f in ((0, sample_tokens), (1, generate_tokens))
    ]
    assert torch.equal(runs[0].input_ids, runs[1].input_ids)


def test_tokens_are_drawn_with_the_models_own_probabilities():
    model = llama()
    p = policy(model)
    n = 20_000
    answers = rollout(p, p.encode(["1+2="]) * n, Sampling(0.8, 1), generator())
    counts = torch.bincount(answers.input_ids[:, -1], minlength=len(p.tokenizer)) / n
    with torch.no_grad():
        ids = torch.tensor(p.encode(["1+2="]))
        expected = (model(input_ids=ids).logits[0, -1] / 0.8).softmax(-1)
    error = (expected * (1 - expected) / n).sqrt()
    assert ((counts - expected).abs() < 5 * error + 1e-4).all()


def test_a_run_depends_on_its_generator_alone_and_leaves_the_global_seed_untouched():
    before = torch.get_rng_state()
    first = sampled(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(first.input_ids, sampled(seed=4).input_ids)
    assert not torch.equal(first.input_ids, sampled(seed=5).input_ids)


def test_the_sampled_stop_is_trained_what_follows_is_not_and_a_cut_answer_has_no_stop():
    answers = sampled(seed=1, times=30)
    stop = 0  # pad = eos in this tokenizer
    assert 0 < answers.finished.sum() < len(answers.finished)
    for ids, generated, length, finished in zip(
        answers.input_ids, answers.generated_mask, answers.lengths, answers.finished, strict=True
    ):
        tokens = ids[generated]
        assert len(tokens) == length
        assert (tokens == stop).sum() == (1 if finished else 0)
        if finished:
            assert tokens[-1] == stop and not generated[int(generated.nonzero()[-1]) + 1 :].any()
        else:
            assert length == SAMPLING.max_new_tokens


def test_masks_come_from_lengths_so_a_stop_token_inside_a_prompt_changes_nothing():
    p = policy()
    prompts = [[5, 0, 6], [0, 7], [8]]
    ids, mask = pad_left(prompts, 0)
    assert mask.tolist() == [[True, True, True], [False, True, True], [False, False, True]]
    answers = rollout(p, prompts, SAMPLING, generator())
    assert answers.attention_mask.sum(-1).tolist() == [
        len(q) + n for q, n in zip(prompts, answers.lengths.tolist())
    ]
    assert torch.equal(answers.generated_mask.sum(-1), answers.lengths)


def test_texts_hold_the_answer_without_its_stop_token():
    answers = sampled(seed=1, times=10)
    tokenizer = character_tokenizer()
    for text, ids, generated, finished in zip(
        answers.texts, answers.input_ids, answers.generated_mask, answers.finished, strict=True
    ):
        tokens = ids[generated].tolist()
        kept = [t for t in (tokens[:-1] if finished else tokens) if t > 0]
        assert text == tokenizer.decode(kept, skip_special_tokens=True)


@pytest.mark.parametrize("sampler", [sample_tokens, generate_tokens])
def test_generation_restores_modes_cache_and_checkpointing_even_after_an_error(sampler):
    model = llama()
    model.train()
    model.model.layers[0].eval()  # someone keeps one layer in evaluation mode
    model.activation_checkpointing_enable()
    model.config.use_cache = False

    def state():
        return (
            [m.training for m in model.modules()],
            model.config.use_cache,
            model.is_activation_checkpointing,
        )

    before = state()
    sampled(model, sampler=sampler, times=1)
    assert state() == before
    model.lm_head.forward = None  # breaks the next pass
    with pytest.raises(TypeError):
        sampled(model, sampler=sampler, times=1)
    assert state() == before


def test_dropout_is_off_in_training_mode_once_switched_off():
    model = gpt2()
    switch_dropout_off(model)
    answers = sampled(model, times=1)
    model.train()
    scored = scores_of(model, answers.input_ids, answers.attention_mask, answers.generated_mask)
    torch.testing.assert_close(scored, answers.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 5}, "top_k=5 samples from a cut distribution"),
        ({"top_p": 0.9}, "top_p=0.9 samples from a cut distribution"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_sampling_that_could_not_be_scored_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)


def test_a_checkpoints_own_generation_settings_do_not_change_the_sampled_distribution():
    model = llama()
    model.generation_config.update(
        top_k=1, top_p=0.1, repetition_penalty=5.0, do_sample=True, temperature=0.01
    )
    for sampler in (sample_tokens, generate_tokens):
        assert torch.equal(sampled(model, sampler=sampler).input_ids, sampled(llama()).input_ids)


def test_a_chat_template_is_rendered_to_text_and_then_encoded():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}({{ m.content }}){% endfor %}{% if add_generation_prompt %}= {% endif %}"
    )
    encoded = encode_prompts(tokenizer, ["1+2"], prefill="3")
    assert encoded == [tokenizer("(1+2)= 3")["input_ids"]]
    assert encode_prompts(tokenizer, ["1+2"], chat=False) == [tokenizer("1+2")["input_ids"]]


def test_prompts_without_tokens_and_missing_templates_are_refused():
    tokenizer = character_tokenizer()
    with pytest.raises(ValueError, match="the prompt '' has no tokens"):
        encode_prompts(tokenizer, ["1+1=", ""])
    with pytest.raises(ValueError, match="chat=True but the tokenizer has no chat template"):
        encode_prompts(tokenizer, ["1+1="], chat=True)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_saved_model_and_tokenizer_load_from_a_folder(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    loaded = load_policy(tmp_path)
    assert loaded.stop_ids == (0,) and not loaded.model.training
    assert loaded.encode(["12+3="]) == [character_tokenizer()("12+3=")["input_ids"]]
    ids = torch.tensor(loaded.encode(["12+3="]))
    torch.testing.assert_close(loaded.model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_model_whose_logits_are_not_its_head_applied_to_its_body_is_refused(tmp_path, monkeypatch):
    model = llama()
    model.save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    original = type(model).forward

    def scaled(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        output.logits = 3 * output.logits
        return output

    monkeypatch.setattr(type(model), "forward", scaled)
    with pytest.raises(ValueError, match="LlamaForCausalLM: its logits differ by .*apply_head"):
        load_policy(tmp_path)
