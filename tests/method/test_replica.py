"""A replica stays bit-equal by packets, refuses every packet that is not due, and comes back by a resync."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

from logra_lab.method import LoGRA
from logra_lab.method.packet import PacketError, decode, encode
from logra_lab.method.replica import Replica
from logra_lab.method.sender import Sender
from tests.method.worlds import llama, loss_of, same, stack, tokens

SHAPES = ((33, 20), (20, 33), (47, 20))
OPTIONS = dict(rank=6, seed=7)


def bits(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


class World:
    """A trainer, its sender and one replica, over random sketches: no model passes are needed to move weights."""

    def __init__(self, precision="fp32", *, model=None, factor_dtype=torch.float32, sender=None, **options):
        model = model if model is not None else stack(*SHAPES, bias=True)
        if precision != "fp32":
            model = model.bfloat16()
        self.twin = copy.deepcopy(model)
        terms = OPTIONS | dict(precision=precision, factor_dtype=factor_dtype)
        self.optimizer = LoGRA(model, **(terms | dict(update_ratio=1e-3) | options))
        self.replica = Replica(self.twin, **terms)
        self.sender = Sender(self.optimizer, **(sender or {}))
        self.generator = torch.Generator().manual_seed(5)

    def packet(self, tokens: float = 10) -> bytes:
        for sketch in self.optimizer.sketches.values():
            sketch.copy_(torch.randn(sketch.shape, generator=self.generator))
        return self.sender.pack(self.optimizer.commit(self.optimizer.propose(tokens=tokens), 0.7))

    def packets(self, count: int) -> list[bytes]:
        return [self.packet() for _ in range(count)]

    def equal(self) -> bool:
        names = [target.name for target in self.optimizer.targets]
        full = all(torch.equal(self.optimizer.weight(name), self.replica.weight(name)) for name in names)
        return full and same(bits(self.optimizer.model), bits(self.twin))


@pytest.mark.parametrize("factor_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["fp32", "split", "stochastic", "nearest"])
def test_sixty_updates_leave_the_replica_bit_equal(precision, factor_dtype):
    world = World(precision, factor_dtype=factor_dtype)
    start = bits(world.twin)
    for number in range(60):
        receipt = world.replica.apply(world.packet())
        assert (receipt.status, receipt.updates) == ("applied", number + 1)
    assert world.equal()
    assert not same(start, bits(world.twin))
    assert world.replica.link == world.sender.link


@pytest.mark.parametrize("precision", ["fp32", "split"])
def test_a_language_model_trained_by_step_and_its_replica_give_the_same_logits(precision):
    model = llama()
    twin = copy.deepcopy(model)
    if precision == "split":
        model, twin = model.bfloat16(), twin.bfloat16()
    optimizer = LoGRA(model, **OPTIONS, precision=precision, update_ratio=1e-3)
    replica, sender = Replica(twin, **OPTIONS, precision=precision), Sender(optimizer)
    optimizer.on_commit.append(lambda update: replica.apply(sender.pack(update)))
    for seed in range(5):
        loss_of(model, tokens(seed=seed)).backward()
        assert optimizer.step(tokens=90).status == "updated"
    assert replica.updates == 5
    for shape in ((8, 12), (6, 1), (1, 5)):
        with torch.no_grad():
            assert torch.equal(model(tokens(*shape)).logits, twin(tokens(*shape)).logits)


def test_weight_decay_travels_with_the_update():
    world = World(rule="lr", lr=1e-2, weight_decay=0.1, update_ratio=6e-5)
    for data in world.packets(4):
        assert decode(data).header["decay"] == pytest.approx(1e-3)
        assert world.replica.apply(data).status == "applied"
    assert world.equal()


def test_native_parameters_that_moved_are_carried():
    model = stack(*SHAPES, bias=True)
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    native = torch.optim.AdamW(biases, lr=1e-2)
    world = World(model=model, native=native)
    for number in range(3):
        for bias in biases:
            bias.grad = torch.randn(bias.shape, generator=world.generator)
        data = world.packet()
        assert world.replica.apply(data).status == "applied"
        assert world.equal(), number
    carried = [name for name in decode(data).tensors if name.startswith("native/")]
    assert len(carried) == 3 and world.sender.native_bytes == 4 * (33 + 20 + 47)


def test_a_commit_without_signal_sends_nothing_and_the_chain_goes_on():
    world = World()
    update = world.optimizer.commit(world.optimizer.propose(tokens=1))
    with pytest.raises(ValueError, match="had no signal and moved nothing: send no packet"):
        world.sender.pack(update)
    assert world.replica.apply(world.packet()).status == "applied" and world.equal()


# ---- what is refused -------------------------------------------------------------------------------------------


def changed(data: bytes, header=None, **tensors) -> bytes:
    """A well-formed packet with other content: what a bug in a sender would make."""
    packet = decode(data)
    return encode({**packet.header, **(header or {})}, {**packet.tensors, **tensors})


def flipped(data: bytes, place: float) -> bytes:
    index = int(place * (len(data) - 1))
    return data[:index] + bytes([data[index] ^ 4]) + data[index + 1 :]


def foreign(world: World) -> bytes:
    precision = world.optimizer.config["precision"]
    other = World(precision, model=stack(*SHAPES, bias=True, seed=99))
    other.packets(world.replica.updates)
    return other.packet()


FACTOR = "factor/layers.0.q_proj"
DAMAGE = {
    "lost": (lambda w, p: p[1], "update 3 came, but update 2 was due: packets were lost"),
    "repeated": (lambda w, p: p[-1], "update 1 came again: 2 updates are applied"),
    "cut in its header": (lambda w, p: p[0][:20], "was cut"),
    "cut in its body": (lambda w, p: p[0][:-5], "can't be read"),
    "empty": (lambda w, p: b"", "has 0 bytes"),
    "flipped in its body": (lambda w, p: flipped(p[0], 0.99), "was changed on its way"),
    "flipped in its middle": (lambda w, p: flipped(p[0], 0.5), "."),
    "flipped in its header": (lambda w, p: flipped(p[0], 0.2), "."),
    "foreign weights": (lambda w, p: foreign(w), "another run, or of other initial weights"),
    "another run": (lambda w, p: changed(p[0], {"terms": w.sender.terms.as_json() | {"run": "b"}}), "run is 'b' there"),
    "another seed": (lambda w, p: changed(p[0], {"terms": w.sender.terms.as_json() | {"seed": 1}}), "seed is 1 there"),
    "no terms": (lambda w, p: changed(p[0], {"terms": 3}), "terms can't be read"),
    "no number": (lambda w, p: changed(p[0], {"update": "2"}), "update number is '2'"),
    "another shape": (lambda w, p: changed(p[0], **{FACTOR: torch.zeros(3, 6)}), r"\(3, 6\).* in the packet but"),
    "another type": (lambda w, p: changed(p[0], **{FACTOR: torch.zeros(33, 6).half()}), "float16.* in the packet but"),
    "not finite": (lambda w, p: changed(p[0], **{FACTOR: torch.full((33, 6), torch.nan)}), "NaN or infinity"),
    "infinite decay": (lambda w, p: changed(p[0], {"decay": "much"}), "decay is 'much'"),
    "an unknown tensor": (lambda w, p: changed(p[0], extra=torch.zeros(1), **{"native/x": torch.ones(2)}), "x is"),
    "full weights": (lambda w, p: w.sender.full(), "kind 'full', an update was due"),
    "random": (lambda w, p: bytes(range(256)) * 9, "its header alone"),
    "a pickle": (lambda w, p: b"\x80\x04\x95" + p[0], "."),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "split"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_packet_that_is_not_due_changes_nothing_and_the_due_one_still_applies(precision, damage):
    world = World(precision)
    applied = world.packets(2)
    assert [world.replica.apply(data).status for data in applied] == ["applied"] * 2
    before, link = bits(world.twin), world.replica.link
    lower = {
        name: half.clone() for name, half in getattr(world.replica.weights.precision, "lower", {}).items()
    }
    following = world.packets(2)
    make, reason = DAMAGE[damage]
    receipt = world.replica.apply(make(world, [*following, *applied]))
    assert (receipt.status, receipt.updates) == ("resync", 2)
    assert re.search(reason, receipt.reason)
    assert same(before, bits(world.twin)) and world.replica.link == link
    assert same(lower, dict(getattr(world.replica.weights.precision, "lower", {})))
    assert [world.replica.apply(data).status for data in following] == ["applied"] * 2 and world.equal()


def test_reordered_packets_are_refused_until_the_due_one_comes():
    world = World()
    first, second, third = world.packets(3)
    answers = [world.replica.apply(data).status for data in (second, first, third, second, third)]
    assert answers == ["resync", "applied", "resync", "applied", "applied"] and world.equal()


def test_applying_a_wrong_packet_anyway_would_leave_other_weights():
    """The control: what the chain prevents is a real error."""
    world = World()
    first, second = world.packets(2)
    forged = changed(second, {"update": 0, "parent": world.replica.link})
    assert world.replica.apply(forged).status == "applied"
    assert not world.equal()


@pytest.mark.parametrize("precision", ["fp32", "split", "stochastic", "nearest"])
def test_after_a_resync_both_go_on_bit_equal(precision):
    world = World(precision)
    world.packets(4)  # all lost
    assert world.replica.apply(world.packet()).status == "resync"
    assert world.replica.resync(world.sender.full()).status == "applied"
    assert world.replica.updates == 5 and world.equal()
    assert [world.replica.apply(data).status for data in world.packets(20)] == ["applied"] * 20
    assert world.equal()


def test_a_replica_from_other_initial_weights_is_cured_by_a_resync():
    world = World()
    stranger = Replica(stack(*SHAPES, bias=True, seed=50), **OPTIONS)
    assert "other initial weights" in stranger.apply(world.packet()).reason
    stranger.resync(world.sender.full())
    assert stranger.apply(world.packet()).status == "applied"
    assert same(bits(stranger.model), bits(world.optimizer.model))


def test_full_weights_hold_both_halves_so_nothing_below_bf16_is_lost():
    world = World("split")
    world.packets(3)
    packet = decode(world.sender.full())
    name = world.optimizer.targets[0].name
    assert packet.tensors[f"weight/{name}"].dtype == torch.bfloat16
    assert packet.tensors[f"state/{name}/lower"].count_nonzero() > 0


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda full: full[:-1], "can't be read"),
        (lambda full: flipped(full, 0.9), "was changed on its way"),
        (lambda full: changed(full, {"kind": "update"}), "kind 'update', a resync needs the full weights"),
        (lambda full: changed(full, {"link": 5}), "doesn't say where in the chain"),
        (lambda full: changed(full, {"update": -1}), "doesn't say where in the chain"),
        (lambda full: changed(full, **{"other/layers.0.q_proj.bias": torch.zeros(3)}), r"bias is \(\(3,\)"),
        (
            lambda full: changed(full, **{"state/layers.0.q_proj/lower": torch.zeros(2, 2)}),
            r"lower is \(\(2, 2\)",
        ),
        (
            lambda full: changed(full, **{"weight/layers.0.q_proj": torch.ones(33, 20).bfloat16()}),
            "contradicts itself: the lower halves",
        ),
    ],
)
def test_damaged_full_weights_are_refused_and_change_nothing(damage, reason):
    world = World("split")
    world.packets(2)
    before, link = bits(world.twin), world.replica.link
    with pytest.raises(PacketError, match=reason):
        world.replica.resync(damage(world.sender.full()))
    assert same(before, bits(world.twin)) and world.replica.link == link


def test_an_error_in_the_middle_of_a_merge_leaves_a_replica_that_asks_for_a_resync(monkeypatch):
    world = World()
    original = world.replica.weights.precision.add_low_rank

    def fails_at_the_second(name, *rest):
        if name == world.optimizer.targets[1].name:
            raise RuntimeError("out of memory")
        original(name, *rest)

    monkeypatch.setattr(world.replica.weights.precision, "add_low_rank", fails_at_the_second)
    first, second = world.packets(2)
    with pytest.raises(RuntimeError):
        world.replica.apply(first)
    monkeypatch.undo()
    assert world.replica.apply(first).status == world.replica.apply(second).status == "resync"
    world.replica.resync(world.sender.full())
    assert world.equal()


def test_packets_out_of_turn_are_refused_by_the_sender_with_both_numbers():
    world = World()
    for sketch in world.optimizer.sketches.values():
        sketch.fill_(1.0)
    never_packed = world.optimizer.commit(world.optimizer.propose(tokens=1))
    world.optimizer.sketches["layers.0.q_proj"].fill_(1.0)
    update = world.optimizer.commit(world.optimizer.propose(tokens=1))
    for late in (never_packed, update):
        with pytest.raises(
            ValueError, match=f"update 0, but this is update {late.update} of an optimizer with 2"
        ):
            world.sender.pack(late)
    world.replica.resync(world.sender.full())  # begins a new chain
    assert world.replica.apply(world.packet()).status == "applied" and world.equal()


def test_terms_name_every_difference():
    world = World()
    other = Replica(stack(*SHAPES, bias=True), rank=5, seed=8, targets=("layers.0.q_proj",))
    reason = other.apply(world.packet()).reason
    for part in (
        "seed is 7 there but 8 here",
        "rank is 6 there but 5 here",
        "target layers.1.q_proj is [20, 33",
    ):
        assert part in reason


def test_a_replica_can_be_made_from_the_terms_alone():
    model = llama()
    twin = copy.deepcopy(model)
    optimizer = LoGRA(model, **OPTIONS, shared=True, factor_dtype=torch.bfloat16)
    sender = Sender(optimizer, run="x")
    replica = Replica.from_terms(twin, sender.terms)
    assert replica.link == sender.link and replica.terms == sender.terms
    with pytest.raises(PacketError, match="target .* there but"):
        Replica.from_terms(llama(hidden_size=40), sender.terms)


# ---- the checksum with a tolerance ------------------------------------------------------------------------------


def test_a_checksum_finds_one_missing_update_and_passes_rounding():
    world = World(sender=dict(checksum_every=2), update_ratio=6e-5)
    twin = copy.deepcopy(world.optimizer.model)
    receipts = [world.replica.apply(data) for data in world.packets(4)]
    assert [receipt.drift for receipt in receipts] == [None, 0.0, None, 0.0]
    noise = 1 + 6e-8 * torch.randn(world.twin.layers[0]["q_proj"].weight.shape, generator=world.generator)
    world.twin.layers[0]["q_proj"].weight.data.mul_(noise)  # another device's rounding
    close = [world.replica.apply(data) for data in world.packets(2)][-1]
    assert close.status == "applied" and 0 < close.drift < 1e-6
    world.twin.layers[1]["q_proj"].weight.data.copy_(twin.layers[1]["q_proj"].weight)  # somebody set it back
    far = [world.replica.apply(data) for data in world.packets(2)][-1]
    assert far.status == "resync" and "drifted by" in far.reason and far.drift > 1e-5
    assert world.replica.apply(world.packet()).status == "resync"
    world.replica.resync(world.sender.full())
    assert world.equal()
