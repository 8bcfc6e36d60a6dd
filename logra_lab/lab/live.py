"""A picture that is redrawn while a run goes on, and stays as the last one in the saved notebook.

    live = LivePicture(draw)          # draw(history) returns a Picture; pure
    trainer.run(on_step=live.add)     # redraws on every step that was evaluated

It is one HTML <figure> under a display id, so that nothing flickers and a page without a kernel shows the last
state with its alt text. Leaves out: threads. The picture is drawn between steps and costs its drawing time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.display import HTML, display

from logra_lab.lab.plots import Picture, figure_html

Metrics = dict[str, Any]


class LivePicture:
    """Collects metrics and redraws a picture of all of them whenever a new accuracy arrives.

    Args:
        draw: from the list of metrics so far to a `Picture`.
        key: the metric whose arrival is worth a new picture.
    """

    def __init__(self, draw: Callable[[list[Metrics]], Picture], key: str = "accuracy") -> None:
        self.draw, self.key = draw, key
        self.history: list[Metrics] = []
        self._handle: Any = None

    def add(self, metrics: Metrics) -> None:
        """Take one step's metrics, and redraw if they hold `key`."""
        self.history.append(metrics)
        if metrics.get(self.key) is not None:
            self.show()

    def show(self) -> None:
        """Draw the picture, in place of the one before."""
        picture = self.draw(self.history)
        content = HTML(figure_html(picture.figure, picture.alt, picture.caption))
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)
