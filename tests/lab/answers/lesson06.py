"""Answers to the exercises of lesson 06."""

from __future__ import annotations

import math

import torch

from tests.lab.answers import Answers


def second_moment_form(logits, tangent):
    """E[ż²] − E[ż]², in double precision."""
    policy, tangent = logits.double().softmax(-1), tangent.double()
    return 0.5 * ((policy * tangent**2).sum(-1) - (policy * tangent).sum(-1) ** 2)


def position_by_position(logits, tangent):
    """A loop, with ½ Σ π (ż − mean)²."""
    values = []
    for z, t in zip(logits, tangent):
        p = torch.exp(z) / torch.exp(z).sum()
        values.append(torch.dot(p, (t - torch.dot(p, t)) ** 2) / 2)
    return torch.stack(values)


def wrong_axis(logits, tangent):
    policy = logits.softmax(0)
    mean = (policy * tangent).sum(-1, keepdim=True)
    return 0.5 * (policy * (tangent - mean) ** 2).sum(-1)


def without_keepdim(logits, tangent):
    policy = logits.softmax(-1)
    return 0.5 * (policy * (tangent - (policy * tangent).sum(-1)) ** 2).sum(-1)


def branchy(predicted_kl, delta, alpha_max, two_sided):
    if predicted_kl == 0:
        return 1
    alpha = (delta / predicted_kl) ** 0.5
    ceiling = alpha_max if two_sided else 1
    return ceiling if alpha > ceiling else alpha


def in_tensors(predicted_kl, delta, alpha_max, two_sided):
    ratio = torch.tensor(delta / max(predicted_kl, 1e-300), dtype=torch.float64)
    if predicted_kl == 0:
        ratio = torch.tensor(1.0, dtype=torch.float64)
    return ratio.sqrt().clamp(max=alpha_max if two_sided else 1.0)


def early_return(updates, budget, final_budget, schedule_steps):
    if updates >= schedule_steps - 1:
        return final_budget
    return (budget + final_budget) / 2 + (budget - final_budget) / 2 * math.cos(
        math.pi * updates / (schedule_steps - 1)
    )


def squared_cosine(updates, budget, final_budget, schedule_steps):
    share = min(1, updates / (schedule_steps - 1))
    return final_budget + (budget - final_budget) * math.cos(math.pi * share / 2) ** 2


def rolled(attention_mask, generated_mask):
    return generated_mask.roll(-1, dims=1)


def filled(attention_mask, generated_mask):
    judged = torch.zeros_like(generated_mask)
    judged[:, :-1] = generated_mask[:, 1:]
    return judged & attention_mask.bool()


ANSWERS = {
    "half_variance": Answers(
        right=(second_moment_form, position_by_position),
        wrong=(
            (lambda z, t: 0.5 * (z.softmax(-1) * t**2).sum(-1), "was not subtracted"),
            (lambda z, t: 2 * second_moment_form(z, t), "½ is missing"),
            (lambda z, t: 0.5 * t.var(-1, unbiased=False), "weight by π"),
            (lambda z, t: 0.5 * t.var(-1), "weight by π"),
            (without_keepdim, "keepdim=True is missing"),
            (wrong_axis, "over the positions"),
            (lambda z, t: second_moment_form(z, t).mean(), "the last axis, only"),
            (lambda z, t: second_moment_form(z, t).sqrt(), "✗"),
            (lambda z, t: -second_moment_form(z, t), "values are off"),
        ),
    ),
    "step_scale": Answers(
        right=(branchy, in_tensors),
        wrong=(
            (lambda q, d, m, two: min(m if two else 1.0, d / q if q else 1.0), "square root is missing"),
            (lambda q, d, m, two: min(m, branchy(q, d, m, True)), "two_sided is not looked at"),
            (lambda q, d, m, two: min(1.0, branchy(q, d, m, two)), "never exceeds 1"),
            (lambda q, d, m, two: max(m if two else 1.0, math.sqrt(d / q) if q else 1.0), "ceiling"),
            (lambda q, d, m, two: min(m if two else 1.0, math.sqrt(d / q)), "return 1 before you divide"),
            (lambda q, d, m, two: min(m if two else 1.0, math.sqrt(q / d)), "upside down"),
            (lambda q, d, m, two: branchy(q, d, m, two) if q else 0.0, "returned 0; expected is 1"),
            (lambda q, d, m, two: branchy(d, q, m, two) if q else 1.0, "upside down"),
            (lambda q, d, m, two: (d / q) ** 0.5 if q else 1.0, "there is no ceiling"),
            (lambda q, d, m, two: max(m if two else 1.0, (d / q) ** 0.5) if q else 1.0, "not the larger"),
        ),
    ),
    "kl_budget": Answers(
        right=(early_return, squared_cosine),
        wrong=(
            (lambda u, a, b, h: squared_cosine(u, a, b, h + 1), "counted from 0"),
            (lambda u, a, b, h: a + (b - a) * min(1, u / (h - 1)), "straight line"),
            (
                lambda u, a, b, h: b + (a - b) * math.cos(math.pi * u / (h - 1) / 2) ** 2,
                "nothing stops u",
            ),
            (lambda u, a, b, h: squared_cosine(u, b, a, h), "changed places"),
            (lambda u, a, b, h: b + (a - b) / 2 * (1 + math.cos(min(1, u / (h - 1)))), "π is missing"),
            (
                lambda u, a, b, h: b + (a - b) * (1 + math.cos(math.pi * min(1, u / (h - 1)))),
                "½ is missing",
            ),
        ),
    ),
    "judged_positions": Answers(
        right=(rolled, filled),
        wrong=(
            (lambda a, g: a, "positions for"),
            (lambda a, g: torch.nn.functional.pad(a[:, 1:] & a[:, :-1], (0, 1)), "judges the prompt too"),
            (lambda a, g: g, "predicted one position earlier"),
            (lambda a, g: g.roll(1, 1), "shift to the left"),
            (lambda a, g: torch.cat([torch.zeros_like(g[:, :1]), g[:, :-1]], 1), "shift to the left"),
            (lambda a, g: a & ~g, "the prompt's positions"),
        ),
    ),
}
