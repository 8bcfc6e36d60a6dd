"""Answers to the exercises of lesson 08."""

from __future__ import annotations

import torch

from logra_lab.lab.exercises.lesson08 import faulty_receiver, half_cured
from logra_lab.method.projection import projection_key, rademacher, signs
from tests.lab.answers import Answers


def bytes_by_tensors(shapes, rank):
    factors = [torch.empty(d, rank, dtype=torch.bfloat16) for d, _ in shapes]
    return sum(factor.numel() * factor.element_size() for factor in factors)


def apply_by_columns(weight, factor, seed, update, group, decay):
    a = rademacher(seed, update, group, factor.shape[1], weight.shape[1])
    steps = [sum(factor[:, i] * a[i, j] for i in range(len(a))) for j in range(a.shape[1])]
    return weight - decay * weight - torch.stack(steps, dim=1)


def apply_by_signs(weight, factor, seed, update, group, decay):
    rank, columns = factor.shape[1], weight.shape[1]
    plus_minus = signs(projection_key(seed, update, group), rank, columns)
    return torch.addmm(weight, factor, plus_minus, beta=1 - decay, alpha=-(rank**-0.5))


def apply_with(change):
    """An answer whose A, decay or sign is not the right one."""

    def answer(weight, factor, seed, update, group, decay):
        return change(
            weight,
            factor,
            lambda u: rademacher(seed, u, group, factor.shape[1], weight.shape[1]),
            update,
            decay,
        )

    return answer


def without_group(weight, factor, seed, update, group, decay):
    return apply_by_signs(weight, factor, seed, update, "", decay)


def follow_by_filter(link, parcels):
    def verdict(parcel):
        nonlocal link
        if parcel.parent != link or parcel.says != parcel.computed:
            return "resync"
        link = parcel.says
        return "applied"

    return [verdict(parcel) for parcel in parcels], link


def follow_by_recursion(link, parcels):
    if not parcels:
        return (), link
    first, *others = parcels
    good = (first.parent, first.says) == (link, first.computed)
    rest, end = follow_by_recursion(first.computed if good else link, others)
    return ("applied" if good else "resync", *rest), end


def follow_if(accept, always=False, never=False, to="computed"):
    """A receiver with another rule."""

    def answer(link, parcels):
        statuses, count = [], 0
        for parcel in parcels:
            good = accept(link, count, parcel)
            statuses.append("applied" if good else "resync")
            count += good
            if always or (good and not never):
                link = getattr(parcel, to)
        return statuses, link

    return answer


def follow_and_stop(link, parcels):
    statuses = []
    for parcel in parcels:
        if parcel.parent != link or parcel.says != parcel.computed:
            return statuses + ["resync"] * (len(parcels) - len(statuses)), link
        statuses.append("applied")
        link = parcel.computed
    return statuses, link


def follow_and_leave(link, parcels):
    statuses, end = follow_and_stop(link, parcels)
    return statuses[: (statuses + ["resync"]).index("resync") + 1], end


def whole(link, count, parcel):
    return parcel.parent == link and parcel.says == parcel.computed


def repaired_by_sum(start, updates):
    return (start - sum(factor.float() @ a for factor, a in updates)).bfloat16()


def repaired_by_joint_product(start, updates):
    factors = torch.cat([factor.float() for factor, _ in updates], dim=1)
    return torch.addmm(start, factors, torch.cat([a for _, a in updates]), alpha=-1).to(torch.bfloat16)


def repaired_in_place(start, updates):
    for factor, a in updates:
        start -= factor.float() @ a
    return start.to(torch.bfloat16)


ANSWERS = {
    "packet_bytes": Answers(
        right=(bytes_by_tensors, lambda s, r: r * sum(d for d, _ in s) * torch.bfloat16.itemsize),
        wrong=(
            (lambda s, r: sum(d * r for d, _ in s), "numbers, not bytes"),
            (lambda s, r: sum(4 * d * r for d, _ in s), "four bytes"),
            (lambda s, r: sum(2 * k * r for _, k in s), "You counted the columns"),
            (lambda s, r: sum(2 * (d + k) * r for d, k in s), "You sent A too"),
            (lambda s, r: sum(2 * d * k for d, k in s), "the weights themselves"),
            (lambda s, r: sum(16 * d * r for d, _ in s), "These are bits"),
            (lambda s, r: sum(2 * d for d, _ in s), "The rank is missing"),
        ),
    ),
    "apply_packet": Answers(
        right=(apply_by_columns, apply_by_signs),
        wrong=(
            (apply_with(lambda w, f, a, u, c: (1 - c) * w + f @ a(u)), "The step is added"),
            (apply_with(lambda w, f, a, u, c: (1 - c) * w - f @ a(u + 1)), "the next update's A"),
            (apply_with(lambda w, f, a, u, c: (1 - c) * w - f @ a(u - 1)), "of the update before"),
            (apply_with(lambda w, f, a, u, c: (1 - c) * w - f @ a(0)), "update 0's"),
            (
                apply_with(lambda w, f, a, u, c: (1 - c) * w - f @ a(u) / f.shape[1] ** 0.5),
                "divided once more",
            ),
            (apply_with(lambda w, f, a, u, c: (1 - c) * w - f @ a(u).sign()), "bare signs"),
            (apply_with(lambda w, f, a, u, c: w - f @ a(u)), "The decay is missing"),
            (apply_with(lambda w, f, a, u, c: c * w - f @ a(u)), "what stays is 1 − λ"),
            (
                lambda w, f, s, u, g, c: apply_by_signs(w, f, u, s, g, c),
                "seed and update have changed places",
            ),
            (apply_with(lambda w, f, a, u, c: (1 - c) * (w - f @ a(u))), "its share of the update too"),
            (without_group, "values are off"),
        ),
    ),
    "follow": Answers(
        right=(follow_by_filter, follow_by_recursion),
        wrong=(
            (follow_if(whole, always=True), "You move on after a refusal"),
            (follow_if(whole, never=True), "The link never moves"),
            (follow_if(lambda link, count, p: p.parent == link), "You trust what the packet says"),
            (
                follow_if(lambda link, count, p: p.number == count and p.says == p.computed),
                "right number too",
            ),
            (follow_if(lambda link, count, p: p.number == count), "nothing else"),
            (follow_if(lambda link, count, p: p.says == p.computed), "You look for damage only"),
            (
                follow_if(lambda link, count, p: p.number >= count and p.says == p.computed),
                "A gap must be refused",
            ),
            (follow_and_stop, "You stop at the first refusal"),
            (follow_and_leave, "Each packet gets a word"),
            (
                follow_if(lambda link, count, p: p.parent == link, to="says"),
                "Compare it with what was computed",
            ),
            (follow_if(whole, always=True, to="says"), "You move on after a refusal"),
            (lambda link, parcels: follow_by_filter(link, parcels)[0], "; 2 were expected"),
        ),
    ),
    "repaired_receiver": Answers(
        right=(repaired_by_sum, repaired_by_joint_product),
        wrong=(
            (faulty_receiver, "still rounded away"),
            (half_cured, "the start was rounded"),
            (lambda w, us: repaired_by_sum(w, [(-f, a) for f, a in us]), "they are taken off"),
            (lambda w, us: w.bfloat16(), "no update has arrived"),
            (lambda w, us: repaired_by_sum(w, us).float(), "torch.float32"),
            (repaired_in_place, "work on a copy"),
        ),
    ),
}
