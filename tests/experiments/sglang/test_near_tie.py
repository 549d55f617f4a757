"""`benchmarks/near_tie.py`: both ways from a near-tie of the tiny target."""

from __future__ import annotations

import pytest

from benchmarks.near_tie import both_ways
from ddbench.errors import ConfigError


def test_the_tie_that_decides_the_odd_rounds_of_the_recorded_evidence() -> None:
    """docs/replay.md: what was recorded behind the end of that answer goes one way, what ran live the other."""
    found = both_ways(24, 129, 3)
    assert 0.0 < found["gap_logits"] < 0.25
    assert found["best"] == [3171, 16, 1017]
    assert found["second"] == [427, 292, 295]


@pytest.mark.parametrize(
    ("prompt", "place", "words"), [(144, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, 0), (24, 100_000, 1)]
)
def test_places_that_are_not_there_are_refused(prompt: int, place: int, words: int) -> None:
    with pytest.raises(ConfigError):
        both_ways(prompt, place, words)
