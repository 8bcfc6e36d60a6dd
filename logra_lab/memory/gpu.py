"""The card at hand, where there is one: its size, what is free, which preset card it resembles. On a CPU: None."""

from __future__ import annotations

import torch

from .presets import CARDS, Card


def card_here(device: int = 0) -> Card | None:
    """The CUDA card of this machine as a `Card`, or None without one."""
    if not torch.cuda.is_available() or device >= torch.cuda.device_count():
        return None
    properties = torch.cuda.get_device_properties(device)
    return Card(f"{properties.total_memory / 2**30:.0f} GiB", properties.name, properties.total_memory)


def free_bytes(device: int = 0) -> int | None:
    """Bytes free on the CUDA card now, whoever uses the rest; None without one."""
    return None if card_here(device) is None else torch.cuda.mem_get_info(device)[0]


def nearest_preset(card: Card | None) -> Card | None:
    """The largest preset card that is no larger than `card` (5 % tolerance); None if even the smallest is larger."""
    if card is None:
        return None
    smaller = [preset for preset in CARDS.values() if preset.capacity <= 1.05 * card.capacity]
    return max(smaller, key=lambda preset: preset.capacity, default=None)
