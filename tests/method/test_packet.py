"""The packet format: what goes in comes out, equal content is equal bytes, everything else is a clear error."""

from __future__ import annotations

import copy
import pickle
import random

import pytest
import safetensors.torch
import torch

from logra_lab.method import LoGRA
from logra_lab.method.packet import PacketError, decode, encode
from logra_lab.method.replica import Replica
from logra_lab.method.sender import Sender
from tests.damage import damaged_bytes
from tests.method.worlds import same, stack

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.ones(3, dtype=torch.bfloat16),
    "scalar": torch.tensor(2, dtype=torch.int16),
    "nothing": torch.zeros(0, 4),
    "flags": torch.tensor([True, False]),
}


def test_what_goes_in_comes_out():
    header = {"kind": "update", "decay": 0.1 + 0.2, "text": "ü → \n", "nested": [1, [None, True]]}
    packet = decode(encode(header, TENSORS))
    assert packet.header == header and packet.kind == "update" and same(dict(packet.tensors), TENSORS)


def test_equal_content_gives_equal_bytes_and_views_are_written_alone():
    base = torch.arange(12.0).view(3, 4)
    views = {"row": base[1], "column": base[:, 1]}
    apart = {"column": torch.tensor([1.0, 5.0, 9.0]), "row": torch.arange(4.0, 8.0)}
    first, second = encode({"x": 1, "y": 2}, views), encode({"y": 2, "x": 1}, apart)
    assert first == second and len(first) < 500


def test_a_packet_is_a_plain_safetensors_file_read_without_pickle(tmp_path, monkeypatch):
    data = encode({"kind": "update"}, TENSORS)
    assert same(safetensors.torch.load(data), TENSORS)
    file = tmp_path / "packet.safetensors"
    file.write_bytes(data)
    with safetensors.safe_open(file, "pt") as opened:
        assert list(opened.metadata()) == ["logra"]

    def refuse(*_, **__):
        raise AssertionError("a packet was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert same(dict(decode(data).tensors), TENSORS)
    with pytest.raises(PacketError):
        decode(pickle.dumps({"kind": "update"}))


@pytest.mark.parametrize("change", ["header", "name", "type", "shape", "byte", "sign of zero"])
def test_the_digest_covers(change):
    tensors, header = {"a": torch.zeros(2, 2)}, {"kind": "x"}
    before = decode(encode(header, tensors)).digest
    other = {
        "header": ({"kind": "y"}, tensors),
        "name": (header, {"b": torch.zeros(2, 2)}),
        "type": (header, {"a": torch.zeros(2, 2, dtype=torch.int32)}),
        "shape": (header, {"a": torch.zeros(4)}),
        "byte": (header, {"a": torch.eye(2)}),
        "sign of zero": (header, {"a": -torch.zeros(2, 2)}),
    }[change]
    assert decode(encode(*other)).digest != before


def test_no_nan_enters_a_header():
    with pytest.raises(ValueError):
        encode({"decay": float("nan")}, {})


def test_another_format_names_both_versions(monkeypatch):
    monkeypatch.setattr("logra_lab.method.packet.FORMAT", 7)
    data = encode({"kind": "x"}, {})
    monkeypatch.undo()
    with pytest.raises(PacketError, match="format 7, this version reads 1: run the same version"):
        decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (20000).to_bytes(8, "little") + b"[" * 20000,
        safetensors.torch.save({"a": torch.ones(2)}),
        safetensors.torch.save({"a": torch.ones(2)}, metadata={"logra": "[]"}),
        safetensors.torch.save({"a": torch.ones(2)}, metadata={"logra": "{}"}),
        safetensors.torch.save(
            {"a": torch.ones(2)}, metadata={"logra": '{"format":1,"header":[],"digest":""}'}
        ),
        safetensors.torch.save(
            {"a": torch.ones(2)}, metadata={"logra": '{"format":1,"header":{"x":NaN},"digest":""}'}
        ),
    ],
)
def test_bytes_that_are_no_packet_are_named_so(data):
    with pytest.raises(PacketError, match="ask for it again|same version"):
        decode(data)


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Damage at a random place; half of it in the header, where a reader can trip."""
    header = 8 + int.from_bytes(data[:8], "little")
    return damaged_bytes(data, dice, within=header if dice.random() < 0.5 else len(data))


def test_three_thousand_damaged_packets_each_give_a_clear_answer_and_change_nothing():
    model = stack((9, 5), (5, 9), bias=True).bfloat16()
    twin = copy.deepcopy(model)
    options = dict(rank=3, seed=1, precision="split")
    optimizer, replica = LoGRA(model, **options), Replica(twin, **options)
    sender, dice = Sender(optimizer), random.Random(0)
    for sketch in optimizer.sketches.values():
        sketch.fill_(1.0)
    full = sender.full()
    update = sender.pack(optimizer.commit(optimizer.propose(tokens=1)))
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    for number in range(3000):
        original = update if number % 2 else full
        data = mutated(original, dice)
        if data == original:
            continue
        if number % 2:
            receipt = replica.apply(data)
            assert receipt.status == "resync" and receipt.reason
        else:
            with pytest.raises(PacketError):
                replica.resync(data)
    assert same(before, dict(twin.state_dict())) and replica.updates == 0
    assert replica.apply(update).status == "applied"
