"""Lesson 08 in a real browser: its controls change the packet's size and the sentence that compares it."""

from __future__ import annotations


def test_the_controls_of_lesson_08_change_packet_patch_and_time(lesson) -> None:
    with lesson("08_the_sketch_travels") as page:
        page.run_all(300)
        assert page.caption("rank r").startswith("Qwen2.5-Math-7B at rank 64: packet 178 MB")
        assert page.press("rank r", "ArrowRight").startswith("Qwen2.5-Math-7B at rank 128: packet 356 MB")
        assert "over 1 gbit/s" in page.choose("link", "1 Gbit/s").lower()
        assert page.choose("model", "tiny-math").startswith("tiny-math at rank 128")
        page.screenshot("lesson-08-widget", "rank r")
        assert page.errors == [] and page.cell_errors() == []
