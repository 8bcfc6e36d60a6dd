"""Is the method right on this device? Every check raises AssertionError with what it saw."""

from __future__ import annotations

from typing import Any

import torch

from logra_lab import kernels
from logra_lab.kernels import plain
from logra_lab.method import LoGRA
from logra_lab.method.projection import projection_key, sign_words
from logra_lab.method.trust_region import predict_kl
from tests.gpu.context import Context, Skip
from tests.method.worlds import (
    TokenProbe,
    dense_gradients,
    llama,
    loss_of,
    reference_row_adam_lr,
    reference_row_adam_paper,
    tokens,
)


def sketch(context: Context) -> dict[str, Any]:
    """S = G Aᵀ in fp32 and bf16, and the signs of A against those of the CPU, bit for bit."""
    sizes = {} if context.tiny else {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4}
    errors = {}
    for dtype, limit in ((torch.float32, 2e-4), (torch.bfloat16, 0.05)):
        model = llama(**sizes).to(context.device, dtype)
        ids = tokens(8).to(context.device)
        gradients = dense_gradients(model, lambda m, ids=ids: loss_of(m, ids).backward())
        optimizer = LoGRA(model, rank=16, precision="fp32" if dtype == torch.float32 else "nearest")
        loss_of(model, ids).backward()
        worst = 0.0
        for name, found in optimizer.sketches.items():
            expected = gradients[name].double() @ optimizer.projection(name).double().T
            worst = max(worst, float((found - expected).norm() / expected.norm()))
        assert worst < limit, f"S differs from G Aᵀ by {worst:.2e} in {dtype}"
        errors[str(dtype)] = worst
    here = sign_words(projection_key(1, 2, "g"), 64, 4096, device=context.device).cpu()
    assert torch.equal(here, sign_words(projection_key(1, 2, "g"), 64, 4096)), "the device draws other signs"
    return {"relative_error": errors, "signs_equal_cpu": True}


def rules(context: Context) -> dict[str, Any]:
    """Both update rules over 20 steps against float64 references on the CPU."""
    errors = {}
    for rule in ("paper", "lr"):
        model = llama().to(context.device)
        options = {"update_ratio": 1e-3} if rule == "paper" else {"lr": 1e-3}
        optimizer = LoGRA(model, rank=8, rule=rule, **options)
        start = {t.name: optimizer.weight(t.name).cpu() for t in optimizer.targets}
        sketches, projections = [], []
        for step in range(20):
            loss_of(model, tokens(4, seed=step).to(context.device)).backward()
            sketches.append({n: optimizer.sketches[n].cpu().clone() for n in start})
            projections.append({n: optimizer.projection(n).cpu() for n in start})
            optimizer.step(tokens=44)
        if rule == "paper":
            expected = reference_row_adam_paper(start, sketches, projections, [44.0] * 20, 1e-3, 0.95, 1e-8)
        else:
            expected = {
                n: reference_row_adam_lr(
                    start[n], [s[n] for s in sketches], [p[n] for p in projections], 1e-3, 0.0, 0.95, 1e-8
                )
                for n in start
            }
        errors[rule] = max(
            float((optimizer.weight(n).cpu() - expected[n]).norm() / (expected[n] - start[n]).norm())
            for n in start
        )
        assert errors[rule] < 1e-3, f"rule {rule} is off by {errors[rule]:.2e} of its displacement"
    return {"error_over_displacement": errors}


def split(context: Context) -> dict[str, Any]:
    """`split` with halves on the device and on the host equals an fp32 master bit for bit over 20 merges."""
    d, k, rank = (24, 40, 4) if context.tiny else (3584, 4096, 64)
    start = torch.randn(d, k, generator=torch.Generator().manual_seed(0)).bfloat16()
    from logra_lab.method.merge import PRECISIONS, join_halves, split_halves

    master = start.float().to(context.device)
    uppers = {halves: start.clone().to(context.device) for halves in ("device", "host")}
    lowers = {halves: torch.zeros(d, k, dtype=torch.int16, device=context.device) for halves in uppers}
    for update in range(20):
        factor = (torch.randn(d, rank, generator=torch.Generator().manual_seed(update)) * 1e-5).to(
            context.device
        )
        key = projection_key(0, update, "g")
        kernels.merge(master, factor, key, kind="fp32")
        for halves, upper in uppers.items():
            kernels.merge(upper, factor, key, kind="split", lower=lowers[halves])
            if halves == "host":  # through host memory, as `halves="host"` does between updates
                lowers[halves] = lowers[halves].cpu().to(context.device)
    for halves, upper in uppers.items():
        assert torch.equal(join_halves(upper, lowers[halves]), master), (
            f"split on the {halves} is not the fp32 master"
        )
        assert torch.equal(upper, split_halves(master)[0]), (
            f"the {halves} upper half is not the rounded master"
        )
    return {"bit_equal": True, "precisions": list(PRECISIONS), "whole_optimizer": _split_optimizers(context)}


def _split_optimizers(context: Context) -> bool:
    """LoGRA with halves on the device and on the host: the same weights after five updates."""
    results = []
    for halves in ("device", "host"):
        model = llama().bfloat16().to(context.device)
        optimizer = LoGRA(model, rank=8, precision="split", halves=halves, update_ratio=1e-3)
        for step in range(5):
            loss_of(model, tokens(4, seed=step).to(context.device)).backward()
            optimizer.step()
        results.append([optimizer.weight(t.name).cpu() for t in optimizer.targets])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), "host halves give other weights"
    return True


def forward_mode(context: Context) -> dict[str, Any]:
    """The predicted KL in bf16 against fp32, and against the measured KL in fp32."""
    model = llama().to(context.device)
    optimizer = LoGRA(model, rank=8, update_ratio=1e-3)
    loss_of(model, tokens(8).to(context.device)).backward()
    proposal, probe = optimizer.propose(), TokenProbe(tokens(3, seed=5).to(context.device))
    arguments = (optimizer.targets, proposal.factors, optimizer.projections, probe)
    full = float(predict_kl(model, *arguments).mean())
    measured = optimizer.measure(proposal, probe)
    optimizer.detach()
    half_model = model.bfloat16()
    half_optimizer = LoGRA(half_model, rank=8, precision="nearest")
    half = float(predict_kl(half_model, half_optimizer.targets, *arguments[1:]).mean())
    assert abs(full / measured - 1) < 0.1, f"predicted {full:.3e}, measured {measured:.3e}"
    assert abs(half / full - 1) < 0.1, f"bf16 predicts {half:.3e}, fp32 {full:.3e}"
    return {"fp32": full, "bf16": half, "measured_fp32": measured}


def kernels_shapes(tiny: bool) -> list[tuple[int, int, int]]:
    """(T or d, k, r) to try: round and odd."""
    return [(5, 33, 4), (16, 64, 8)] if tiny else [(1000, 1000, 16), (4096, 4096, 64), (777, 2049, 100)]


def kernels_on(context: Context) -> bool:
    """Whether Triton runs on this device."""
    return kernels.backend(torch.zeros(1, device=context.device)) == "triton"


def kernels_check(context: Context) -> dict[str, Any]:
    """Project and merge of the dispatch against their torch twins."""
    if not kernels_on(context) and not context.tiny:
        raise Skip("Triton does not run on this device")
    errors: dict[str, float] = {}
    for rows, columns, rank in kernels_shapes(context.tiny):
        key = projection_key(1, 7, f"{rows}")
        x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(context.device)
        for dtype in (torch.float32, torch.bfloat16):
            expected = plain.project(x.to(dtype).double().float(), key, rank)
            found = kernels.project(x.to(dtype), key, rank).float()
            error = float((found - expected).norm() / expected.norm())
            errors[f"project {dtype}"] = max(errors.get(f"project {dtype}", 0.0), error)
            assert error < (1e-4 if dtype == torch.float32 else 1e-2), (
                f"project {dtype} {rows, columns, rank}: {error:.2e}"
            )
        factor = (torch.randn(rows, rank, generator=torch.Generator().manual_seed(1)) * 1e-3).to(
            context.device
        )
        for kind in kernels.merge_kinds():
            weight = x if kind == "fp32" else x.bfloat16()
            ours, theirs = weight.clone(), weight.clone()
            lower = [torch.zeros(rows, columns, dtype=torch.int16, device=context.device) for _ in range(2)]
            options = {"kind": kind, "noise_key": projection_key(0, 7, "noise")}
            kernels.merge(ours, factor, key, lower=lower[0], **options)
            plain.merge(theirs, factor, key, lower=lower[1], **options)
            error = float((ours.float() - theirs.float()).norm() / (theirs.float() - weight.float()).norm())
            errors[f"merge {kind}"] = max(errors.get(f"merge {kind}", 0.0), error)
            assert error < (1e-3 if kind == "fp32" else 0.05), (
                f"merge {kind} {rows, columns, rank}: {error:.2e}"
            )
    return {"relative_error": errors, "backend": "triton" if kernels_on(context) else "torch"}
