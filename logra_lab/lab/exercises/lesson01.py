"""Exercises of lesson 01: bytes of a list, a sketch with its projection, where sharding wins, a table counted twice.

Legend: d output rows of a weight, k its input columns, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from logra_lab.lab.checks import Case, Slip, exercise

GIB = 2**30
MIXED = {  # what AdamW in mixed precision keeps for each parameter
    "weight": torch.bfloat16,
    "gradient": torch.bfloat16,
    "fp32 master copy": torch.float32,
    "first moment": torch.float32,
    "second moment": torch.float32,
}
EIGHT_BIT = {
    "weight": torch.bfloat16,
    "gradient": torch.bfloat16,
    "first moment": torch.int8,
    "second moment": torch.uint8,
}


# ---------------------------------------------------------------- bytes per parameter

Kept = Mapping[str, torch.dtype]


def each(kept: Kept) -> int:
    """Bytes for one parameter."""
    return sum(dtype.itemsize for dtype in kept.values())


@exercise(
    "resident_gib",
    Case("one bf16 number for each of 2³⁰ parameters: 2 GiB", lambda: (GIB, {"weight": torch.bfloat16})),
    Case("the five of AdamW: 16 GiB", lambda: (GIB, MIXED), hint="Every entry is kept for every parameter."),
    Case("a 7B model", lambda: (7_615_616_512, MIXED), hint="1 GiB = 2³⁰ bytes."),
    Case("another list: moments of one byte", lambda: (3 * GIB, EIGHT_BIT), hint="dtype.itemsize, not a constant."),
    slips=(
        Slip("That counts bits. A byte has eight of them.", lambda n, kept: 8 * n * each(kept) / GIB),
        Slip("Divide by 2³⁰, not by 10⁹: 1 GB is 7 % less than 1 GiB.", lambda n, kept: n * each(kept) / 1e9),
        Slip("These are bytes. Divide by 2³⁰ for GiB.", lambda n, kept: float(n * each(kept))),
        Slip("Divide by 2³⁰: with 2²⁰ you get MiB.", lambda n, kept: n * each(kept) / 2**20),
        Slip("bf16 takes 2 bytes, not 4: ask each dtype for its itemsize.", lambda n, kept: 4 * n * len(kept) / GIB),
        Slip("That is the mean over the list. All is kept: add.", lambda n, kept: n * each(kept) / len(kept) / GIB),
        Slip("Each entry counts as one byte: ask its dtype for the itemsize.", lambda n, kept: n * len(kept) / GIB),
        Slip("Equal types were merged. Both moments are fp32, and both are kept.",
             lambda n, kept: n * sum(dtype.itemsize for dtype in set(kept.values())) / GIB),
        Slip("This is cut to whole GiB: divide with / instead of //.", lambda n, kept: n * each(kept) // GIB),
        Slip("Only the first entry was counted.", lambda n, kept: n * next(iter(kept.values())).itemsize / GIB),
    ),
)  # fmt: skip
def resident_gib(parameters: int, kept: Kept) -> float:
    """GiB that live between steps, with one number of each `kept` dtype per parameter."""
    return parameters * each(kept) / GIB


# ---------------------------------------------------------------- a sketch, and what it is sketched with

Shapes = Sequence[tuple[int, int]]
QKV = ((3584, 3584), (512, 3584), (512, 3584))


def dense(shapes: Shapes) -> int:
    """fp32 bytes of all gradients [d, k]."""
    return sum(4 * d * k for d, k in shapes)


def sketches(shapes: Shapes, rank: int) -> int:
    """fp32 bytes of all sketches [d, r]."""
    return sum(4 * d * rank for d, _ in shapes)


def scaled(factor: float) -> Callable[..., tuple[int, ...]]:
    """The reference times a factor."""
    return lambda shapes, rank: tuple(int(factor * part) for part in group_bytes(shapes, rank))


@exercise(
    "group_bytes",
    Case("one square matrix, 4096 × 4096, rank 64", lambda: (((4096, 4096),), 64), hint="S is [d, r], A is [r, k]."),
    Case("d and k apart", lambda: (((512, 3584),), 16), hint="S has the rows of G, A has its columns."),
    Case("q, k and v, which read one input", lambda: (QKV, 64), hint="One S per layer; how many A for one input?"),
    Case("rank 1", lambda: (((8, 6), (4, 6)), 1)),
    slips=(
        Slip("One A for each layer: these read the same input, so one A serves them all.",
             lambda s, r: (dense(s), sketches(s, r), sum(4 * r * k for _, k in s))),
        Slip("S and A are swapped: S = G Aᵀ is [d, r], A is [r, k].",
             lambda s, r: (dense(s), 4 * r * s[0][1], sketches(s, r))),
        Slip("d and k are exchanged: S = G Aᵀ is [d, r], A is [r, k].",
             lambda s, r: (dense(s), sum(4 * k * r for _, k in s), 4 * r * s[0][0])),
        Slip("S has d rows, one for each output of the layer, not k.",
             lambda s, r: (dense(s), sum(4 * k * r for _, k in s), 4 * r * s[0][1])),
        Slip("A has k columns, one for each input, not d.",
             lambda s, r: (dense(s), sketches(s, r), 4 * r * s[0][0])),
        Slip("Only the first layer was counted; add the others' gradients and sketches.",
             lambda s, r: (dense(s[:1]), sketches(s[:1], r), 4 * r * s[0][1])),
        Slip("These are numbers, not bytes: fp32 takes 4 bytes each.", scaled(1 / 4)),
        Slip("fp32 takes 4 bytes; 2 would be bf16.", scaled(1 / 2)),
        Slip("That counts bits. fp32 takes 4 bytes, 32 bits.", scaled(8)),
    ),
)  # fmt: skip
def group_bytes(shapes: Shapes, rank: int) -> tuple[int, int, int]:
    """fp32 bytes of the gradients, of the sketches, and of the one A of layers that read one input (method.md §1)."""
    return dense(shapes), sketches(shapes, rank), 4 * rank * shapes[0][1]


# ---------------------------------------------------------------- whole against sharded


@exercise(
    "last_gain",
    Case("100 bytes against 30: up to 3 GPUs", lambda: (100, 30), hint="On n GPUs dense keeps 100/n on each."),
    Case("a tie is no gain: 90 against 30 pays up to 2", lambda: (90, 30), hint="At n = 3 both keep 30."),
    Case("4096 × 4096 at rank 64, three fp32 numbers a weight", lambda: (12 * 4096**2, 4 * 64 * 4096)),
    Case("no gain even alone: 0", lambda: (10, 20)),
    Case("one GPU at the most", lambda: (10, 6)),
    slips=(
        Slip("Nearly: at a tie both keep the same, and nothing is gained there.", lambda s, r: s // r),
        Slip("That is the first count at which it pays no more; the question is for the last at which it does.",
             lambda s, r: -(-s // r)),
        Slip("One too many: check your answer n by s / n > r.", lambda s, r: s // r + 1),
        Slip("One less is right at a tie only.", lambda s, r: s // r - 1),
        Slip("That is the ratio; GPUs come whole.", lambda s, r: s / r),
        Slip("The ratio is upside down: dense keeps sharded / n, LoGRA keeps replicated whole.",
             lambda s, r: r // s),
    ),
)  # fmt: skip
def last_gain(sharded: int, replicated: int) -> int:
    """The largest n with sharded / n > replicated, 0 if there is none (method.md §8.6)."""
    return (sharded - 1) // replicated


# ---------------------------------------------------------------- find the bug


class Small(nn.Module):
    """A table, a body and a head that may be the table itself; `constant` is a buffer."""

    def __init__(self, tied: bool = False, frozen: bool = False, constant: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
        self.head = nn.Linear(4, 10, bias=False)
        nn.init.zeros_(self.table.weight)
        nn.init.zeros_(self.head.weight)  # equal values are two tensors all the same
        if tied:
            self.head.weight = self.table.weight
        if constant:
            self.register_buffer("angles", torch.zeros(7))
        if frozen:
            self.body.requires_grad_(False)


def faulty_count(model: nn.Module) -> int:
    """The bug of the lesson: a checkpoint names a tied table twice, and lists buffers too."""
    return sum(tensor.numel() for tensor in model.state_dict().values())


def tensors(model: nn.Module) -> list[Tensor]:
    """Parameters, each once."""
    return list(model.parameters())


@exercise(
    "count_parameters",
    Case("a head of its own", lambda: (Small(),), hint="Both tables hold zeros, and still they are two."),
    Case("a head tied to the embedding", lambda: (Small(tied=True),), hint="How many names has the table?"),
    Case("frozen weights count: they lie in memory too", lambda: (Small(tied=True, frozen=True),)),
    Case("a buffer is no parameter", lambda: (Small(tied=True, constant=True),), hint="What else is in state_dict?"),
    slips=(
        Slip("The bug is still there: state_dict lists names, and a tied table has two.", faulty_count),
        Slip("Frozen weights are left out. They get no gradient, but they lie in memory.",
             lambda m: sum(p.numel() for p in tensors(m) if p.requires_grad)),
        Slip("Buffers are counted as well: constants of the model, not parameters.",
             lambda m: sum(t.numel() for t in {t.data_ptr(): t for t in m.state_dict().values()}.values())),
        Slip("The head is always taken for the embedding. Not tied, it is a table of its own, of equal shape or not.",
             lambda m: sum(p.numel() for p in tensors(m)) - (m.head.weight is not m.table.weight) * 40),
        Slip("That counts tensors. Ask each for its numel().", lambda m: len(tensors(m))),
        Slip("These are bytes; numel() counts numbers.", lambda m: sum(p.numel() * p.itemsize for p in tensors(m))),
        Slip("remove_duplicate=False lists a tied table under both of its names.",
             lambda m: sum(p.numel() for _, p in m.named_parameters(remove_duplicate=False))),
    ),
)  # fmt: skip
def count_parameters(model: nn.Module) -> int:
    """How many parameters a model has, a shared one counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
