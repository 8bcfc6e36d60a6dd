"""How answers are compared, and in what words they are said to differ."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from logra_lab.lab.compare import difference

EQUAL = [
    (1.0, 1),
    (2, torch.tensor(2.0)),
    (np.float32(0.5), 0.5),
    (np.ones(3, dtype=np.float32), torch.ones(3)),
    ([1, 2.0], (1, 2)),
    ({"a": torch.ones(2)}, {"a": torch.ones(2)}),
    (torch.tensor([float("nan"), 1]), torch.tensor([float("nan"), 1])),
    (float("inf"), float("inf")),
    (True, True),
    ("bf16", "bf16"),
    (torch.ones(2) + 1e-6, torch.ones(2)),
]
DIFFERENT = [
    (None, 1.0, "returned None; a number was expected"),
    (1.01, 1.0, "returned 1.01; expected is 1"),
    (True, 1, "True or False; a number was expected"),
    (1j, 1.0, "returned a complex; a number was expected"),
    (torch.ones(2), 1.0, r"shape \[2\]; a number was expected"),
    (torch.ones(1), 1.0, "a single number was expected"),
    ([1.0], torch.ones(1), "a list; a tensor of shape"),
    (torch.ones(2, 3), torch.ones(3, 2), r"\[2, 3\]; \[3, 2\]"),
    (torch.ones(2, dtype=torch.int64), torch.ones(2), "int64; float32"),
    (torch.tensor([1.0, 9]), torch.tensor([1.0, 3]), r"1 of its 2 values are off; the worst at \[1\]: 9, expected 3"),
    (torch.tensor([1.0, float("nan")]), torch.ones(2), "1 of its 2 values are NaN or infinite"),
    (torch.ones(2), torch.tensor([1.0, float("inf")]), "off"),
    ((1, 2, 3), (1, 2), "3 values; 2 were expected"),
    ((1, 5), (1, 2), "value 1: it returned 5"),
    (3, (1, 2), "2 values were expected"),
    ({"a": 1}, {"b": 1}, "keys"),
    ({"a": 1}, {"a": 2}, "under 'a'"),
    (1, "one", "expected is 'one'"),
]  # fmt: skip


@pytest.mark.parametrize("yours, expected", EQUAL)
def test_equal_values_have_no_difference(yours, expected) -> None:
    assert difference(yours, expected) is None


@pytest.mark.parametrize("yours, expected, words", DIFFERENT)
def test_different_values_are_told_apart_in_words(yours, expected, words: str) -> None:
    found = difference(yours, expected)
    assert found is not None
    assert re.search(words, found), found


def test_precision_may_be_left_out_of_the_comparison() -> None:
    assert difference(torch.ones(2).double(), torch.ones(2), dtype=False) is None


def test_a_tensor_that_requires_a_gradient_can_be_compared() -> None:
    assert difference(torch.ones(2, requires_grad=True), torch.ones(2)) is None
