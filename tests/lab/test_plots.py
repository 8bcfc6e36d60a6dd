"""House style: figures with words, bands over seeds."""

from __future__ import annotations

import base64
import re

import pytest
import torch

from logra_lab.lab import plots
from logra_lab.rl import summary


def drawing() -> plots.Figure:
    """A small figure."""
    figure, axes = plots.new_figure(3, 2)
    axes.plot([0, 1], [0, 1], label="a")
    return figure


def test_a_figure_becomes_html_with_alt_text_caption_and_fixed_size() -> None:
    text = plots.figure_html(drawing(), 'A line & a "quote"', "It <climbs>.")
    assert 'alt="A line &amp; a &quot;quote&quot;"' in text and 'width="300" height="200"' in text
    assert "<figcaption>It &lt;climbs&gt;.</figcaption>" in text
    data = base64.b64decode(re.search(r"base64,([^\"]+)", text)[1])
    assert data.startswith(b"\x89PNG")


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert plots.png(drawing()) == plots.png(drawing())


@pytest.mark.parametrize("alt, caption, missing", [("", "c", "alt"), ("a", " ", "caption")])
def test_a_figure_without_words_is_refused(alt: str, caption: str, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        plots.figure_html(drawing(), alt, caption)


def test_neighbouring_series_differ_in_colour_and_in_line_style() -> None:
    styles = [plots.style(number) for number in range(7)]
    assert len({s["color"] for s in styles}) == 7 and len({str(s["linestyle"]) for s in styles}) == 7


def test_a_range_band_spans_the_runs() -> None:
    middle, low, high = plots.band([[1.0, 5], [3.0, 1]])
    assert middle.tolist() == [2, 3] and low.tolist() == [1, 1] and high.tolist() == [3, 5]


def test_an_interval_covers_the_true_mean_about_95_times_in_100() -> None:
    draws = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 7
    hits = [low <= 7 <= high for _, low, high in map(plots.interval, draws)]
    assert 0.94 < sum(hits) / len(hits) < 0.96


def test_the_quantiles_of_student_match_the_integral_of_its_density() -> None:
    for freedom in (*range(1, len(summary.T95) + 1), 20, 60):
        x = torch.linspace(0, plots.t_quantile(freedom), 200_001, dtype=torch.float64)
        f = torch.tensor(float(freedom), dtype=torch.float64)
        log_scale = torch.lgamma((f + 1) / 2) - torch.lgamma(f / 2) - 0.5 * torch.log(f * torch.pi)
        density = torch.exp(log_scale - (f + 1) / 2 * torch.log1p(x**2 / f))
        assert torch.trapezoid(density, x).item() == pytest.approx(0.475, abs=1e-4)


def test_one_run_has_no_interval() -> None:
    middle, low, high = plots.interval([2.0])
    assert middle == 2 and low != low and high != high


@pytest.mark.parametrize("runs, kind, words", [([], "range", "0 runs"), ([[1.0]], "spread", "'spread'")])
def test_a_band_of_nothing_or_of_an_unknown_kind_is_refused(runs, kind: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plots.band(runs, kind)
