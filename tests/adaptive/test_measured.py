"""Prices of a policy: the measured ones where there are any, the fit's shape between them, none outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddbench.adaptive import MeasuredCosts
from ddbench.cost import CostModel, Point
from ddbench.cost.file import save_cost

STEP = {8: 1.0, 16: 0.8, 32: 1.0}  # passes of width 16 are a fifth cheaper than any convex cost has them


def ms(width: int, batch: int, context: float) -> float:
    return STEP[width] * (5.0 + 0.02 * width * batch) + 1e-3 * batch * context


@pytest.fixture
def cost(tmp_path: Path) -> CostModel:
    points = [Point(w, b, 100.0, ms(w, b, 100.0), 0.1, 99.0, 3) for w in STEP for b in (1, 2, 8)]
    points += [Point(w, b, 500.0, ms(w, b, 500.0), 0.1, 99.0, 3) for w in (8, 32) for b in (1, 8)]
    plain = [Point(1, b, c, 4.0 + 1e-3 * b * c, 0.1, 99.0, 3) for b in (1, 8) for c in (100.0, 500.0)]
    return save_cost(tmp_path / "cost.json", {}, {"ddtree": points, "autoregressive": plain}, {})


def test_a_kernel_that_steps_is_priced_as_it_was_measured(cost: CostModel) -> None:
    costs, widths = MeasuredCosts(cost), np.array([8, 16, 32])
    fitted = cost.round_ms(16, 2, 100.0)
    assert fitted > 1.05 * ms(16, 2, 100.0)  # no convex curve goes through it
    for batch in (1, 2, 8):
        measured = [ms(width, batch, 100.0) for width in STEP]
        assert costs.round_ms(widths, batch, 100.0).tolist() == pytest.approx(measured, rel=1e-6)
    assert float(costs.autoregressive_ms(1, 100.0)) == pytest.approx(4.1, rel=1e-6)


def test_between_points_the_fit_keeps_its_shape(cost: CostModel) -> None:
    """The factor goes in a line over batch sizes, and over the logarithm of the width."""
    costs = MeasuredCosts(cost)

    def off(width: int, batch: int) -> float:
        return float(costs.round_ms(width, batch, 100.0) / cost.round_ms(width, batch, 100.0))

    assert off(16, 5) == pytest.approx((off(16, 2) + off(16, 8)) / 2, rel=1e-9)
    share = np.log(12 / 8) / np.log(2)
    assert off(12, 2) == pytest.approx(off(8, 2) + share * (off(16, 2) - off(8, 2)), rel=1e-9)
    many = costs.round_ms(np.array([[8], [16]]), np.array([1, 4, 8]), 300.0)
    assert many.shape == (2, 3)
    assert float(many[1, 1]) == float(costs.round_ms(16, 4, 300.0))


def test_nothing_is_priced_outside(cost: CostModel) -> None:
    costs = MeasuredCosts(cost)
    found = costs.round_ms(np.array([4, 8, 32, 64]), 2, 100.0)
    assert np.isfinite(found).tolist() == [False, True, True, False]
    assert np.isinf(costs.round_ms(8, 16, 100.0))
    assert np.isfinite(costs.round_ms(8, 8, 9999.0))  # the context is carried on
