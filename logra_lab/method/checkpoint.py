"""A LoGRA state that resumes bit for bit, keyed by layer name, readable by the default `torch.load`.

Left out: the model's weights (the model's own checkpoint has them), A (a function of the seed and the
update number) and sketches of a backward that no step has used yet, as gradients are left out elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .state_check import VERSION, StateError, load_native, refuse_malformed

if TYPE_CHECKING:
    from .optimizer import LoGRA


def state_dict(optimizer: LoGRA) -> dict[str, Any]:
    """Plain containers of numbers, strings and tensors."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    for group, origin in zip(groups, optimizer.param_groups, strict=True):
        group["params"] = list(range(len(origin["params"])))
    return {
        "state": {},  # nothing is keyed by parameter: wrappers swap parameters between steps
        "param_groups": groups,
        "logra": {
            "version": VERSION,
            "config": dict(optimizer.config),
            "targets": _geometry(optimizer),
            "updates": optimizer.updates,
            "no_signal_steps": optimizer.no_signal_steps,
            "mismatch": optimizer.mismatch,
            "moments": dict(optimizer.moments),
            "precision": {
                target.name: optimizer.precision.state(target.name) for target in optimizer.targets
            },
            "native": None if optimizer.native is None else optimizer.native.state_dict(),
        },
    }


def load_state_dict(optimizer: LoGRA, state: Mapping[str, Any]) -> None:
    """Check everything, then take it all over; see `LoGRA.load_state_dict`."""
    own = refuse_malformed(state, optimizer.param_groups)
    _refuse_other_configuration(optimizer, own)
    weights = {target.name: optimizer.weights.local(target) for target in optimizer.targets}
    for name, weight in weights.items():
        optimizer.precision.check_state(name, weight, own["precision"][name])
    if optimizer.native is not None:
        load_native(optimizer.native, own["native"])
    for name, weight in weights.items():
        optimizer.precision.load(name, weight, own["precision"][name])
        moment = own["moments"][name]
        # never through the parameter's type: under a bf16 model that would round the moments
        optimizer.moments[name] = moment.to(optimizer.sketches[name]).clone()
    optimizer.updates, optimizer.no_signal_steps = int(own["updates"]), int(own["no_signal_steps"])
    optimizer.mismatch = float(own["mismatch"])
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})


def _geometry(optimizer: LoGRA) -> dict[str, list]:
    return {target.name: [target.rows, target.columns, target.group] for target in optimizer.targets}


def _refuse_other_configuration(optimizer: LoGRA, own: Mapping[str, Any]) -> None:
    here, there = dict(optimizer.config), dict(own["config"])
    differences = [
        f"{key}={there.get(key)!r} in the checkpoint but {here.get(key)!r} here"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    ]
    mine, theirs = _geometry(optimizer), dict(own["targets"])
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != (list(theirs[name]) if name in theirs else None):
            differences.append(
                f"target {name} is {theirs.get(name)} in the checkpoint but {mine.get(name)} here"
            )
    if (own["native"] is None) != (optimizer.native is None):
        kinds = [
            "no native optimizer" if x is None else "a native optimizer"
            for x in (own["native"], optimizer.native)
        ]
        differences.append(f"{kinds[0]} in the checkpoint but {kinds[1]} here")
    moments = own["moments"]
    for name, (rows, _, _) in mine.items():
        if name in theirs and (name not in moments or list(moments[name].shape) != [rows]):
            differences.append(f"the row moment of {name} is missing or of another shape")
        elif name in theirs and not bool((moments[name] >= 0).all()):
            differences.append(f"the row moment of {name} holds a negative number or a NaN")
    if differences:
        raise StateError(
            "the checkpoint belongs to another configuration: "
            + "; ".join(differences[:6])
            + ". Construct LoGRA as it was when the checkpoint was written"
        )
