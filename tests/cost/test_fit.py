"""The fit: planted costs come back, what is not convex stands in the residuals, nothing is guessed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.cost import Fit, Hinges, Point, Range
from ddbench.cost.fit import fit_points, quality_of
from ddbench.errors import ConfigError

WIDTHS, BATCHES, CONTEXTS = (1, 8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32), (256, 1024)
WIDE = Range((1, 128), (1, 32), (0, 4096), (1, 4096))
NOISE = 0.01

planted = st.builds(
    lambda base, floor, knee, slope, row, row_read, token_read: Fit(
        base,
        Hinges((1.0, knee), (floor, slope)),
        Hinges((1.0,), (row,)),
        row_read,
        token_read,
        WIDE,
    ),
    base=st.floats(2, 20),
    floor=st.floats(0, 0.002),
    knee=st.sampled_from((64.0, 256.0, 512.0)),
    slope=st.floats(0.001, 0.05),
    row=st.floats(0, 0.3),
    row_read=st.floats(0, 1e-4),
    token_read=st.floats(0, 1e-6),
)


def measured(cost: Fit, seed: int, noise: float = NOISE, step: float = 1.0) -> list[Point]:
    """The grid under ``cost`` with noise; a pass of more than 128 tokens takes ``step`` times as long."""
    draws = np.random.default_rng(seed)
    points = []
    for width in WIDTHS:
        for batch in BATCHES:
            for context in CONTEXTS:
                jump = step if width * batch > 128 else 1.0
                ms = float(cost(width, batch, context)) * jump * float(np.exp(noise * draws.standard_normal()))
                points.append(Point(width, batch, context, ms, ms, ms, 1))
    return points


@settings(max_examples=25, deadline=None)
@given(planted, st.integers(0, 2**31))
def test_a_planted_convex_cost_comes_back(cost: Fit, seed: int) -> None:
    """Between the points too: within three times the noise in the median, and 8 % anywhere."""
    fit = fit_points(measured(cost, seed))
    draws = np.random.default_rng(seed)
    width, batch = draws.integers(1, 129, 200), draws.integers(1, 33, 200)
    context = draws.uniform(256, 1024, 200)
    errors = np.abs(fit(width, batch, context) / cost(width, batch, context) - 1)
    assert np.median(errors) < 3 * NOISE
    assert errors.max() < 0.08


@settings(max_examples=25, deadline=None)
@given(planted, st.integers(0, 2**31), st.sampled_from([1.0, 1.5]))
def test_every_fit_is_convex_and_never_falls_in_the_width(cost: Fit, seed: int, step: float) -> None:
    """Whatever was measured, a step included: that is what a rule that stops at the first loss relies on."""
    fit = fit_points(measured(cost, seed, step=step))
    for batch, context in ((1, 256), (7, 700), (32, 1024)):
        values = fit(np.arange(1, 129), batch, context)
        slopes = np.diff(values)
        assert (slopes >= -1e-9).all()
        assert (np.diff(slopes) >= -1e-7 * values.max()).all()


def test_a_planted_step_stands_in_the_residuals() -> None:
    """A pass of more than 128 tokens takes 1.4 times as long: no convex cost does that."""
    cost = Fit(6.0, Hinges((1.0,), (0.001,)), Hinges(), 0.0, 0.0, WIDE)
    smooth = quality_of(fit_points(measured(cost, 0)), measured(cost, 0)).summary()
    points = measured(cost, 0, step=1.4)
    quality = quality_of(fit_points(points), points)
    told = quality.summary()
    assert smooth["worst_residual"] is not None
    assert smooth["worst_residual"] < 0.04
    assert told["worst_residual"] is not None
    assert told["worst_residual"] > 0.08
    above = [r for p, r in zip(points, quality.residuals, strict=True) if 128 < p.tokens <= 512]
    assert np.mean(above) < -0.05  # the fit says less than was measured behind the step


def test_without_noise_the_formula_is_met_exactly() -> None:
    cost = Fit(5.0, Hinges((1.0, 256.0), (0.002, 0.02)), Hinges((1.0,), (0.1,)), 2e-5, 1e-7, WIDE)
    points = measured(cost, 0, noise=0.0)
    quality = quality_of(fit_points(points), points)
    assert max(map(abs, quality.residuals)) < 1e-3


def test_a_time_that_goes_with_the_context_alone_comes_back() -> None:
    """One sequence or sixteen, a thousand tokens of cache more cost 2 ms: neither of the other two terms says so."""
    cost = Fit(7.0, Hinges((16.0,), (0.02,)), Hinges(), 1e-4, 0.0, WIDE, context_alone=2e-3)
    points = [
        Point(16, batch, context, float(cost(16, batch, context)), 0.1, 999.0, 3)
        for batch, context in ((1, 264), (2, 264), (4, 264), (8, 264), (16, 264), (1, 1032), (16, 1032))
    ]
    fit = fit_points(points)
    assert max(map(abs, quality_of(fit, points).residuals)) < 2e-3
    assert fit.context_alone == pytest.approx(2e-3, rel=0.02)
    assert float(fit(16, 8, 640)) == pytest.approx(float(cost(16, 8, 640)), rel=2e-3)
    assert fit_points(points[:5]).context_alone == 0.0
    old = {name: value for name, value in fit.to_dict().items() if name != "context_alone"}
    assert Fit.from_dict(old).context_alone == 0.0  # of a file that was written before


def test_hinges_against_the_sum_written_out() -> None:
    fit = Fit(1.0, Hinges((2.0, 10.0), (0.5, 0.25)), Hinges((1.0,), (2.0,)), 0.01, 0.001, WIDE)
    # width 4, batch 3: 12 tokens. 1 + 0.5 x 10 + 0.25 x 2 + 2 x 2 + (0.01 x 3 + 0.001 x 12) x 100
    assert float(fit(4, 3, 100)) == pytest.approx(1 + 5 + 0.5 + 4 + 4.2)
    assert fit([1, 4], 3, 100).shape == (2,)


def test_left_out_is_the_error_of_a_fit_to_the_others() -> None:
    """Three points on a line, the middle one left out lies on the line of the others; an end is told flat."""
    points = [Point(1, batch, 10.0, 1.0 + batch, 1.0, 99.0, 3) for batch in (1, 2, 3)]
    quality = quality_of(fit_points(points), points)
    assert quality.left_out[1] == pytest.approx(0.0, abs=1e-3)
    last = quality.left_out[2]
    assert last is not None
    assert last == pytest.approx(0.0, abs=1e-3)  # the line goes on
    alone = quality_of(fit_points(points[:1]), points[:1])
    assert alone.left_out == (None,)
    assert alone.summary()["worst_left_out"] is None


def test_beyond_what_was_measured_it_goes_on_with_the_mean_slope_of_the_upper_half() -> None:
    """A last hinge that stands on two points close together is not followed, in tokens or rows; one rule for both ways
    to ask. Width 4 and batch 100: 80 tokens at most were measured, 20 rows."""
    seen = Range((1, 4), (1, 20), (0, 100), (1, 80))
    fit = Fit(1.0, Hinges((0.0, 79.0), (0.1, 50.0)), Hinges((0.0, 19.0), (0.2, 30.0)), 0.01, 0.0, seen)
    tokens, rows = (8.0 + 50.0) + 320 * (4.0 + 50.0) / 40, (4.0 + 30.0) + 80 * (2.0 + 30.0) / 10
    assert float(fit(4, 100, 0, extrapolate=True)) == pytest.approx(1 + tokens + rows)
    assert float(fit(4, 100, 1000, extrapolate=True)) == pytest.approx(1 + tokens + rows + 0.01 * 100 * 1000)
    assert fit.pass_ms(400) == pytest.approx(1 + tokens)
    assert float(fit(4, 20, 0)) == pytest.approx(1 + 58 + 34)  # at the edge, and there it is continuous
    assert float(fit(4, 20.001, 0, extrapolate=True)) == pytest.approx(1 + 58 + 34, rel=1e-3)
    high = replace(fit, measured=replace(seen, tokens=(70, 80)))  # the half is of what was measured, not of nothing
    assert high.pass_ms(90) == pytest.approx(1 + 58 + 10 * (1.0 + 50.0) / 10)
    alone = replace(fit, measured=replace(seen, tokens=(80, 80)))
    assert alone.pass_ms(90) == pytest.approx(1 + 58)


def test_an_axis_that_was_not_varied_has_no_term_and_no_range() -> None:
    points = [Point(16, batch, 277.0, 5.0 + batch, 5.0, 99.0, 3) for batch in (1, 2, 4)]
    fit = fit_points(points)
    assert (fit.row_context, fit.token_context, fit.rows) == (0.0, 0.0, Hinges())
    with pytest.raises(ConfigError, match=r"context=300.0: 277 to 277, the range"):
        fit(16, 2, 300)
    with pytest.raises(ConfigError, match=r"verify_width=8.0: 16 to 16"):
        fit(8, 2, 277)
    assert float(fit(8, 2, 300, extrapolate=True)) > 0


def test_tokens_bound_a_range_that_width_and_batch_do_not() -> None:
    """The widest pass at the largest batch was left out: the corner was never seen."""
    points = [Point(w, b, 10.0, 5.0, 5.0, 5.0, 1) for w, b in ((1, 1), (64, 1), (1, 32), (64, 8))]
    fit = fit_points(points)
    assert float(fit(64, 8, 10)) == pytest.approx(5.0)
    with pytest.raises(ConfigError, match=r"verify_width x batch=2048.0: 1 to 512"):
        fit(64, 32, 10)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="at least one measured point"):
        fit_points([])
    for bad in ({"ms": 0.0, "low": 0.0}, {"low": 6.0}, {"high": 4.0}, {"n": 0}, {"context": float("nan")}):
        good = {"verify_width": 1, "batch": 1, "context": 1.0, "ms": 5.0, "low": 5.0, "high": 5.0, "n": 1}
        with pytest.raises(ConfigError):
            Point(**{**good, **bad})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="draft, build, verify, commit"):
        Point(1, 1, 1.0, 5.0, 5.0, 5.0, 1, {"dream": 1.0})
