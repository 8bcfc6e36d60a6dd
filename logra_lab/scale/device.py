"""The one place that picks a device and a dtype, and says why.

    choice = choose_device()          # cuda in bf16 where the card can, else fp32; mps and cpu in fp32
    print(choice.because)

fp16 is never chosen: its gradients need a scaled loss, and the scale would end up in the sketches. Left out: ROCm and
other accelerators that torch doesn't call "cuda" or "mps"; name them by `device=` and `dtype=`, untested.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class DeviceChoice:
    """Where to run and what to compute in.

    Attributes:
        device, dtype: of the model's compute.
        precision: how LoGRA should keep its weights there unless told otherwise (method.md §6).
        because: the reason, as a sentence.
    """

    device: torch.device
    dtype: torch.dtype
    precision: str
    because: str

    @property
    def name(self) -> str:
        """The dtype as settings write it: "bf16" or "fp32"."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)


def choose_device(device: str = "auto", dtype: str = "auto", *, local_rank: int = 0) -> DeviceChoice:
    """The device and dtype for this process.

    Args:
        device: "auto", "cpu", "cuda", "cuda:1", "mps".
        dtype: "auto", "bf16" or "fp32".
        local_rank: which card of this machine is ours, under torchrun.

    Raises:
        ValueError: for fp16, an unknown dtype, a device that isn't there, or bf16 where the card has none.
    """
    _check_dtype(dtype)
    found = torch.device(_device_name(device, local_rank))
    _check_device(found)
    bf16, why = bf16_support(found)
    if dtype == "bf16" and not bf16:
        raise ValueError(f"dtype='bf16' on {found}: {why}. Use dtype='fp32', or leave it 'auto'")
    chosen = DTYPES[dtype] if dtype != "auto" else DTYPES["bf16" if bf16 and found.type == "cuda" else "fp32"]
    precision = "split" if chosen == torch.bfloat16 else "fp32"
    asked = "asked for" if dtype != "auto" else "chosen"
    words = "bf16" if chosen == torch.bfloat16 else "fp32"
    return DeviceChoice(found, chosen, precision, f"{found} computing in {words}, as {asked}: {why}.")


def bf16_support(device: torch.device) -> tuple[bool, str]:
    """Whether to compute in bf16 on `device`, and the reason in words."""
    if device.type == "cpu":
        return True, "on a CPU fp32 is exact and mostly faster than bf16, so bf16 is used on request only"
    if device.type == "mps":
        return True, "Apple GPUs were not tried; fp32 is the careful choice, bf16 works on request"
    name = torch.cuda.get_device_name(device)
    if torch.cuda.get_device_capability(device)[0] >= 8:
        return True, f"{name} multiplies bf16 in hardware"
    return (
        False,
        f"{name} has no bf16 in hardware, and fp16 would need a scaled loss, which sketches can't hold",
    )


def _check_dtype(dtype: str) -> None:
    if dtype in ("fp16", "float16", "half"):
        raise ValueError(
            f"dtype={dtype!r} needs a scaled loss, which sketches can't hold; use 'bf16' or 'fp32'"
        )
    if dtype != "auto" and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown; use 'auto', 'bf16' or 'fp32'")


def _device_name(device: str, local_rank: int) -> str:
    if device == "auto":
        device = (
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    return f"cuda:{local_rank}" if device == "cuda" else device


def _check_device(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device={str(device)!r}, but torch sees no CUDA GPU; use device='cpu' with the preset 'tiny', "
            "or install a CUDA build of torch and check nvidia-smi"
        )
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise ValueError(
            f"device={str(device)!r}, but there are {torch.cuda.device_count()} GPUs here; "
            "start no more processes per machine than it has GPUs (torchrun --nproc-per-node)"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps', but this machine has no Apple GPU; use device='auto'")
