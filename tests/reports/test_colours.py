"""Colours that stay apart for colour-blind readers, and second signs for those who print in grey."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from colour_vision import DEUTERANOPIA, NORMAL, PROTANOPIA, distance, lab

from reports.figures.stages import PARTS
from reports.figures.style import COLOURS, LINES, MARKERS, OTHER_COLOUR, OTHER_LINE, OTHER_MARKER

LEAST = 15.0  # Delta E, about six times what is just seen
USED = {
    "strategies": [*COLOURS.values(), OTHER_COLOUR],
    "stages": [colour for colour, _ in PARTS.values()],
}


@pytest.mark.parametrize("vision", [NORMAL, DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
@pytest.mark.parametrize("colours", USED.values(), ids=USED.keys())
def test_colours_of_one_figure_stay_apart(colours: list[str], vision: np.ndarray) -> None:
    assert len(colours) == len(set(colours))
    for first, second in combinations(colours, 2):
        assert distance(first, second, vision) > LEAST, (first, second)


def test_the_check_sees_a_pair_that_fails() -> None:
    """Red and green of equal lightness: far apart to most, nearly one colour without green cones."""
    assert distance("#B35806", "#5F7F00") > 40
    assert distance("#B35806", "#5F7F00", DEUTERANOPIA) < LEAST


def test_lab_of_known_colours() -> None:
    assert lab("#FFFFFF") == pytest.approx([100, 0, 0], abs=0.1)
    assert lab("#FF0000") == pytest.approx([53.24, 80.09, 67.20], abs=0.1)


def test_strategies_differ_in_marker_and_line_too() -> None:
    assert COLOURS.keys() == MARKERS.keys() == LINES.keys()
    markers, lines = [*MARKERS.values(), OTHER_MARKER], [*LINES.values(), OTHER_LINE]
    assert len(set(markers)) == len(markers)
    assert len(set(lines)) == len(lines)


def test_stages_differ_in_lightness_or_hatch() -> None:
    for (first, hatch), (second, other) in combinations(PARTS.values(), 2):
        assert abs(lab(first)[0] - lab(second)[0]) > 5 or hatch != other, (first, second)
