"""Answers to the exercises of lesson 04."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.lab.answers import Answers


class Tap(torch.autograd.Function):
    """As the lesson's solution has it."""

    @staticmethod
    def forward(ctx, output, projected, sketch):
        ctx.save_for_backward(projected)
        ctx.sketch = sketch
        return output.view_as(output)

    @staticmethod
    def backward(ctx, grad):
        (projected,) = ctx.saved_tensors
        ctx.sketch += grad.T @ projected
        return grad, None, None


class OneBack(Tap):
    """Returns the first of three gradients alone."""

    @staticmethod
    def backward(ctx, grad):
        return Tap.backward(ctx, grad)[0]


def tap_by_hook(output, projected, sketch):
    """No class at all: P is saved by a product that autograd knows, S is added by the gradient of a stand-in."""

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, p):
            ctx.save_for_backward(p)
            return y.clone()

        @staticmethod
        def backward(ctx, grad):
            sketch.addmm_(grad.t(), ctx.saved_tensors[0])
            return grad.clone(), None

    return Kept.apply(output, projected)


def faulty_tap(add, back=lambda grad: grad, keep=True):
    """A tap whose backward does `add(sketch, grad, P)` and returns `back(grad)`."""

    class Faulty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, output, projected, sketch):
            ctx.sketch, ctx.projected = sketch, projected
            if keep:
                ctx.save_for_backward(projected)
            return output.view_as(output)

        @staticmethod
        def backward(ctx, grad):
            add(ctx.sketch, grad, ctx.projected)
            return back(grad), None, None

    return Faulty.apply


def added(sketch, grad, projected):
    sketch.add_(grad.T @ projected)


def hook_with_tap(projection, sketch):
    def hook(layer, inputs, output):
        return Tap.apply(output, inputs[0].detach() @ projection.T, sketch)

    return hook


def hook_that_keeps_the_output(projection, sketch):
    def hook(layer, inputs, output):
        Tap.apply(output, inputs[0].detach() @ projection.T, sketch)

    return hook


def hook_with_closure(projection, sketch):
    def hook(layer, inputs, output):
        projected = F.linear(inputs[0].detach(), projection)
        if output.requires_grad:
            output.register_hook(lambda grad: (sketch.add_(grad.T @ projected), None)[1])

    return hook


def hook_that_keeps_all(projection, sketch):
    kept = []

    def hook(layer, inputs, output):
        kept.append(inputs[0].detach() @ projection.T)

        def backward(grad):
            for projected in kept:
                sketch.add_(grad.T @ projected)

        if output.requires_grad:
            output.register_hook(backward)

    return hook


def hook_that_clears(projection, sketch):
    kept = []

    def hook(layer, inputs, output):
        kept.append(inputs[0].detach() @ projection.T)

        def backward(grad):
            for projected in kept:
                sketch.add_(grad.T @ projected)
            kept.clear()

        if output.requires_grad:
            output.register_hook(backward)

    return hook


def hook_with_a_stack(projection, sketch):
    kept = []

    def hook(layer, inputs, output):
        kept.append(inputs[0].detach() @ projection.T)
        if output.requires_grad:
            output.register_hook(lambda grad: (sketch.add_(grad.T @ kept.pop()), None)[1])

    return hook


def hook_that_overwrites(projection, sketch):
    def hook(layer, inputs, output):
        projected = inputs[0].detach() @ projection.T
        output.register_hook(lambda grad: (sketch.copy_(grad.T @ projected), None)[1])

    return hook


def inputs_by_loop(readers, tokens, rank, number_bytes):
    seen, dense, sketched = set(), 0, 0
    for _, name, width in readers:
        if name not in seen:
            seen.add(name)
            dense += tokens * width * number_bytes
            sketched += tokens * rank * number_bytes
    return dense, sketched


def inputs_by_set(readers, tokens, rank, number_bytes):
    inputs = {(name, width) for _, name, width in readers}
    return [number_bytes * tokens * sum(w for _, w in inputs), number_bytes * tokens * rank * len(inputs)]


ANSWERS = {
    "sketch_of": Answers(
        right=(
            lambda h, x, a: h.T @ (x @ a.T),
            lambda h, x, a: (a @ x.T @ h).T,
            lambda h, x, a: torch.einsum("td,tr->dr", h, F.linear(x, a)),
        ),
        wrong=(
            (lambda h, x, a: h.T @ x @ a.T, "that is G"),
            (lambda h, x, a: (h.T @ (x @ a.T)) / len(h), "averaged over the T tokens"),
            (lambda h, x, a: (h.T @ (x @ a.T)).T, "transpose, [r, d]"),
            (lambda h, x, a: -h.T @ (x @ a.T), "The sign is turned round"),
            (lambda h, x, a: (h.T @ (x @ a.T)).double(), "dtype is float64"),
        ),
    ),
    "sketch_tap": Answers(
        right=(Tap.apply, tap_by_hook),
        wrong=(
            (faulty_tap(lambda s, h, p: s.copy_(h.T @ p)), "add, don't overwrite"),
            (faulty_tap(lambda s, h, p: s.add_(h.T @ p / len(h))), "mean over the tokens"),
            (faulty_tap(lambda s, h, p: s.sub_(h.T @ p)), "the sign is turned round"),
            (faulty_tap(lambda s, h, p: h.T @ p), "nothing was added"),
            (faulty_tap(added, back=lambda grad: None), "no gradient"),
            (faulty_tap(added, back=torch.zeros_like), "what arrives is zero"),
            (faulty_tap(added, keep=False), "P was not saved"),
            (OneBack.apply, "three values, one for each input"),
            (lambda output, projected, sketch: None, "its `return` is missing"),
            (lambda output, projected, sketch: projected, "shape is [5, 2]; [5, 3] was expected"),
        ),
    ),
    "inputs_kept": Answers(
        right=(inputs_by_loop, inputs_by_set),
        wrong=(
            (lambda n, t, r, b: (t * b * sum(w for *_, w in n), t * r * b * len(n)), "You counted each reader"),
            (lambda n, t, r, b: inputs_by_loop(n, 1, r, b), "The tokens are missing"),
            (lambda n, t, r, b: inputs_by_loop(n, t, r, 1), "numbers, not bytes"),
            (lambda n, t, r, b: inputs_by_loop(n, t, r, b)[::-1], "Dense first"),
            (lambda n, t, r, b: inputs_by_loop([(0, w, w) for *_, w in n], t, r, b), "Two inputs of one width"),
            (lambda n, t, r, b: (inputs_by_loop(n, t, r, b)[0], t * r * b * len(n)), "shared in the same way"),
        ),
    ),
    "flops": Answers(
        right=(
            lambda t, d, k, r: (6 * t * d * k, 4 * t * d * k + 2 * t * k * r + 2 * t * d * r),
            lambda t, d, k, r: tuple(2 * t * n for n in (3 * d * k, 2 * d * k + r * k + r * d)),
        ),
        wrong=(
            (lambda t, d, k, r: (3 * t * d * k, 2 * t * d * k + t * r * (k + d)), "two FLOPs"),
            (lambda t, d, k, r: (6 * t * d * k, 2 * t * d * k + 2 * t * r * (k + d)), "gradient of X"),
            (lambda t, d, k, r: (6 * t * d * k, 4 * t * d * k + 2 * t * d * r), "X Aᵀ costs something"),
            (lambda t, d, k, r: (6 * t * d * k, 4 * t * d * k + 2 * t * k * r), "Hᵀ P costs something"),
            (lambda t, d, k, r: (4 * t * d * k, 2 * t * d * k + 2 * t * d * r), "backward alone"),
            (lambda t, d, k, r: (4 * t * d * k, 2 * t * d * k + 2 * t * r * (d + k)), "another 2·T·d·k."),
            (lambda t, d, k, r: (6 * t * d * k, 6 * t * d * k + 2 * d * k * r), "makes G first"),
            (lambda t, d, k, r: (4 * t * d * k + 2 * t * r * (d + k), 6 * t * d * k), "Dense first"),
        ),
    ),
    "make_hook": Answers(
        right=(hook_with_tap, hook_with_closure),
        wrong=(
            (hook_that_keeps_all, "2.00 times G Aᵀ"),
            (hook_that_clears, "2.00 times G Aᵀ"),
            (hook_with_a_stack, "an H met the wrong P"),
            (hook_that_overwrites, "an H met the wrong P, or was lost"),
            (hook_that_keeps_the_output, "returns what the tap returns"),
            (lambda projection, sketch: None, "its `return` is missing"),
        ),
    ),
}  # fmt: skip
