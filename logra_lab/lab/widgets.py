"""Play widgets: a picture that answers to controls, and stays a picture where no kernel runs.

    def draw(rank, method):                      # pure: same choices, same picture
        return Picture(figure, alt, caption)
    widgets.play(draw, rank=Slider("rank r", (4, 8, 16, 32), 8), method=Choice("method", ("LoGRA", "AdamW"), "LoGRA"))

The picture is shown once as an HTML <figure> under a display id, and each change of a control replaces it: no output
widget, no flicker, and a saved notebook keeps the first picture with its alt text and caption. JupyterLab gives sliders
no accessible name, so each slider has a labelled drop-down beside it that moves with it and works from the keyboard.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
from IPython.display import HTML, display

from logra_lab.lab.plots import Picture

LABEL = {"description_width": "8em"}


@dataclass(frozen=True)
class Choice:
    """A drop-down: its label, the options (values, or (text, value) pairs) and the value at the start."""

    label: str
    options: Sequence[Any]
    value: Any

    def __post_init__(self) -> None:
        if self.value not in self.values():
            raise ValueError(f"{self.label!r} starts at {self.value!r}, which is no option: {self.values()}.")

    def values(self) -> list[Any]:
        """The values that can be chosen."""
        return [option[1] if isinstance(option, tuple) else option for option in self.options]

    def make(self) -> tuple[ipywidgets.Widget, ipywidgets.Widget]:
        """The widget to show and the widget that holds the value."""
        box = ipywidgets.Dropdown(options=self.options, value=self.value, description=self.label, style=LABEL)
        return box, box


@dataclass(frozen=True)
class Slider(Choice):
    """A slider over given steps, with a drop-down of the same label and values beside it."""

    def make(self) -> tuple[ipywidgets.Widget, ipywidgets.Widget]:
        """The pair to show and the slider that holds the value."""
        slider = ipywidgets.SelectionSlider(
            options=self.options,
            value=self.value,
            description=self.label,
            continuous_update=False,
            style=LABEL,
        )
        twin = ipywidgets.Dropdown(
            options=self.options, value=self.value, description=self.label, style=LABEL
        )
        ipywidgets.link((slider, "value"), (twin, "value"))
        return ipywidgets.HBox([slider, twin]), slider


@dataclass(frozen=True)
class Player:
    """A widget that was shown: its controls by name, and how to redraw it."""

    controls: dict[str, ipywidgets.Widget]
    redraw: Callable[[], None]


def play(draw: Callable[..., Picture], **controls: Choice) -> Player:
    """Show `draw(**values)` and the `controls` that change its values; an error in the first picture is raised.

    Raises ValueError without a control. A later error replaces the picture by a sentence that says what happened.
    """
    if not controls:
        raise ValueError("A play widget needs at least one control, e.g. rank=Slider('rank r', (4, 8), 4).")
    made = {name: control.make() for name, control in controls.items()}
    holders = {name: holder for name, (_, holder) in made.items()}
    first = draw(**{name: control.value for name, control in controls.items()})
    handle = display(HTML(first._repr_html_()), display_id=True)

    def redraw(*_: Any) -> None:
        handle.update(HTML(drawn(draw, {name: holder.value for name, holder in holders.items()})))

    for holder in holders.values():
        holder.observe(redraw, names="value")
    display(ipywidgets.VBox([shown for shown, _ in made.values()]))
    return Player(holders, redraw)


def drawn(draw: Callable[..., Picture], values: dict[str, Any]) -> str:
    """The picture for these values as HTML, or the error in its place."""
    try:
        return draw(**values)._repr_html_()
    except Exception as error:  # an observer's exception would vanish in a log that nobody opens
        chosen = ", ".join(f"{name} = {value}" for name, value in values.items())
        words = f"With {chosen} the picture can't be drawn: {type(error).__name__}: {error}"
        return f'<p role="alert">{html.escape(words)}</p>'
