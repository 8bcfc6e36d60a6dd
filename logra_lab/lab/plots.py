"""House style of the figures: white ground, colours that colour-blind eyes tell apart, line styles beside them.

Figures are made without pyplot, so nothing is shown twice or stays in memory. In a notebook a figure becomes an
HTML <figure>: a PNG with alt text and a caption, which reads the same in JupyterLab, on a code host and in print.
Leaves out vector graphics: a PNG at 100 dpi is 10 to 40 kB and looks a little soft when enlarged.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import torch
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from logra_lab.rl.summary import t_quantile

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

DPI = 100
INK = "#222222"
# Okabe and Ito's colours in an order whose neighbours also differ in lightness; yellow is left out (pale on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
STYLE: dict[RcKeyType, object] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=LINE_STYLES),
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.hashsalt": "logra-lab",
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
}


@dataclass(frozen=True)
class Picture:
    """A figure with what it shows in words: `alt` for who can't see it, `caption` for everybody below it."""

    figure: Figure
    alt: str
    caption: str

    def __post_init__(self) -> None:
        for name in ("alt", "caption"):
            if not getattr(self, name).strip():
                raise ValueError(f"The picture's {name} is empty. Say in a sentence what the figure shows.")

    def _repr_html_(self) -> str:
        return figure_html(self.figure, self.alt, self.caption)


class Band(NamedTuple):
    """Middle, low and high of several seeds, each a float64 tensor of the runs' shape without the seeds."""

    middle: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def new_figure(
    width: float = 7.0, height: float = 3.6, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure of `width` × `height` inches in house style and its axes (an array if there are several).

    `options` go to `Figure.subplots` (sharex, width_ratios, …).
    """
    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def style(number: int) -> dict[str, Any]:
    """Colour and line style of series `number`, as keyword arguments of `plot`; the same in every figure."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINE_STYLES[number % len(LINE_STYLES)],
    }


def png(figure: Figure) -> bytes:
    """The figure as PNG with at most 256 colours, a third of the bytes; the same bytes for the same figure."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    image = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def figure_html(figure: Figure, alt: str, caption: str) -> str:
    """An HTML <figure> of fixed size with alt text and caption; raises ValueError if one is missing."""
    Picture(figure, alt, caption)
    width, height = (round(float(inches) * DPI) for inches in figure.get_size_inches())
    data = base64.b64encode(png(figure)).decode("ascii")
    return (
        f'<figure style="margin: 0">\n<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" '
        f'width="{width}" height="{height}" style="max-width: 100%; height: auto">\n'
        f"<figcaption>{html.escape(caption)}</figcaption>\n</figure>"
    )


def show(figure: Figure, alt: str, caption: str) -> None:
    """Show a figure in the notebook with its alt text and caption."""
    from IPython.display import HTML, display

    display(HTML(figure_html(figure, alt, caption)))


def interval(values: Sequence[float] | torch.Tensor) -> tuple[float, float, float]:
    """Mean of `values` [n] with its 95 % Student interval: (mean, low, high); for a paired one give differences.

    One value has no spread: then low and high are NaN.
    """
    middle, low, high = band(torch.as_tensor(values, dtype=torch.float64).unsqueeze(1), kind="interval")
    return middle.item(), low.item(), high.item()


def band(runs: Sequence[Any] | torch.Tensor, kind: str = "range") -> Band:
    """The band of `runs` [seeds, steps…]: their mean with min and max ("range") or the 95 % interval of the mean.

    Raises ValueError without a run or for another `kind`.
    """
    table = torch.stack([torch.as_tensor(run, dtype=torch.float64) for run in runs]) if len(runs) else None
    if table is None:
        raise ValueError("There are 0 runs to draw a band of. Give one run per seed.")
    if kind == "range":
        return Band(table.mean(0), table.amin(0), table.amax(0))
    if kind != "interval":
        raise ValueError(f"The band {kind!r} is unknown. Choose 'range' or 'interval'.")
    seeds = table.shape[0]
    spread = table.std(0) if seeds > 1 else torch.full_like(table[0], float("nan"))
    half = spread * t_quantile(seeds - 1) / seeds**0.5
    return Band(table.mean(0), table.mean(0) - half, table.mean(0) + half)


def draw_band(
    axes: Axes, x: Sequence[float], runs: Any, label: str, number: int, kind: str = "range"
) -> None:
    """Draw the mean of `runs` [seeds, steps] over `x` [steps] as series `number`, its band shaded."""
    middle, low, high = band(runs, kind)
    axes.plot(x, middle.numpy(), label=label, **style(number))
    axes.fill_between(x, low.numpy(), high.numpy(), color=style(number)["color"], alpha=0.18, linewidth=0)
