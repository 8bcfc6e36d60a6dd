"""Widgets redraw when a control moves, and keep a picture with words where none does."""

from __future__ import annotations

import pytest

from logra_lab.lab import widgets
from logra_lab.lab.plots import Picture, new_figure
from logra_lab.lab.widgets import Choice, Slider


class Screen:
    """Stands in for the notebook's display and keeps what was shown."""

    def __init__(self) -> None:
        self.shown: list = []
        self.updates: list[str] = []

    def __call__(self, thing, display_id: bool = False):
        self.shown.append(thing)
        return self

    def update(self, thing) -> None:
        self.updates.append(thing.data)


@pytest.fixture
def screen(monkeypatch) -> Screen:
    there = Screen()
    monkeypatch.setattr(widgets, "display", there)
    return there


def draw(rank: int, method: str) -> Picture:
    """A picture that says its choices; refuses rank 16."""
    if rank == 16:
        raise ValueError("rank 16 is <too much>")
    return Picture(new_figure(2, 1)[0], "nothing", f"rank {rank} with {method}")


def start(screen: Screen) -> widgets.Player:
    return widgets.play(
        draw, rank=Slider("rank r", (4, 8, 16), 8), method=Choice("method", ("LoGRA", "AdamW"), "LoGRA")
    )


def test_the_first_picture_is_shown_with_its_caption(screen: Screen) -> None:
    start(screen)
    assert "rank 8 with LoGRA" in screen.shown[0].data and screen.updates == []


def test_a_moved_slider_replaces_the_picture_once(screen: Screen) -> None:
    player = start(screen)
    player.controls["rank"].value = 4
    assert len(screen.updates) == 1 and "rank 4 with LoGRA" in screen.updates[0]


def test_the_twin_of_a_slider_moves_with_it_and_carries_its_name(screen: Screen) -> None:
    player = start(screen)
    slider, twin = screen.shown[1].children[0].children
    assert slider is player.controls["rank"] and twin.description == "rank r" and not slider.continuous_update
    twin.value = 4
    assert slider.value == 4 and len(screen.updates) == 1
    slider.value = 8
    assert twin.value == 8


def test_an_error_after_a_move_takes_the_place_of_the_picture(screen: Screen) -> None:
    start(screen).controls["rank"].value = 16
    assert 'role="alert"' in screen.updates[0] and "rank = 16" in screen.updates[0]
    assert "&lt;too much&gt;" in screen.updates[0]


def test_an_error_in_the_first_picture_is_raised(screen: Screen) -> None:
    with pytest.raises(ValueError, match="too much"):
        widgets.play(draw, rank=Slider("rank", (4, 16), 16), method=Choice("m", ("a",), "a"))


def test_a_start_value_that_is_no_option_is_refused() -> None:
    with pytest.raises(ValueError, match="starts at 5"):
        Slider("rank", (4, 8), 5)
    assert Slider("rank", (("four", 4), ("eight", 8)), 8).values() == [4, 8]


def test_a_widget_without_controls_is_refused(screen: Screen) -> None:
    with pytest.raises(ValueError, match="at least one control"):
        widgets.play(lambda: draw(4, "x"))
