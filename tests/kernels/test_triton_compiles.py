"""The kernels compile for real GPUs, which needs none: an interpreter run says nothing about that."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed here: it runs on Linux only.")

PROJECT_TYPES = {True: ("*bf16", "*i16"), False: ("*fp32", "*fp32")}
TARGETS = {"A100": 80, "H100": 90}


def compiled(kernel, types: dict[str, str], constants: dict, capability: int, options: dict):
    """The compiled kernel, for a GPU that need not be here."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def matrix_products(assembly: str) -> int:
    """Tensor-core instructions in the assembly."""
    return assembly.count("mma.sync") + assembly.count("wgmma.mma_async")


@pytest.fixture
def modules(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from logra_lab.kernels import triton_merge, triton_project

    if triton_project.INTERPRETED:
        pytest.skip("TRITON_INTERPRET is set: kernels are not compiled under the interpreter.")
    return triton_project, triton_merge


@pytest.mark.parametrize("capability", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("half", [True, False], ids=["bf16", "fp32"])
def test_project_compiles_to_tensor_core_products(modules, half, capability):
    project, _ = modules
    x, p = PROJECT_TYPES[half]
    for config in project.CONFIGS:
        constants = {"PARTS": 1 if half else 3, "TENSOR_CORES": True, "HALF": half, "stride_k": 1}
        constants |= {"BLOCK_R": 64, "BLOCK_K": project.COLUMNS, **config.kwargs}
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        kernel = compiled(project.project_kernel, {"x": x, "p": p}, constants, capability, options)
        assert matrix_products(kernel.asm["ptx"]) > 0
        assert kernel.metadata.shared <= 99 * 1024  # fits the smallest of these cards and consumer ones


@pytest.mark.parametrize("capability", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", ["fp32", "split", "stochastic", "nearest"])
def test_merge_compiles_to_tensor_core_products(modules, kind, capability):
    _, merge = modules
    weight = "*fp32" if kind == "fp32" else "*i16"
    types = {"w": weight, "lower": weight, "f": "*fp32", "keep": "fp32", "scale": "fp32"}
    constants = {"KIND": merge.KINDS[kind].value, "TENSOR_CORES": True, "stride_k": 1, "lower_k": 1}
    constants |= {"BLOCK_D": merge.BLOCK_D, "BLOCK_K": merge.BLOCK_K, "BLOCK_R": 64}
    kernel = compiled(merge.merge_kernel, types, constants, capability, {"num_warps": 4})
    assert matrix_products(kernel.asm["ptx"]) > 0
    assert kernel.metadata.shared <= 99 * 1024
