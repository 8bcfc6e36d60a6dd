"""Exercises of lesson 08: the size of a packet, applying one, and a receiver that loses what it is sent.

The chain of hashes is in lesson08_chain.py. Shapes: W [d, k], F factor [d, r], A projection [r, k].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from logra_lab.lab.checks import Case, Law, Slip, exercise
from logra_lab.method.projection import rademacher

Shapes = Sequence[tuple[int, int]]
Pairs = Sequence[tuple[Tensor, Tensor]]
BLOCK = [(96, 96)] * 4 + [(288, 96)] * 2 + [(96, 288)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- 1: the size of a packet


@exercise(
    "packet_bytes",
    Case("one weight of 4096 × 4096 at rank 64", lambda: ([(4096, 4096)], 64)),
    Case(
        "a wide and a tall weight",
        lambda: ([(100, 1000), (500, 50)], 8),
        hint="Which side of the weight has A? The receiver makes A itself.",
    ),
    Case("a whole block of tiny-math", lambda: (BLOCK, 8)),
    slips=(
        Slip(
            "These are numbers, not bytes: bf16 takes two bytes each.", lambda s, r: sum(d * r for d, _ in s)
        ),
        Slip(
            "This counts four bytes a number; factors travel in bf16.",
            lambda s, r: sum(4 * d * r for d, _ in s),
        ),
        Slip("These are bits: 16 of them are two bytes.", lambda s, r: sum(16 * d * r for d, _ in s)),
        Slip(
            "You sent A too, as LoRA would. The receiver makes A from the seed and the update number.",
            lambda s, r: sum(2 * r * (d + k) for d, k in s),
        ),
        Slip(
            "The factor has the weight's output rows: U is [d, r]. You counted the columns, which are A's side.",
            lambda s, r: sum(2 * r * k for _, k in s),
        ),
        Slip("This is the size of the weights themselves.", lambda s, r: sum(2 * d * k for d, k in s)),
        Slip("The rank is missing: r numbers for each row.", lambda s, r: sum(2 * d for d, _ in s)),
    ),
)
def packet_bytes(shapes: Shapes, rank: int) -> int:
    """Bytes of αU in bf16 for weights of these shapes (d, k) (method.md §5)."""
    return 2 * rank * sum(d for d, _ in shapes)


# ---------------------------------------------------------------- 2: apply one


def packet(decay: float = 0.0, update: int = 3, group: str = "layer 0") -> tuple:
    """W, F, seed, update, group, decay."""
    return normal(10, 40), normal(10, 4, seed=1), 7, update, group, decay


def applied(weight: Tensor, factor: Tensor, projection: Tensor, decay: float, sign: float = -1.0) -> Tensor:
    """(1 − decay) W + sign · F A [d, k]."""
    return (1 - decay) * weight + sign * factor @ projection


def drawn(factor: Tensor, weight: Tensor, seed: int, update: int, group: str) -> Tensor:
    """A [r, k] of this packet."""
    return rademacher(seed, update, group, factor.shape[1], weight.shape[1])


@exercise(
    "apply_packet",
    Case("one packet without decay", packet, hint="Make A [r, k] with rademacher, then W − F A."),
    Case("another update has another A", lambda: packet(update=4)),
    Case("another group has another A", lambda: packet(group="layer 1")),
    Case("with decay", lambda: packet(0.1), hint="Decay the old weight, then take the step off."),
    Case("from W = 0, decay leaves the step whole", lambda: (torch.zeros(10, 40), *packet(0.5)[1:])),
    slips=(
        Slip(
            "The step is added; it is taken off: W − F A.",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, u, g), c, 1.0),
        ),
        Slip(
            "This is the next update's A. The packet's number counts the updates done *before* it.",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, u + 1, g), c),
        ),
        Slip(
            "This is the A of the update before. The number in the packet is the one to use.",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, u - 1, g), c),
        ),
        Slip(
            "A doesn't follow the update number: every packet gets update 0's.",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, 0, g), c),
        ),
        Slip(
            "rademacher holds the 1/√r already; you divided once more.",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, u, g) / f.shape[1] ** 0.5, c),
        ),
        Slip(
            "These are bare signs; A's entries are ±1/√r, as rademacher gives them.",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, u, g).sign(), c),
        ),
        Slip(
            "λ is the share that is taken off; what stays is 1 − λ.",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, u, g), 1 - c),
        ),
        Slip(
            "seed and update have changed places: rademacher(seed, update, group, rank, columns).",
            lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, u, s, g), c),
        ),
        Slip("The decay is missing.", lambda w, f, s, u, g, c: applied(w, f, drawn(f, w, s, u, g), 0.0)),
        Slip(
            "The decay takes its share of the update too: decay the old weight only.",
            lambda w, f, s, u, g, c: (1 - c) * applied(w, f, drawn(f, w, s, u, g), 0.0),
        ),
    ),
)
def apply_packet(weight: Tensor, factor: Tensor, seed: int, update: int, group: str, decay: float) -> Tensor:
    """The receiver's next weight, (1 − decay) W − F A [d, k] (method.md §5)."""
    return applied(weight, factor, drawn(factor, weight, seed, update, group), decay)


# ---------------------------------------------------------------- 4: a receiver that loses what it is sent


def faulty_receiver(start: Tensor, updates: Pairs) -> Tensor:
    """The colleague's: bf16 weights [d, k], into which each update is merged."""
    weight = start.to(torch.bfloat16)
    for factor, projection in updates:
        weight = (weight.float() - factor.float() @ projection).to(torch.bfloat16)
    return weight


def half_cured(start: Tensor, updates: Pairs) -> Tensor:
    """Adds in fp32, but begins with weights that were rounded before."""
    return repaired_receiver(start.to(torch.bfloat16).float(), updates)


def stream(count: int, ratio: float, seed: int = 0) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """A start [d, k] and `count` updates (F in bf16, A), each of `ratio` of the weights' size."""
    start = 0.03 * normal(32, 48, seed=seed)
    factors = [(0.03 * ratio * normal(32, 4, seed=seed + 1 + n)).to(torch.bfloat16) for n in range(count)]
    return start, [(factor, rademacher(seed, n, "w", 4, 48)) for n, factor in enumerate(factors)]


def arrives(count: int, ratio: float) -> Callable[[Callable], bool | str]:
    """Whether the receiver's bf16 weights are the trainer's, rounded; sums in another order may flip a few."""

    def law(function: Callable) -> bool | str:
        start, updates = stream(count, ratio)
        before = start.clone()
        found = function(start, updates)
        if not torch.equal(before, start):
            return "it changed the weights it was given; work on a copy"
        if not isinstance(found, Tensor) or found.dtype != torch.bfloat16 or found.shape != start.shape:
            what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
            return f"it returned {what}; the engine wants torch.bfloat16 {list(start.shape)}"
        wanted = repaired_receiver(start, updates)
        same = (found == wanted).float().mean().item()
        return (
            True
            if same > 0.995
            else f"only {same:.0%} of the weights are the trainer's{reason(found, start, updates)}"
        )

    return law


def reason(found: Tensor, start: Tensor, updates: Pairs) -> str:
    """What is known of a wrong answer, to be added to the sentence."""
    flipped = [(-factor, projection) for factor, projection in updates]
    known = (
        (
            half_cured(start, updates),
            "; the start was rounded to bf16 before the updates came: keep its lower bits",
        ),
        (faulty_receiver(start, updates), "; each update is still rounded away in a bf16 weight"),
        (repaired_receiver(start, flipped), "; the updates are added, they are taken off"),
        (start.to(torch.bfloat16), "; no update has arrived"),
    )
    return next((words for wrong, words in known if (found == wrong).float().mean() > 0.995), "")


@exercise(
    "repaired_receiver",
    Law("one large update arrives", arrives(1, 0.3)),
    Law("forty small ones arrive", arrives(40, 1e-3), "Where can a receiver keep what bf16 can't hold?"),
    Law(
        "two hundred of the paper's size arrive",
        arrives(200, 6e-5),
        "Round once, for the engine, at the end.",
    ),
)
def repaired_receiver(start: Tensor, updates: Pairs) -> Tensor:
    """The engine's bf16 weights [d, k] from an fp32 start and updates (F, A), merged in fp32 (method.md §6)."""
    weight = start.clone()
    for factor, projection in updates:
        weight -= factor.float() @ projection
    return weight.to(torch.bfloat16)
