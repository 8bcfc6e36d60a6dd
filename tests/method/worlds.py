"""Small models, batches and slow float64 references that the tests of `logra_lab.method` share."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 50


def llama(seed: int = 0, *, attention: str = "sdpa", tied: bool = False, **changes) -> LlamaForCausalLM:
    """A random two-layer Llama; all sizes differ, so that shapes can't be confused."""
    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    config = LlamaConfig(**(sizes | changes), attn_implementation=attention)
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():  # the default .02 makes logits so flat that KL is rounding
        if parameter.ndim == 2:
            parameter.data.mul_(6)
    return model


def tokens(rows: int = 8, length: int = 12, seed: int = 1) -> Tensor:
    """Random token ids [rows, length]."""
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, ids: Tensor, total: int | None = None) -> Tensor:
    """Mean next-token loss over `total` positions (those of `ids` unless given), so that parts add up."""
    logits = model(input_ids=ids).logits[:, :-1]
    summed = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum")
    return summed / (total or ids[:, 1:].numel())


class TokenProbe:
    """Every position of some sequences, through a Llama's body and head."""

    def __init__(self, ids: Tensor, chunk: int = 7, temperature: float = 1.0) -> None:
        self.ids, self.chunk, self.temperature = ids, chunk, temperature
        self.largest_chunk = 0

    def features(self, model: nn.Module) -> Tensor:
        return model.model(input_ids=self.ids).last_hidden_state.flatten(0, 1)

    def logits(self, model: nn.Module, chunk: Tensor) -> Tensor:
        self.largest_chunk = max(self.largest_chunk, len(chunk))
        return model.lm_head(chunk).float() / self.temperature


class Stack(nn.Module):
    """Linear layers of given (d, k) with a tanh between; named so that all of them are targets."""

    def __init__(
        self, *shapes: tuple[int, int], bias: bool = False, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"q_proj": nn.Linear(k, d, bias=bias, dtype=dtype)}) for d, k in shapes
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer["q_proj"](x))
        return x


def stack(*shapes: tuple[int, int], seed: int = 0, **options) -> Stack:
    torch.manual_seed(seed)
    return Stack(*shapes, **options)


def dense_gradients(model: nn.Module, run) -> dict[str, Tensor]:
    """`run(model)` backward on an untouched float32 copy: G [d, k] of every linear by name."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.requires_grad_(True)
        parameter.grad = None
    run(twin)
    return {
        n: m.weight.grad
        for n, m in twin.named_modules()
        if isinstance(m, nn.Linear) and m.weight.grad is not None
    }


def snapshot(model: nn.Module, optimizer) -> dict:
    """Everything that an error must leave as it was."""
    return copy.deepcopy(
        {
            "weights": dict(model.state_dict()),
            "sketches": {name: sketch.clone() for name, sketch in optimizer.sketches.items()},
            "state": optimizer.state_dict(),
        }
    )


def same(left, right) -> bool:
    """Deep bit-equality of nested containers of tensors and plain values."""
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left == right


def reference_row_adam_lr(
    weight: Tensor,
    sketches: list[Tensor],
    projections: list[Tensor],
    lr: float,
    decay: float,
    beta2: float,
    eps: float,
) -> Tensor:
    """Rule "lr" in float64, row by row, with loops instead of formulas over whole tensors."""
    weight, moment = weight.double().clone(), torch.zeros(len(weight), dtype=torch.float64)
    for step, (sketch, projection) in enumerate(zip(sketches, projections, strict=True), start=1):
        weight *= 1 - lr * decay
        for row in range(len(weight)):
            squares = [float(s) ** 2 for s in sketch[row].double()]
            moment[row] = beta2 * moment[row] + (1 - beta2) * sum(squares) / len(squares)
            rms = (moment[row] / (1 - beta2**step)) ** 0.5
            weight[row] -= lr * (sketch[row].double() / (rms + eps)) @ projection.double()
    return weight


def reference_row_adam_paper(
    weights: dict[str, Tensor], sketches: list[dict], projections: list[dict], tokens: list[float], ratio: float,
    beta2: float, eps: float,
) -> dict[str, Tensor]:  # fmt: skip
    """Rule "paper" in float64 over several layers at once; builds U A, which the method never does."""
    weights = {name: weight.double().clone() for name, weight in weights.items()}
    moments = {name: torch.zeros(len(weight), dtype=torch.float64) for name, weight in weights.items()}
    for step, (sketch_of, projection_of, count) in enumerate(
        zip(sketches, projections, tokens, strict=True), 1
    ):
        proposed = {}
        for name in weights:
            scaled = sketch_of[name].double() / count
            moments[name] = beta2 * moments[name] + (1 - beta2) * (scaled**2).mean(1)
            rho = torch.sqrt(moments[name] / (1 - beta2**step))
            inverse = 1 / (rho + eps * rho.mean())
            inverse = inverse / torch.sqrt((inverse**2).mean())
            rebalanced = torch.diag(inverse) @ scaled
            factor = rebalanced * torch.linalg.norm(scaled) / torch.linalg.norm(rebalanced)
            proposed[name] = factor @ projection_of[name].double()
        size = sum(float((w**2).sum()) for w in weights.values())
        change = sum(float((p**2).sum()) for p in proposed.values())
        for name in weights:
            weights[name] -= ratio * (size / change) ** 0.5 * proposed[name]
    return weights
