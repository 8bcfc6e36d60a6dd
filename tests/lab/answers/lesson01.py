"""Answers to the exercises of lesson 01."""

from __future__ import annotations

import itertools

import torch

from logra_lab.lab.exercises import lesson01
from tests.lab.answers import Answers


def gib_by_bits(parameters, kept):
    bits = 0
    for dtype in kept.values():
        bits += (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).bits
    return parameters * bits / 8 / 1024**3


def gib_by_tensors(parameters, kept):
    return sum(torch.empty(1, dtype=dtype).element_size() for dtype in kept.values()) * (parameters / 2**30)


def bytes_by_loop(shapes, rank):
    gradient = sketch = 0
    columns = set()
    for d, k in shapes:
        gradient += d * k * 4
        sketch += d * rank * 4
        columns.add(k)
    return gradient, sketch, 4 * rank * columns.pop()


def bytes_by_tensors(shapes, rank):
    rows = sum(d for d, _ in shapes)
    k = shapes[-1][1]
    empty = [torch.empty(*shape, device="meta") for shape in ((rows, k), (rows, rank), (rank, k))]
    return tuple(tensor.numel() * tensor.element_size() for tensor in empty)


def one_projection_each(shapes, rank):
    gradient, sketch, projection = lesson01.group_bytes(shapes, rank)
    return gradient, sketch, projection * len(shapes)


def gain_by_search(sharded, replicated):
    return next(n for n in itertools.count() if sharded <= replicated * (n + 1))


def gain_by_ceiling(sharded, replicated):
    return -(-sharded // replicated) - 1


def count_by_identity(model):
    seen = {}
    for parameter in model.parameters(recurse=True):
        seen[id(parameter)] = parameter.numel()
    return sum(seen.values())


def count_by_storage(model):
    named = dict(model.named_parameters(remove_duplicate=False))
    return sum({parameter.data_ptr(): parameter.numel() for parameter in named.values()}.values())


def trained_only(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def by_shape(model):
    total = 0
    for shape in {p.shape for p in model.parameters()}:
        total += shape.numel()
    return total


def without_head(model):
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("head"))


def without_copies(model):
    return sum(t.numel() for t in {t.data_ptr(): t for t in model.state_dict().values()}.values())


ANSWERS = {
    "resident_gib": Answers(
        right=(gib_by_bits, gib_by_tensors),
        wrong=(
            (lambda n, kept: gib_by_bits(n, kept) * 8, "has eight of them"),
            (lambda n, kept: n * lesson01.each(kept) / 10**9, "not by 10⁹"),
            (lambda n, kept: n * lesson01.each(kept), "These are bytes"),
            (lambda n, kept: n * 4 * len(kept) / 1024**3, "bf16 takes 2 bytes"),
            (lambda n, kept: gib_by_bits(n, kept) / len(kept), "the mean over the list"),
            (lambda n, kept: n * 16 / 2**30, "not a constant"),
            (lambda n, kept: n * len(kept) / 2**30, "ask its dtype for the itemsize"),
            (lambda n, kept: n * sum(t.itemsize for t in set(kept.values())) / 2**30, "both are kept"),
            (lambda n, kept: n * lesson01.each(kept) // 2**30, "cut to whole GiB"),
            (lambda n, kept: sum(name.itemsize for name in kept), "the same"),
        ),
    ),
    "group_bytes": Answers(
        right=(bytes_by_loop, bytes_by_tensors),
        wrong=(
            (one_projection_each, "one A serves them all"),
            (lambda s, r: (bytes_by_loop(s, r)[0], *bytes_by_loop(s, r)[:0:-1]), "swapped"),
            (lambda s, r: (lesson01.dense(s), lesson01.sketches(s, r), 4 * r * s[0][0]), "not d"),
            (lambda s, r: bytes_by_loop(s[:1], r), "Only the first layer"),
            (lambda s, r: bytes_by_loop([(k, d) for d, k in s], r), "d and k are exchanged"),
            (lambda s, r: tuple(b // 4 for b in bytes_by_loop(s, r)), "numbers, not bytes"),
            (lambda s, r: tuple(b // 2 for b in bytes_by_loop(s, r)), "2 would be bf16"),
        ),
    ),
    "last_gain": Answers(
        right=(gain_by_search, gain_by_ceiling),
        wrong=(
            (lambda s, r: s // r, "at a tie"),
            (lambda s, r: gain_by_ceiling(s, r) + 1, "the first count at which it pays no more"),
            (lambda s, r: s // r + 1, "One too many"),
            (lambda s, r: s / r, "GPUs come whole"),
            (lambda s, r: r // s, "upside down"),
            (lambda s, r: s // r - 1, "at a tie only"),
        ),
    ),
    "count_parameters": Answers(
        right=(count_by_identity, count_by_storage),
        wrong=(
            (lesson01.faulty_count, "still there"),
            (trained_only, "Frozen weights are left out"),
            (without_copies, "constants of the model"),
            (by_shape, "a table of its own"),
            (without_head, "a table of its own"),
            (lambda m: len(list(m.parameters())), "numel()"),
            (lambda m: sum(p.numel() * 4 for p in m.parameters()), "These are bytes"),
            (
                lambda m: sum(p.numel() for _, p in m.named_parameters(remove_duplicate=False)),
                "both of its names",
            ),
        ),
    ),
}
