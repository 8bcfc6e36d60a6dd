"""vLLM as rollout engine: in this process on the same card, or a server elsewhere. Optional: pip install vllm.

    engine = colocated(model, "org/model")                          # CUDA IPC, one card
    engine = server(model, "http://host:8000", address="10.0.0.1")   # NCCL; start the server as docs/scale.md says

vLLM's own weight transfer moves the full weights (its trainer side drives the server's); packets of αU would need our
merge inside vLLM's workers, which we leave out. What that costs stands in the log: bytes and seconds of each sync.
Its kernels round otherwise than the trainer's, so its log-probs differ: the loop measures that and charges it to the
budget. They must be those of the sampled distribution: `logprobs_mode="processed_logprobs"`, top-k and top-p off.

Written against vLLM 0.29 to 0.32 as documented, and tested against a stand-in with that interface; it has not met a
real vLLM yet.

Shapes: B sequences, L prompt length, N new tokens.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from logra_lab.method import LoGRA
from logra_lab.method.values import Update
from logra_lab.rl.generation import Sampled, Sampling
from logra_lab.scale.rollouts import Sync
from logra_lab.scale.world import refuse_several


class Answer(NamedTuple):
    """One answer: its tokens with the stop token, their log-probs, and whether it ended by itself."""

    tokens: Sequence[int]
    log_probs: Sequence[float]
    finished: bool


class Transfer(Protocol):
    """vLLM's trainer side of the weight transfer (`TrainerWeightTransferEngine`)."""

    def send_weights(self) -> object:
        """Send the full weights and return when the engine has them."""


Generate = Callable[[list[list[int]], dict[str, Any]], Iterable[Answer]]


class VLLM:
    """An engine over `generate` (prompts and sampling settings to answers) and a `Transfer` of full weights."""

    name = "vllm"

    def __init__(
        self, generate: Generate, transfer: Transfer, close: Callable[[], None] = lambda: None
    ) -> None:
        self._generate, self._transfer, self._close = generate, transfer, close
        self._optimizer: LoGRA | None = None
        self._stale = True
        self.syncs: list[Sync] = []

    def attach(self, optimizer: LoGRA) -> None:
        """Follow the commits: weights travel once before the next answers, however many commits there were."""
        self._optimizer, self._stale = optimizer, True
        optimizer.on_commit.append(self._note)

    def sample(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        sampling: Sampling,
        stop_ids: Sequence[int],
        pad: int,
        generator: torch.Generator,
    ) -> Sampled:
        """As `Engine.sample`, by vLLM. RuntimeError before `attach`."""
        if self._optimizer is None:
            raise RuntimeError("vLLM follows no optimizer yet; call attach(optimizer) first")
        if self._stale:
            self._sync(self._optimizer)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        prompts = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]
        answers = list(self._generate(prompts, settings(sampling, stop_ids, seed)))
        if len(answers) != len(prompts):
            raise RuntimeError(f"vLLM gave {len(answers)} answers to {len(prompts)} prompts; look at its log")
        return padded(answers, pad, input_ids.device)

    def close(self) -> None:
        """Free the engine."""
        self._close()

    def _note(self, _: Update) -> None:
        self._stale = True

    def _sync(self, optimizer: LoGRA) -> None:
        started = time.monotonic()
        self._transfer.send_weights()
        size = sum(p.numel() * p.element_size() for p in optimizer.model.parameters())
        self.syncs.append(
            Sync("full", optimizer.updates, size, time.monotonic() - started, "vLLM takes full weights")
        )
        self._stale = False


def settings(sampling: Sampling, stop_ids: Sequence[int], seed: int) -> dict[str, Any]:
    """vLLM's names for how to sample: nothing cut off, each sampled token's log-prob returned."""
    return {
        "temperature": sampling.temperature, "max_tokens": sampling.max_new_tokens, "stop_token_ids": list(stop_ids),
        "top_p": 1.0, "top_k": -1, "logprobs": 0, "seed": seed, "detokenize": False,
    }  # fmt: skip


def padded(answers: Sequence[Answer], pad: int, device: torch.device) -> Sampled:
    """Answers as tensors [B, N]. ValueError for a token without its log-prob."""
    for row, answer in enumerate(answers):
        if len(answer.tokens) != len(answer.log_probs) or not answer.tokens:
            raise ValueError(
                f"answer {row} has {len(answer.tokens)} tokens and {len(answer.log_probs)} log-probs; "
                'start vLLM with logprobs_mode="processed_logprobs"'
            )
    longest = max(len(answer.tokens) for answer in answers)
    tokens = torch.full((len(answers), longest), pad, device=device)  # [B, N]
    log_probs = torch.zeros(len(answers), longest, device=device)  # [B, N]
    for row, answer in enumerate(answers):
        tokens[row, : len(answer.tokens)] = torch.tensor(answer.tokens, device=device)
        log_probs[row, : len(answer.tokens)] = torch.tensor(answer.log_probs, device=device)
    lengths = torch.tensor([len(answer.tokens) for answer in answers], device=device)
    return Sampled(
        tokens, log_probs, lengths, torch.tensor([answer.finished for answer in answers], device=device)
    )


def colocated(model: nn.Module, path: str, *, memory: float = 0.35, **options: Any) -> VLLM:
    """vLLM in this process on the trainer's card, with a copy of the weights; `memory` is its share of the card.

    Raises:
        WrongWorld: in one of several trainer processes. ImportError: without vLLM.
    """
    refuse_several(_processes())
    vllm, config, transfer = _import("vllm", "vllm.config", "vllm.distributed.weight_transfer")
    ipc = _import("vllm.distributed.weight_transfer.ipc_engine")[0]
    llm = vllm.LLM(
        model=path, dtype="bfloat16", gpu_memory_utilization=memory, logprobs_mode="processed_logprobs",
        generation_config="vllm", weight_transfer_config=config.WeightTransferConfig(backend="ipc"), **options,
    )  # fmt: skip
    sender = transfer.WeightTransferTrainerFactory.trainer_init(
        init_info=ipc.IPCTrainerInitInfo(rank=0, packed=True),
        client=_Local(llm),
        source=transfer.ModuleSource(model),
    )

    def generate(prompts: list[list[int]], how: dict[str, Any]) -> list[Answer]:
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = llm.generate(requests, vllm.SamplingParams(**how), use_tqdm=False)
        return [_answer(result.outputs[0]) for result in results]

    return VLLM(generate, sender)


def server(
    model: nn.Module, url: str, *, address: str, port: int = 29511, servers: int = 1, timeout: float = 600
) -> VLLM:
    """A vLLM server at `url`; weights travel by NCCL from `address` (this machine, as the server reaches it).

    `servers` counts the server's GPUs.

    Raises:
        WrongWorld: in one of several trainer processes, of which only one could send. ImportError: without vLLM.
    """
    refuse_several(_processes())
    transfer = _import("vllm.distributed.weight_transfer")[0]
    nccl = _import("vllm.distributed.weight_transfer.nccl_engine")[0]
    sender = transfer.WeightTransferTrainerFactory.trainer_init(
        init_info=nccl.NCCLTrainerInitInfo(
            master_address=address, master_port=port, world_size=1 + servers, rank=0, packed=True
        ),
        client=transfer.HTTPVLLMWeightSyncClient(url), source=transfer.ModuleSource(model),
    )  # fmt: skip
    return VLLM(lambda prompts, how: completions(url, prompts, how, timeout), sender)


def completions(url: str, prompts: list[list[int]], how: dict[str, Any], timeout: float) -> list[Answer]:
    """Answers of a server's `/v1/completions` to prompts of token ids; RuntimeError if it can't be reached."""
    body = {name: value for name, value in how.items() if name != "detokenize"}
    body |= {"prompt": prompts, "return_token_ids": True, "logprobs": 1}
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/completions",
        json.dumps(body).encode("utf-8"),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            choices = json.load(reply)["choices"]
    except (OSError, KeyError, ValueError) as error:
        raise RuntimeError(
            f"the vLLM server at {url} gave no answers ({error}); is it running? See docs/scale.md"
        ) from error
    ordered = sorted(choices, key=lambda choice: choice["index"])
    return [
        Answer(c["token_ids"], c["logprobs"]["token_logprobs"], c["finish_reason"] == "stop") for c in ordered
    ]


class _Local:
    """vLLM's control plane without a network: the four calls go to the `LLM` of this process."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.llm.finish_weight_update()
        self.llm.reset_prefix_cache()


def _processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _answer(output: Any) -> Answer:
    log_probs = [step[token].logprob for step, token in zip(output.logprobs, output.token_ids, strict=True)]
    return Answer(list(output.token_ids), log_probs, output.finish_reason == "stop")


def _import(*names: str) -> list[Any]:
    from importlib import import_module

    try:
        return [import_module(name) for name in names]
    except ImportError as error:
        raise ImportError(
            f"engine='vllm' needs vLLM with its weight transfer (0.29 or newer): pip install vllm ({error}). "
            "Without it use engine='transformers'"
        ) from error
