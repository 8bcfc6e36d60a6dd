"""A full-scale run as it goes: a dashboard of its metrics, redrawn in place while the cell runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any

from logra_lab.lab.plots import INK, Picture, new_figure, style
from logra_lab.memory import GIB
from logra_lab.rl.metrics import clock


def dashboard(
    history: Sequence[dict[str, Any]],
    steps: int,
    memory: dict[str, int],
    elapsed: float = 0.0,
    since: int = 0,
) -> Picture:
    """A run as it stands: reward and accuracy, KL against its budget, α, memory by class; speed and time left below.

    `history` are the run's metrics (a line with step 0 is the evaluation before training), `memory` bytes by class,
    `elapsed` the seconds since step `since`, after which this sitting began.
    """
    done = [line for line in history if line["step"] > 0]
    figure, panels = new_figure(9.6, 5.6, rows=2, columns=2)
    _draw_accuracy(panels[0, 0], history, done)
    _draw_kl(panels[0, 1], done)
    panels[1, 0].plot([x["step"] for x in done], [x["scale"] for x in done], **style(2))
    panels[1, 0].axhline(1.0, color=INK, linewidth=0.8)
    panels[1, 0].set(title="α, the step's scale", xlabel="step", ylim=(0, None))
    names = list(memory)
    unit, word = (GIB, "GiB") if sum(memory.values()) > GIB else (2**20, "MiB")
    panels[1, 1].barh(names, [memory[name] / unit for name in names], color=style(0)["color"])
    panels[1, 1].invert_yaxis()
    panels[1, 1].set(title="memory held, by class", xlabel=word)
    for axes in panels.flat[:3]:
        axes.set_xlim(0, max(steps, 1))
        axes.xaxis.get_major_locator().set_params(integer=True)
    caption = summary(history, steps, elapsed, since)
    return Picture(
        figure,
        f"Four panels: accuracy, KL per step with its budget, alpha, memory by class. {caption}",
        caption,
    )


def summary(history: Sequence[dict[str, Any]], steps: int, elapsed: float = 0.0, since: int = 0) -> str:
    """The last step in a sentence; with `elapsed` seconds after step `since` also speed and the time left."""
    done = [line for line in history if line["step"] > 0]
    if not done:
        return f"Step 0 of {steps}: nothing has been trained yet."
    last, judged = done[-1], [line for line in done if line["predicted_kl"] is not None]
    words = [f"Step {last['step']} of {steps}: {last['right']:.0%} of the step's answers are right"]
    tested = [line["accuracy"] for line in history if line.get("accuracy") is not None]
    words += [f"{tested[-1]:.0%} of held-out ones ({tested[0]:.0%} before)"] if tested else []
    if judged:
        words.append(f"predicted KL {judged[-1]['predicted_kl']:.1e} of {judged[-1]['budget']:.1e} allowed")
    if elapsed and last["step"] > since:
        left = elapsed / (last["step"] - since) * (steps - last["step"])
        words.append(f"{last['total_tokens_per_second']:.0f} tokens/s, {clock(left)} left")
    return ", ".join(words) + "."


class LivePlot:
    """The dashboard under one display id, redrawn at most every `seconds`; pass it to `trainer.run`.

    `show_speed=False` leaves out what differs from one machine to the next. `stop_at` sends this process an interrupt
    after that step, as the stop button would.
    """

    def __init__(
        self, trainer: Any, seconds: float = 2.0, show_speed: bool = True, stop_at: int | None = None
    ) -> None:
        from IPython.display import HTML, display

        self.trainer, self.seconds, self.show_speed, self.stop_at = trainer, seconds, show_speed, stop_at
        self._html, self.started, self._drawn, self.since = HTML, time.monotonic(), 0.0, trainer.step
        self._handle = display(HTML(self._picture()), display_id=True)

    def __call__(self, metrics: dict[str, Any]) -> None:
        """Take note of a step."""
        last = metrics["step"] in (self.trainer.config.steps, self.stop_at)
        if last or time.monotonic() - self._drawn >= self.seconds:
            self._handle.update(self._html(self._picture()))
            self._drawn = time.monotonic()
        if metrics["step"] == self.stop_at:
            signal.raise_signal(signal.SIGINT)

    def _picture(self) -> str:
        elapsed = time.monotonic() - self.started if self.show_speed else 0.0
        trainer = self.trainer
        memory = trainer.arm.memory()
        picture = dashboard(trainer.log.history, trainer.config.steps, memory, elapsed, self.since)
        return picture._repr_html_()


def _draw_accuracy(axes: Any, history: Sequence[dict[str, Any]], done: Sequence[dict[str, Any]]) -> None:
    axes.plot([x["step"] for x in done], [x["right"] for x in done], label="right in the step", **style(0))
    tested = [x for x in history if x.get("accuracy") is not None]
    axes.plot(
        [x["step"] for x in tested],
        [x["accuracy"] for x in tested],
        "o-",
        color=style(1)["color"],
        label="held out",
    )
    axes.set(title="share of right answers", xlabel="step", ylim=(0, 1))
    axes.legend(loc="lower right")


def _draw_kl(axes: Any, done: Sequence[dict[str, Any]]) -> None:
    for number, (name, label) in enumerate(
        (("budget", "budget"), ("predicted_kl", "predicted"), ("measured_kl", "measured"))
    ):
        found = [(x["step"], x[name]) for x in done if x.get(name)]
        if found:
            axes.plot(*zip(*found, strict=True), label=label, **style(number))
    if done:
        axes.set_yscale("log")
        axes.legend(loc="upper right")
    axes.set(title="KL per token of each step", xlabel="step")
