"""Lesson 09: kernels from a notebook run and are judged kindly, bytes are counted, floors and pictures are right."""

from __future__ import annotations

import json

import pytest
import torch

from logra_lab.lab import checks, kernel_bytes, kernel_figures, triton_play
from logra_lab.lab.kernel_bytes import SPEEDS, project_bytes, project_floors
from logra_lab.lab.triton_play import tl
from logra_lab.method.projection import projection_key, signs
from tests.kernels.interpreter import Interpreter

needs_triton = pytest.mark.skipif(
    not triton_play.TRITON, reason="Triton is not installed here: it runs on Linux only."
)
SHAPES = [[65, 31, 16], [3, 130, 4]]


@pytest.fixture(scope="module")
def interpreter():
    if not triton_play.TRITON:
        pytest.skip("Triton is not installed here: it runs on Linux only.")
    child = Interpreter()
    yield child
    child.close()


def stub(x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr):
    """Stores nothing."""
    tl.arange(0, BLOCK_T)


def runaway(x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr):
    """Stores with the wrong stride and no mask."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    tl.store(p + t[:, None] * k + i[None, :], tl.full((BLOCK_T, BLOCK_R), 1.0, tl.float32))


@needs_triton
def test_a_kernel_that_stores_nothing_counts_as_not_written():
    assert checks.judge("tiled_project", triton_play.projection_function(stub)).unwritten


@needs_triton
def test_a_kernel_that_stores_out_of_bounds_is_told_so_and_harms_nothing():
    report = str(checks.judge("tiled_project", triton_play.projection_function(runaway)))
    assert "beyond the end of P" in report and "not yet" in report


@needs_triton
def test_the_given_hash_counts_as_written_and_a_wrong_one_does_not():
    assert triton_play.written(triton_play.reference_mix)
    assert not triton_play.written(runaway) and not triton_play.written(lambda x: x ^ (x >> 16))


def test_the_packages_kernels_equal_torch_on_odd_shapes(interpreter):
    answers = interpreter.call("tests.lab.test_lesson09", "package_agreement", SHAPES)[0]
    assert answers == [[True] * 6] * len(SHAPES)


def package_agreement(shapes: list) -> list:
    """Runs in the child, where the interpreter is on."""
    from logra_lab.kernels import plain

    return [list(row) for row in kernel_bytes.agreement([tuple(s) for s in shapes], plain.project)]


def test_a_kernel_touches_exactly_the_bytes_of_its_floor_and_torch_many_more(interpreter):
    for floor, torch_bytes, kernel in interpreter.call("tests.lab.test_lesson09", "counted_bytes")[0]:
        assert kernel == floor and torch_bytes > 2 * floor


def counted_bytes() -> list:
    """Runs in the child."""
    return [[row.floor, row.torch, row.kernel] for row in kernel_bytes.all_traffic()]


def test_a_grid_rounded_down_leaves_the_rest_of_the_matrix_as_it_was(interpreter):
    rounded_down, whole = interpreter.call("tests.lab.test_lesson09", "merged_shares")[0]
    assert rounded_down == pytest.approx(1 - 192 * 256 / (200 * 300), rel=1e-5) and whole == 0


def merged_shares() -> list:
    """Shares of weights that a merge left at 0, the grid rounded down and up; at rank 1 none can land there."""
    grids = (lambda d, k, a, b: (d // a, k // b), lambda d, k, a, b: (-(-d // a), -(-k // b)))
    given = (torch.zeros(200, 300), torch.ones(200, 1), projection_key(1, 0, "x"))
    return [float((triton_play.merge_on_grid(*given, grid) == 0).float().mean()) for grid in grids]


def test_without_triton_the_same_tiles_are_merged_by_torch():
    weight, factor, key = torch.zeros(70, 130), torch.ones(70, 4), (1, 2)
    merged = triton_play.merge_tiles(weight.clone(), factor, key, 1, 1)
    expected = -factor @ signs(key, 4, 130) / 2
    assert torch.allclose(merged[:64, :128], expected[:64, :128]) and not merged[64:].any()


def test_torchs_bytes_are_those_of_inputs_and_results_and_views_are_free():
    x = torch.ones(10, 20)
    with kernel_bytes.TorchBytes() as mode:
        (x.T @ x).view(-1)
    assert mode.total == 2 * 800 + 1600


def test_the_floors_cross_where_the_arithmetic_intensity_meets_the_card():
    speed = SPEEDS["H100 SXM"]
    crossing = next(r for r in range(1, 2000) if kernel_bytes.operations_decide(10**6, 10**5, r, speed))
    assert crossing == pytest.approx(speed.peak / speed.bandwidth, rel=0.01)  # 2 bytes, 2 operations
    assert project_bytes(8, 4, 2) == 96 and project_floors(8, 4, 2, speed)[0] == 96 / speed.bandwidth


def test_the_widgets_caption_names_the_higher_floor():
    low = kernel_figures.floors(8, 4096, "H100 SXM").caption
    high = kernel_figures.floors(1024, 4096, "H100 SXM").caption
    assert "memory floor is the higher" in low and "arithmetic floor is the higher" in high
    assert kernel_figures.floors(8, 4096, "H200").caption != low


def test_recorded_timings_are_read_where_they_exist_and_drawn_on_their_card_only(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_bytes, "RECORDED", tmp_path / "none.json")
    assert kernel_bytes.recorded_timings() is None
    row = {"card": "H200", "tokens": 16384, "columns": 4096, "rank": 64, "seconds": 4e-5}
    (tmp_path / "some.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    monkeypatch.setattr(kernel_bytes, "RECORDED", tmp_path / "some.json")
    recorded = kernel_bytes.recorded_timings()
    lines = [
        len(kernel_figures.floors(64, 4096, c, recorded).figure.axes[0].lines) for c in ("H200", "H100 SXM")
    ]
    assert lines[0] == lines[1] + 1


def test_where_no_kernel_ran_the_picture_says_so():
    row = kernel_bytes.Traffic("merge fp32", 10, 80, 200, None, None)
    assert "not run here" in kernel_figures.traffic([row]).caption


def test_where_some_kernels_ran_their_bars_are_drawn_and_the_picture_says_that_some_did_not():
    rows = [
        kernel_bytes.Traffic("merge fp32", 10, 80, 200, None, None),
        kernel_bytes.Traffic("merge split", 10, 80, 200, 100, 120),
    ]
    picture = kernel_figures.traffic(rows)
    bars = picture.figure.axes[0].patches
    assert [round(bar.get_width()) for bar in bars] == [20, 20, 10]
    assert bars[2].get_y() > bars[1].get_y() > bars[0].get_y() and "not run here" in picture.caption
