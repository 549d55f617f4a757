"""The crossover: exact for power laws, silent where nothing crosses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.crossover import Crossover, crossovers


@given(st.floats(0.2, 5.0), st.floats(0.05, 2.0), st.booleans())
def test_a_power_of_the_batch_size_is_met_exactly(at: float, slope: float, falls: bool) -> None:
    """ratio = (size / at) ** slope passes 1 at ``at``, whichever sizes were measured."""
    sizes = [1, 2, 8, 32]
    power = -slope if falls else slope
    ratios = [(size / at) ** power for size in sizes]
    found = crossovers(sizes, ratios)
    if at < 1 or at >= 32:
        assert found == []
    elif at not in sizes:
        (crossover,) = found
        assert crossover.at == pytest.approx(at)
        assert crossover.rises is not falls


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6))
def test_each_lies_between_two_sizes_on_different_sides(ratios: list[float]) -> None:
    sizes = [2**power for power in range(len(ratios))]
    changes = [
        (low, high)
        for low, high, before, after in zip(sizes, sizes[1:], ratios, ratios[1:], strict=False)
        if (before >= 1) != (after >= 1)
    ]
    found = crossovers(sizes, ratios)
    assert len(found) == len(changes)
    for crossover, (low, high) in zip(found, changes, strict=True):
        assert low * (1 - 1e-9) <= crossover.at <= high * (1 + 1e-9)


def test_one_size_has_none() -> None:
    assert crossovers([4], [0.5]) == []


def test_a_ratio_of_one_counts_as_above() -> None:
    assert crossovers([1, 4, 16], [2.0, 1.0, 1.0]) == []
    assert crossovers([1, 4], [1.0, 0.5]) == [Crossover(1.0, False)]
