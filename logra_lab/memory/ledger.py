"""A ledger that measures: every storage made during a step, by class and phase, with the peak and what made it.

How: while a phase is open a dispatch mode sees the result of every operation, notes its storage once and, through a
weak reference, the moment it is freed. Walks (census.py) name what lives between steps, saved-tensor hooks name what
is kept for backward. The names are settled at the end and the log of births and deaths is then replayed, so that a
tensor counts under its final class from its first byte on.

Left out: scratch memory inside one operation (a matrix product's workspace) and storages that are resized in place.
The price is "unexplained": the process's own figure less the sum of classes (trial.py). The mode costs some
microseconds per operation; never time anything inside a phase.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .census import residents, tensors_in
from .process import peak_bytes, reset_peak
from .replay import Block, Phase, replay
from .units import PHASES, Bytes


class _Watch(TorchDispatchMode):
    """Hands every operation's results to the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, Tensor):
                self.ledger._born(tensor, func, args)
        return result


class Ledger:
    """Measure a live model and optimizer: `with ledger.phase("forward"): ...`, then `ledger.report()`.

    Args: the model, the optimizer (or None), and `device` (default: the first parameter's); bytes elsewhere, such as
    lower halves kept on the host, are summed in `host_bytes()`.
    Phases are those of `PHASES`; a phase entered twice (micro-batches) keeps its higher peak.
    """

    def __init__(
        self, model: nn.Module, optimizer: object = None, *, device: torch.device | None = None
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.device = torch.device(device) if device is not None else next(model.parameters()).device
        self.head, self.vocab = _head(model)
        self._live: dict[int, Block] = {}
        self._references: dict[int, weakref.ref] = {}
        self._log: list[tuple[int, Block | str]] = []  # (+1 born | -1 freed | 0 phase begins or ends)
        self._process: dict[str, int | None] = {}
        self._phase: str | None = None
        rank = getattr(getattr(optimizer, "projections", None), "rank", None)
        targets = getattr(optimizer, "targets", ()) if rank else ()
        self._sketch_shapes = {(target.rows, rank) for target in targets}
        self._projection_shapes = {(rank, target.columns) for target in targets}

    # -- what a user calls -------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[Ledger]:
        """Watch the operations inside as phase `name`. Raises ValueError for an unknown name or a nested phase."""
        if name not in PHASES:
            raise ValueError(f"Unknown phase {name!r}; the phases of a step are {', '.join(PHASES)}.")
        if self._phase is not None:
            raise ValueError(f"Phase {name!r} begins inside {self._phase!r}; close that one first.")
        self._walk()
        self._phase = name
        self._log.append((0, name))
        on_gpu = self.device.type == "cuda" and reset_peak(self.device)
        with ExitStack() as stack:
            stack.enter_context(self._hooks())
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._saved, lambda tensor: tensor))
            stack.enter_context(_Watch(self))
            try:
                yield self
            finally:
                self._phase = None
        if on_gpu:
            self._process[name] = max(self._process.get(name) or 0, peak_bytes(self.device) or 0)
        self._close(name)

    def label(self, name: str, thing: object) -> None:
        """Give every tensor inside `thing` the class `name`: for what the ledger can't know by itself."""
        Bytes({name: 0})  # an unknown class is refused here
        for tensor in tensors_in(thing):
            self._label(name, tensor)

    def report(self) -> dict[str, Phase]:
        """The phases seen so far, replayed with final classes."""
        return replay(self._log, self._process)

    def now(self) -> Bytes:
        """Bytes by class at this moment on the ledger's device."""
        self._walk()
        total: dict[str, int] = {}
        for block in self._live.values():
            total[block.name] = total.get(block.name, 0) + block.bytes
        return Bytes(total)

    def host_bytes(self) -> int:
        """Bytes that the model and the optimizer keep on other devices than the ledger's."""
        elsewhere = {}
        for _, tensor in residents(self.model, self.optimizer):
            if tensor.device != self.device:
                elsewhere[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return sum(elsewhere.values())

    # -- bookkeeping -------------------------------------------------------------------------------------------------

    def _born(self, tensor: Tensor, func: object, args: tuple) -> None:
        if tensor.device != self.device or tensor._is_zerotensor() or not (storage := _storage(tensor)):
            return  # a zero tensor of autograd's claims bytes that nobody allocated
        key = storage._cdata
        if key in self._live:
            return
        block = Block(storage.nbytes(), f"{func} {list(tensor.shape)}", self._guess(tensor, func, args))
        self._add(key, storage, block)

    def _add(self, key: int, storage: torch.UntypedStorage, block: Block) -> None:
        self._live[key] = block
        self._log.append((1, block))
        self._references[key] = weakref.ref(storage, functools.partial(self._freed, key))

    def _freed(self, key: int, _: weakref.ref) -> None:
        self._references.pop(key, None)
        if block := self._live.pop(key, None):
            self._log.append((-1, block))

    def _guess(self, tensor: Tensor, func: object, args: tuple) -> str:
        """The class of a new storage, as far as its birth tells."""
        if self._phase == "probe":
            return "KL probe"
        if tuple(tensor.shape) in self._sketch_shapes:
            return "sketches"  # a factor U, or Hᵀ P on its way into S
        if tuple(tensor.shape) in self._projection_shapes:
            return "projections"
        if tensor.dim() > 1 and tensor.shape[-1] == self.vocab and tensor.is_floating_point():
            return "logits"
        if func is torch.ops.aten._to_copy.default and self._class_of(args[0]) == "weights":
            return "weights"  # autocast's low-precision copy
        if self._phase == "backward" and torch.is_grad_enabled():
            return "saved activations"  # checkpointing computes a block again to have what its backward needs
        return "other"

    def _class_of(self, tensor: Tensor) -> str | None:
        storage = _storage(tensor)
        return self._live[storage._cdata].name if storage and storage._cdata in self._live else None

    def _label(self, name: str, tensor: Tensor, only: tuple[str, ...] | None = None) -> None:
        """Name the storage behind `tensor`, adding it if no operation showed it; `only` limits what may be renamed."""
        if tensor.device != self.device or not (storage := _storage(tensor)):
            return
        block = self._live.get(storage._cdata)
        if block is None:
            self._add(storage._cdata, storage, Block(storage.nbytes(), "before the phase", name))
        elif only is None or block.name in only:
            block.name = name

    def _walk(self) -> None:
        """Name what lives between steps; the first class that claims a storage keeps it."""
        claimed: set[int] = set()
        for name, tensor in residents(self.model, self.optimizer):
            storage = _storage(tensor)
            if storage and storage._cdata not in claimed:
                claimed.add(storage._cdata)
                self._label(name, tensor)

    def _saved(self, tensor: Tensor) -> Tensor:
        self._label("saved activations", tensor, only=("other",))
        # A tensor that is its own node's saved output would keep itself alive: hand back a detached alias.
        return tensor.detach()

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """Gradients are named when they are accumulated, KV caches when a forward hands one back."""
        handles = [
            parameter.register_post_accumulate_grad_hook(lambda p: self._label("gradients", p.grad))
            for parameter in self.model.parameters()
            if parameter.requires_grad and parameter.is_leaf
        ]
        handles.append(self.model.register_forward_hook(self._cache))
        if self.head is not None:
            handles.append(
                self.head.register_forward_hook(lambda m, a, out: self._label("logits", out, ("other",)))
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _cache(self, module: nn.Module, args: tuple, output: object) -> None:
        name = (
            "cache" if hasattr(output, "cache") else "past_key_values"
        )  # newer transformers warn of the old name
        cache = getattr(output, name, None)
        for layer in getattr(cache, "layers", ()):
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
                if isinstance(tensor, Tensor):
                    self._label("KV cache", tensor, only=("other", "saved activations"))

    def _close(self, name: str) -> None:
        if name == "forward":  # what is still alive and has no name waits for backward
            for block in self._live.values():
                block.name = "saved activations" if block.name == "other" else block.name
        self._walk()
        self._log.append((0, ""))


def _head(model: nn.Module) -> tuple[nn.Module | None, int | None]:
    """The output head, and the vocabulary size if a last dimension of that size can only mean logits."""
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    vocab = getattr(getattr(model, "config", None), "vocab_size", None)
    widths = {
        size
        for parameter in model.parameters()
        if parameter.shape[:1] != (vocab,)
        for size in parameter.shape
    }
    return head, None if vocab in widths else vocab


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor that has one with bytes in it."""
    if tensor.is_sparse or tensor.layout is not torch.strided:
        return None
    try:
        storage = tensor.untyped_storage()
    except (
        RuntimeError,
        NotImplementedError,
    ):  # wrappers such as DTensor: their local part is seen by itself
        return None
    return storage if storage.nbytes() else None
