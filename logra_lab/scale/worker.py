"""A second process that generates: it holds a replica, is fed by packets, and answers requests.

    python -m logra_lab.scale.worker --model PATH --directory FOLDER
    python -m logra_lab.scale.worker --model PATH --connect HOST:PORT

The conversation (every message is a packet of `method/packet.py`):

    worker   hello                                  I am here, with the weights of PATH
    trainer  terms                                  this is what packets mean
    worker   ready (link)
    trainer  update, update, …                      or `full` where the link is another
    trainer  request (id, link, prompts)
    worker   answers (id)                           or `resync`, if its link isn't the one asked for

A request names the link of the weights it must be answered with, so a worker that lost packets, was
restarted or came late can't answer from other weights: it asks for a resync first.

Left out: batching over requests, and overlap with training: the trainer waits. `rollouts.py` is its side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from logra_lab.method.chain import Terms
from logra_lab.method.packet import Packet, PacketError, decode, encode
from logra_lab.method.replica import Replica
from logra_lab.rl.generation import Sampled, Sampler, Sampling, sample_tokens
from logra_lab.rl.policy import switch_dropout_off
from logra_lab.scale.transport import Directory, Transport, connect

Load = Callable[[Terms], nn.Module]


class Worker:
    """Serves one trainer.

    Args:
        transport: to the trainer.
        load: makes the model with its initial weights, in the type that the terms' precision keeps.
        sampler: `sample_tokens`, or another of its signature.
    """

    def __init__(self, transport: Transport, load: Load, sampler: Sampler = sample_tokens) -> None:
        self.transport, self.load, self.sampler = transport, load, sampler
        self.replica: Replica | None = None
        self._asked = False

    def serve(self, idle: float | None = None) -> str:
        """Answer until the trainer says stop, or is silent for `idle` seconds; returns "stopped" or "idle"."""
        self._say("hello")
        heard = time.monotonic()
        while idle is None or time.monotonic() - heard < idle:
            data = self.transport.receive(0.5 if idle is None else min(0.5, idle))
            if data is None:
                continue
            heard = time.monotonic()
            if not self._handle(data):
                return "stopped"
        return "idle"

    def _handle(self, data: bytes) -> bool:
        """Act on one message; False for stop."""
        try:
            packet = decode(data)
        except PacketError as error:
            self._ask(str(error))
            return True
        if packet.kind == "stop":
            return False
        if packet.kind == "terms":
            self._begin(Terms.parse(packet.header.get("terms")))
        elif self.replica is None:
            self._say("hello")
        elif packet.kind == "request":
            self._answer(self.replica, packet)
        elif packet.kind == "full":
            self._resync(self.replica, data)
        else:
            receipt = self.replica.apply(data)
            if receipt.status == "resync":
                self._ask(receipt.reason)
        return True

    def _resync(self, replica: Replica, data: bytes) -> None:
        try:
            replica.resync(data)
        except PacketError:
            self._say("hello")  # of a trainer with other terms, or damaged: begin anew
        self._asked = False

    def _begin(self, terms: Terms) -> None:
        """Start from the initial weights, unless the replica is already of these terms.

        Raises:
            PacketError: if the model at hand is not the trainer's; no resync can cure that.
        """
        if self.replica is None or self.replica.terms != terms:
            self.replica = Replica.from_terms(self.load(terms), terms)
        self._asked = False
        self._say("ready", link=self.replica.link, update=self.replica.updates)

    def _answer(self, replica: Replica, packet: Packet) -> None:
        header = packet.header
        if header.get("link") != replica.link:
            self._asked = False  # the trainer waits, so ask even if an earlier cry was lost
            self._ask(
                f"a request came for link {str(header.get('link'))[:12]}…, here is {replica.link[:12]}…"
            )
            return
        started = time.monotonic()
        try:
            sampled = run_request(replica.model, packet, self.sampler)
        except Exception as error:  # the trainer must hear of it, and the next request may be a good one
            self._say("error", id=header.get("id"), message=f"{type(error).__name__}: {error}")
            return
        seconds = time.monotonic() - started
        self._say("answers", sampled._asdict(), id=header.get("id"), link=replica.link, seconds=seconds)

    def _ask(self, reason: str) -> None:
        """Ask for a resync, once until it comes."""
        if not self._asked:
            self._asked = True
            self._say("resync", reason=reason)

    def _say(self, kind: str, tensors: dict[str, Tensor] | None = None, **fields: object) -> None:
        self.transport.send(encode({"kind": kind, **fields}, tensors or {}))


def run_request(model: nn.Module, packet: Packet, sampler: Sampler) -> Sampled:
    """Sample what a request asks for, on the model's device."""
    header, device = packet.header, next(model.parameters()).device
    sampling = Sampling(temperature=header["temperature"], max_new_tokens=header["max_new_tokens"])
    generator = torch.Generator(device).manual_seed(header["seed"])
    ids, mask = (packet.tensors[name].to(device) for name in ("input_ids", "attention_mask"))
    return sampler(model, ids, mask, sampling, tuple(header["stop_ids"]), header["pad"], generator)


def load_model(path: str | Path, terms: Terms, device: str = "cpu") -> nn.Module:
    """The causal LM at `path` in the type that the terms' precision keeps, without dropout or remote code."""
    dtype = torch.float32 if terms.precision == "fp32" else torch.bfloat16
    model: nn.Module = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype, trust_remote_code=False)
    switch_dropout_off(model)
    return model.to(torch.device(device)).eval()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m logra_lab.scale.worker",
        description="Generate from a replica that packets keep in step.",
    )
    parser.add_argument("--model", required=True, help="folder or hub id of the initial weights")
    parser.add_argument("--device", default="cpu", help="where to hold the replica (default: cpu)")
    parser.add_argument(
        "--idle", type=float, default=None, help="end after so many seconds without a message"
    )
    parser.add_argument(
        "--threads", type=int, default=None, help="torch's threads; bit-equality needs the trainer's"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--directory", help="folder shared with the trainer")
    where.add_argument("--connect", metavar="HOST:PORT", help="address the trainer listens at")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.directory:
        transport: Transport = Directory(options.directory, "worker")
    else:
        host, _, port = options.connect.rpartition(":")
        if not port.isdigit():
            parser.error(f"--connect {options.connect!r} is no HOST:PORT, such as 127.0.0.1:5000")
        transport = connect(host, int(port))
    Worker(transport, lambda terms: load_model(options.model, terms, options.device)).serve(options.idle)


if __name__ == "__main__":
    main()
