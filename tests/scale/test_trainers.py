"""LoGRA in Hugging Face's Trainer and GRPOTrainer: learns, clips, follows the scheduler, resumes; refusals."""

from __future__ import annotations

import types

import pytest
import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from logra_lab.method import LoGRA, TrustRegion
from logra_lab.rl.rewards import exact_integer
from logra_lab.rl.tasks import sums
from logra_lab.scale.trainers import LastInputs, Refused, logra_for
from tests.rl.models import llama


@pytest.fixture
def model(repository):
    return AutoModelForCausalLM.from_pretrained(repository / "data" / "tiny-math")


class Sums(Dataset):
    """Padded sums with labels at the answer, as a collator would make them."""

    def __init__(self, tokenizer, count=64):
        self.rows = []
        for problem in sums(largest=20).train[:count]:
            prompt, answer = (tokenizer(text)["input_ids"] for text in (problem.prompt, problem.answer))
            ids = [*prompt, *answer, 0]
            pad = 10 - len(ids)
            labels = [-100] * len(prompt) + [*answer, 0]
            row = {
                "input_ids": ids + [0] * pad,
                "attention_mask": [1] * len(ids) + [0] * pad,
                "labels": labels + [-100] * pad,
            }
            self.rows.append(row)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Watch(TrainerCallback):
    """What the optimizer looks like as the trainer steps."""

    def __init__(self, optimizer):
        self.optimizer, self.lrs, self.grads, self.kl, self.norms = optimizer, [], [], [], []
        step = optimizer.step

        def noting(*args, **kwargs):
            self.grads += [target.name for target in optimizer.targets if target.weight.grad is not None]
            self.lrs.append(optimizer.param_groups[0]["lr"])
            report = step(*args, **kwargs)
            self.kl.append((report.predicted_kl, report.budget, report.scale))
            self.norms.append(report.sketch_norm)
            return report

        optimizer.step = noting


def arguments(folder, **changes):
    settings = dict(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        lr_scheduler_type="linear", max_grad_norm=0.05, save_steps=3, report_to=[], disable_tqdm=True, use_cpu=True,
        seed=1, logging_steps=1, learning_rate=3e-4,
    )  # fmt: skip
    return TrainingArguments(**settings | changes)


def hf_trainer(model, tokenizer, folder, **changes):
    options = {name: changes.pop(name) for name in ("trust_region", "rank") if name in changes}
    args = arguments(folder, **changes)
    optimizer = logra_for(model, args, **{"rank": 8} | options)
    data = Sums(tokenizer)
    return Trainer(model=model, args=args, train_dataset=data, optimizers=(optimizer, None)), optimizer


@pytest.fixture
def tokenizer(repository):
    return AutoTokenizer.from_pretrained(repository / "data" / "tiny-math")


def test_trainer_learns_without_a_gradient_under_its_scheduler(model, tokenizer, tmp_path):
    trainer, optimizer = hf_trainer(
        model,
        tokenizer,
        tmp_path,
        max_steps=12,
        save_steps=100,
        trust_region=TrustRegion(budget=1e-3, final_budget=1e-3),
    )
    watch = Watch(optimizer)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert watch.grads == [] and optimizer.updates == 12
    assert watch.lrs[0] == pytest.approx(3e-4) and watch.lrs[-1] < 0.2 * watch.lrs[0]
    assert all(kl is not None and kl >= 0 and scale <= 1 for kl, _, scale in watch.kl)


def test_the_brake_bites_where_the_budget_is_small(model, tokenizer, tmp_path):
    region = TrustRegion(budget=1e-9, final_budget=1e-9)
    trainer, optimizer = hf_trainer(
        model, tokenizer, tmp_path, max_steps=2, save_steps=100, trust_region=region
    )
    watch = Watch(optimizer)
    trainer.train()
    assert all(scale < 0.5 for _, _, scale in watch.kl)


def test_clipping_acts(repository, tokenizer, tmp_path):
    moved = {}
    for limit in (1e-4, 1e9):
        model = AutoModelForCausalLM.from_pretrained(repository / "data" / "tiny-math")
        trainer, optimizer = hf_trainer(
            model, tokenizer, tmp_path / str(limit), max_steps=1, save_steps=100, max_grad_norm=limit
        )
        watch = Watch(optimizer)
        trainer.train()
        assert watch.norms[0] > 1e-4
        moved[limit] = optimizer.moments
    small, large = (torch.stack([m.sum() for m in moved[limit].values()]).sum() for limit in (1e-4, 1e9))
    assert small < 1e-3 * large


def test_trainer_resumes_from_its_checkpoint(repository, tokenizer, tmp_path):
    def fresh(folder):
        model = AutoModelForCausalLM.from_pretrained(repository / "data" / "tiny-math")
        return hf_trainer(model, tokenizer, folder)

    whole, first = fresh(tmp_path / "run")
    whole.train()
    again, second = fresh(tmp_path / "run")
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert first.updates == second.updates == 6
    for name, moment in first.moments.items():
        torch.testing.assert_close(second.moments[name], moment)
        torch.testing.assert_close(second.weight(name), first.weight(name))


def test_grpo_trainer_takes_steps_and_brakes(repository, tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is missing: pip install 'logra-lab[scale]'")
    trainer, optimizer = grpo(trl, repository, tmp_path, max_steps=3)
    watch = Watch(optimizer)
    trainer.train()
    assert watch.grads == [] and optimizer.updates + optimizer.no_signal_steps == 3 and optimizer.updates
    judged = [(kl, budget, scale) for kl, budget, scale in watch.kl if kl]
    assert judged and all(scale <= 1 and kl * scale**2 <= budget * 1.001 for kl, budget, scale in judged)
    assert (tmp_path / "checkpoint-2" / "optimizer.pt").exists()


def grpo(trl, repository, output, **changes):
    """TRL's trainer on tiny-math with LoGRA and the KL brake, and the optimizer."""
    from datasets import Dataset as Table

    folder = repository / "data" / "tiny-math"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    problems = sums(largest=20).train[:64]
    table = Table.from_list([{"prompt": p.prompt, "gold": p.answer} for p in problems])

    def right(completions, gold, **_):
        return [exact_integer(text, answer) for text, answer in zip(completions, gold, strict=True)]

    settings = dict(
        output_dir=str(output), max_steps=5, per_device_train_batch_size=16, num_generations=8, seed=2,
        learning_rate=1e-4, bf16=False, use_cpu=True, report_to=[], disable_tqdm=True, save_steps=2, logging_steps=1,
        max_completion_length=5,
    )  # fmt: skip
    args = trl.GRPOConfig(**settings | changes)
    optimizer = logra_for(model, args, rank=8, trust_region=TrustRegion(budget=1e-4, final_budget=1e-4))
    trainer = trl.GRPOTrainer(
        model=model, args=args, reward_funcs=right, train_dataset=table, processing_class=tokenizer,
        optimizers=(optimizer, None),
    )  # fmt: skip
    return trainer, optimizer


def test_grpo_trainer_resumes_as_if_it_had_never_stopped(repository, tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is missing: pip install 'logra-lab[scale]'")
    whole, first = grpo(trl, repository, tmp_path / "run")
    whole.train()
    again, second = grpo(trl, repository, tmp_path / "run")
    torch.manual_seed(99)  # the checkpoint brings its own random state
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert first.updates + first.no_signal_steps == second.updates + second.no_signal_steps == 5
    assert first.updates > 3 and first.updates == second.updates
    kept = ("loss", "reward", "completions/mean_length", "learning_rate")
    lines = [
        [{name: line[name] for name in kept} for line in trainer.state.log_history if "reward" in line]
        for trainer in (whole, again)
    ]
    assert len(lines[0]) == 5 and lines[1][2:] == lines[0][2:]
    for name, moment in first.moments.items():
        assert torch.equal(second.moments[name], moment), name
        assert torch.equal(second.weight(name), first.weight(name)), name


def test_the_last_inputs_mark_labels_completions_or_everything():
    model = llama().train()
    source = LastInputs(model)
    with pytest.raises(RuntimeError, match="no training forward was seen"):
        source()
    ids = torch.randint(1, 20, (3, 6))
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[0, :2] = 0
    labels = torch.full((3, 6), -100)
    labels[:, 4:] = 1
    model(input_ids=ids, attention_mask=mask, labels=labels)
    assert source().positions == 4  # two sequences, two labels each
    model(input_ids=ids, attention_mask=mask, logits_to_keep=4)
    assert source().positions == 6  # three completions tokens each
    model(input_ids=ids, attention_mask=mask)
    assert source().positions == 3 + 5  # all that something stands before
    with torch.no_grad():
        model(input_ids=ids[:1, :2])
    assert source().positions == 8
    source.close()
    model(input_ids=ids[:1, :2])
    assert source().positions == 8


def quantised():
    model = llama()
    model.is_quantized = True
    return model


def adapted():
    model = llama()
    model.peft_config = {}
    return model


def offloaded():
    model = llama()
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": "cpu"}
    return model


@pytest.mark.parametrize(
    ("make", "setting", "words"),
    [
        (llama, {"deepspeed": "zero3.json"}, "args.deepspeed: DeepSpeed ZeRO"),
        (llama, {"fsdp": "full_shard"}, "args.fsdp: .*logra-train --sharding fsdp"),
        (llama, {"fsdp": "full_shard offload"}, "CPU offload"),
        (llama, {"fp16": True}, "args.fp16: it scales the loss.*bf16=True"),
        (llama, {"torch_compile": True}, "args.torch_compile"),
        (llama, {"auto_find_batch_size": True}, "args.auto_find_batch_size"),
        (llama, {"n_gpu": 2}, "args.n_gpu: .*nn.DataParallel.*torchrun"),
        (quantised, {}, "quantised weights .*bf16 and use precision='split'"),
        (adapted, {}, "peft adapter.*merge_and_unload"),
        (offloaded, {}, "CPU offload.*halves='host'"),
    ],
)
def test_settings_that_can_not_work_are_refused_by_name(make, setting, words):
    args = types.SimpleNamespace(
        **{"learning_rate": 1e-6, "weight_decay": 0.0, "max_grad_norm": 1.0} | setting
    )
    model = make()
    with pytest.raises(Refused, match=words):
        logra_for(model, args)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_learning_rate_decay_and_clipping_come_from_the_arguments():
    args = types.SimpleNamespace(learning_rate=2e-6, weight_decay=0.1, max_grad_norm=0.5)
    optimizer = logra_for(llama(), args, rank=4)
    assert isinstance(optimizer, LoGRA) and optimizer.max_grad_norm == 0.5
    assert optimizer.param_groups[0]["lr"] == 2e-6 and optimizer.param_groups[0]["weight_decay"] == 0.1
