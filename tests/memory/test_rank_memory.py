"""The widget's callback: pure, with bars, a sentence that fits its plan, alt text and a text twin."""

import pytest

from logra_lab.lab.plots import png
from logra_lab.lab.rank_memory import ALL, START, controls, plans, rank_memory, rank_memory_text
from logra_lab.memory import METHODS, NAMES


def test_the_same_choices_give_the_same_picture_and_sentence():
    first, second = rank_memory(**START), rank_memory(**START)
    assert png(first.figure) == png(second.figure)
    assert (first.alt, first.caption) == (second.alt, second.caption)


def test_every_method_has_a_bar_and_every_card_a_line():
    picture = rank_memory(**START)
    axes = picture.figure.axes[0]
    assert len(axes.get_yticklabels()) == len(METHODS)
    assert all(name in picture.alt for name in NAMES.values()) and "141 GB" in picture.alt


@pytest.mark.parametrize("method", METHODS)
def test_the_sentence_of_one_method_says_what_its_plan_says(method):
    choices = START | {"method": method}
    (made,) = plans(**{key: value for key, value in choices.items() if key != "card"}).values()
    caption = rank_memory(**choices).caption
    assert ("fits with" in caption) == made.fits("48 GB")
    assert ("To fit 48 GB" in caption) == (not made.fits("48 GB"))
    assert "because" in caption and "GiB" in caption


def test_a_higher_rank_costs_more_and_more_gpus_cost_less_each():
    def total(**changes):
        choices = {k: v for k, v in (START | {"method": "logra"} | changes).items() if k != "card"}
        return next(iter(plans(**choices).values())).peak.total

    assert total(rank=4) < total(rank=256)
    assert total(gpus=4) < total(gpus=1)


def test_the_text_twin_holds_the_numbers_and_the_sentence():
    text = rank_memory_text(**START)
    assert rank_memory(**START).caption in text and "GiB per GPU" in text and "weights" in text


def test_a_precision_that_a_method_lacks_falls_back_to_its_usual_one():
    choices = {key: value for key, value in START.items() if key != "card"} | {"precision": "split"}
    made = plans(**choices)
    kept = {one.settings.method: one.settings.precision for one in made.values()}
    assert kept["logra"] == "split" and kept["adamw"] == "master"


def test_the_controls_offer_what_the_callback_takes():
    offered = controls()
    assert set(offered) == set(START)
    assert ALL in offered["method"].values()
