"""What lesson 04 measures: bytes that wait for backward, tensors of a weight's shape, FLOPs, seconds against rank.

Everything runs on a small random Llama: what is kept and computed depends on shapes, not on what a model knows. Left
out: the loss in chunks and long contexts (lesson 01 and `make bench` have them), so logits weigh more here.

Shapes: T token positions, d output rows and k input columns of a weight, r rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from logra_lab.method import DEFAULT_TARGETS, LoGRA
from logra_lab.method.targets import find_targets
from logra_lab.rl.baselines import target_weights

Run = Callable[[], Tensor]


def small_llama(
    width: int = 384, ffn: int = 1024, layers: int = 2, heads: int = 6, vocab: int = 320
) -> LlamaForCausalLM:
    """A random Llama in fp32 with tied embeddings; the same weights at every call."""
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=ffn, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).train()


def random_tokens(rows: int = 4, length: int = 128, vocab: int = 320) -> Tensor:
    """Token ids [rows, length], the same at every call."""
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(1))


def next_token_loss(model: nn.Module, ids: Tensor, total: int | None = None) -> Tensor:
    """Summed loss of the next tokens over `total` positions (those of `ids` unless given): parts of a batch add up."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]  # [B, L-1, V]
    summed = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    return summed / (total or ids[:, 1:].numel())


def dense_arm(**sizes: int) -> LlamaForCausalLM:
    """The small Llama with LoGRA's targets trainable in the usual way."""
    model = small_llama(**sizes)
    target_weights(model)
    return model


def sketched_arm(rank: int, shared: bool = True, seed: int = 42, **sizes: int) -> tuple[nn.Module, LoGRA]:
    """The small Llama with LoGRA attached."""
    model = small_llama(**sizes)
    return model, LoGRA(model, rank=rank, shared=shared, seed=seed)


def dense_gradients(model: nn.Module) -> dict[str, Tensor]:
    """G [d, k] of every linear layer that has one, by its name."""
    return {
        name: module.weight.grad
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.weight.grad is not None
    }


def largest_error(
    sketches: Mapping[str, Tensor], gradients: Mapping[str, Tensor], projection: Callable
) -> float:
    """max over layers of ‖S − G Aᵀ‖ / ‖G Aᵀ‖, computed in fp64; `projection(name)` gives A [r, k]."""
    errors = []
    for name, sketch in sketches.items():
        wanted = gradients[name].double() @ projection(name).double().T  # [d, r]
        errors.append(((sketch.double() - wanted).norm() / wanted.norm()).item())
    return max(errors)


# ---------------------------------------------------------------- what is kept


def kept_bytes(model: nn.Module, run: Run) -> int:
    """Bytes of the distinct storages that the forward `run()` keeps for backward, weights excepted; then backward."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}
    alive = []  # a freed storage's address may come up again: hold all until the count is done

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        alive.append(storage)
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
    loss.backward()
    clear(model)
    return sum(size for address, size in storages.items() if address not in weights)


def clear(model: nn.Module) -> None:
    """Forget dense gradients, where there are any."""
    model.zero_grad(set_to_none=True)


class _Births(TorchDispatchMode):
    """Notes (operation, shape) of every tensor with memory of its own; views and in-place results are not new."""

    def __init__(self) -> None:
        super().__init__()
        self.born: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {storage_of(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and storage_of(tensor) not in given:
                self.born.append((str(func), tuple(tensor.shape)))
        return result


def storage_of(tensor: Tensor) -> int:
    """The address of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


@contextmanager
def births() -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """A list that fills with (operation, shape) of every new tensor made within."""
    with _Births() as mode:
        yield mode.born


def weight_shaped(model: nn.Module, run: Run) -> list[tuple[str, tuple[int, ...]]]:
    """(operation, shape) of every new tensor that forward and backward make in a target's shape, or its transpose's."""
    shapes = {shape for weight in target_shapes(model) for shape in (weight, weight[::-1])}
    with births() as born:
        run().backward()
    return [birth for birth in born if birth[1] in shapes]


def target_shapes(model: nn.Module) -> list[tuple[int, int]]:
    """[d, k] of each of LoGRA's targets."""
    return [(target.rows, target.columns) for target in find_targets(model, DEFAULT_TARGETS)]


def input_readers(model: nn.Module) -> list[tuple[str, str, int]]:
    """(layer, name of the input that it reads, width) of every target; siblings read one input."""
    return [(t.name, f"input of {t.group}", t.columns) for t in find_targets(model, DEFAULT_TARGETS)]


# ---------------------------------------------------------------- what it costs


def in_place_flops(out: tuple, left: tuple, right: tuple, **_: object) -> int:
    """FLOPs of out += left @ right, from the three shapes."""
    return 2 * left[0] * left[1] * right[1]


IN_PLACE = {torch.ops.aten.addmm_: in_place_flops}


def counted_flops(run: Run) -> int:
    """FLOPs of forward and backward by torch's own counter, taught the in-place product that adds to a sketch."""
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        run().backward()
    return counter.get_total_flops()


def linear_flops(model: nn.Module, tokens: int, flops: Callable, rank: int) -> tuple[int, int]:
    """`flops(T, d, k, r)` -> (dense, sketched) summed over LoGRA's targets."""
    pairs = [flops(tokens, *shape, rank) for shape in target_shapes(model)]
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread within, as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def paired_seconds(runs: Mapping[object, Callable[[], None]], repeats: int = 5) -> dict[object, list[float]]:
    """Seconds of processor time per run, `repeats` of each, interleaved so that a busy machine disturbs all alike.

    One thread and its own clock (waiting does not count), after one round that is thrown away.
    """
    seconds: dict[object, list[float]] = {name: [] for name in runs}
    with one_thread():
        for turn in range(repeats + 1):
            for name, run in runs.items():
                started = time.thread_time()
                run()
                if turn:
                    seconds[name].append(time.thread_time() - started)
    return seconds


@dataclass(frozen=True)
class RankRow:
    """One rank: bytes kept for backward, and seconds of forward and backward over the dense ones of the same turn."""

    rank: int
    kept: int
    ratios: tuple[float, ...]


def against_rank(ranks: tuple[int, ...], ids: Tensor, repeats: int = 5) -> tuple[int, list[RankRow]]:
    """Bytes that the dense model keeps, and a row per rank."""
    dense = dense_arm()
    models: dict[object, nn.Module] = {"dense": dense}
    models.update((rank, sketched_arm(rank)[0]) for rank in ranks)
    kept = {name: kept_bytes(model, partial(next_token_loss, model, ids)) for name, model in models.items()}

    def turn(model: nn.Module) -> None:
        next_token_loss(model, ids).backward()
        clear(model)

    seconds = paired_seconds({name: partial(turn, model) for name, model in models.items()}, repeats)
    rows = []
    for rank in ranks:
        pairs = zip(seconds[rank], seconds["dense"], strict=True)
        rows.append(RankRow(rank, kept[rank], tuple(mine / theirs for mine, theirs in pairs)))
    return kept["dense"], rows
