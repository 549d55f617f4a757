"""Intervals over several blocks: what is between prompts, what between blocks, and both worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reports.quantities import Difference, Product, Quantity
from reports.statistics import BOOTSTRAP_BLOCKS, Estimate, intervals, sign_test, t_half_width

SPEEDUP = Product((1, -1, -1, 1))
RATE = Product((1, -1))


def cube(prompt: list[float], block: list[float], tokens: float = 50.0) -> np.ndarray:
    """[blocks, prompts, (tokens, seconds)]: log seconds a token are ``prompt`` + ``block``, exactly."""
    seconds = tokens * np.exp(np.asarray(block)[:, None] + np.asarray(prompt)[None])
    return np.stack([np.full_like(seconds, tokens), seconds], axis=2)


def half(estimate: Estimate) -> float:
    """Half the width of an interval on the log scale."""
    return float(np.log(estimate.high / estimate.low) / 2)  # type: ignore[operator]


def test_prompts_all_alike_leave_the_t_interval_of_blocks() -> None:
    blocks = [0.0, 0.1, -0.04]
    estimate = intervals(cube([0.0] * 12, blocks), [RATE])[0]
    assert half(estimate) == pytest.approx(t_half_width(np.asarray(blocks)))
    assert half(estimate) == pytest.approx(4.302653 * np.std(blocks, ddof=1) / np.sqrt(3), rel=1e-6)
    assert estimate.method == "t over 3 blocks and prompts"


def test_blocks_all_alike_leave_the_t_interval_of_prompts() -> None:
    prompts = [0.1, -0.2, 0.3, 0.0, 0.25, -0.1]
    estimate = intervals(cube(prompts, [0.0, 0.0, 0.0]), [RATE])[0]
    seconds = np.exp(prompts)
    influence = seconds / seconds.sum() - 1 / 6  # of each prompt on log(sum seconds / sum tokens)
    variance = 6 / 5 * (influence**2).sum()
    assert half(estimate) == pytest.approx(stats.t.ppf(0.975, 5) * np.sqrt(variance))


def test_both_by_hand() -> None:
    """Two blocks 0.2 apart (variance of their mean 0.01) and four prompts; freedom by Welch-Satterthwaite."""
    data = cube([0.3, -0.3, 0.2, -0.2], [0.1, -0.1])
    seconds = np.exp([0.3, -0.3, 0.2, -0.2])
    prompts = 4 / 3 * ((seconds / seconds.sum() - 1 / 4) ** 2).sum()
    total = prompts + 0.01
    freedom = total**2 / (prompts**2 / 3 + 0.01**2 / 1)
    expected = max(stats.t.ppf(0.975, freedom) * np.sqrt(total), stats.t.ppf(0.975, 1) * 0.1)
    assert half(intervals(data, [RATE])[0]) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=5), st.lists(st.floats(-1, 1), min_size=2, max_size=9))
def test_never_narrower_than_the_blocks_alone(blocks: list[float], prompts: list[float]) -> None:
    estimate = intervals(cube(prompts, blocks), [RATE])[0]
    assert estimate.low is not None
    assert half(estimate) >= t_half_width(np.asarray(blocks)) * (1 - 1e-9) - 1e-9


def test_a_shared_clock_leaves_blocks_alone() -> None:
    blocks = [0.0, 0.1, -0.04]
    estimate = intervals(cube([0.3, -0.3, 0.2, -0.2], blocks), [RATE], one_clock=True)[0]
    assert half(estimate) == pytest.approx(t_half_width(np.asarray(blocks)))
    assert estimate.method == "t over 3 blocks"
    one = intervals(cube([0.3, -0.3, 0.2, -0.2], [0.0]), [RATE], one_clock=True)[0]
    assert (one.low, one.high) == (None, None)
    many = intervals(cube([0.3, -0.3, 0.2, -0.2], [0.01 * i for i in range(8)]), [RATE], one_clock=True)[0]
    assert many.method == "t over 8 blocks"


def test_from_six_blocks_on_they_are_resampled() -> None:
    rng = np.random.default_rng(0)
    prompts = rng.normal(0, 0.2, 12).tolist()
    for blocks in (BOOTSTRAP_BLOCKS - 1, BOOTSTRAP_BLOCKS, 12):
        moods = rng.normal(0, 0.1, blocks)
        estimate = intervals(cube(prompts, moods.tolist()), [RATE])[0]
        assert estimate.method == f"{'t' if blocks < 6 else 'bootstrap'} over {blocks} blocks and prompts"
        both = np.sqrt(np.var(moods, ddof=1) / blocks + np.var(prompts, ddof=1) / 12)
        assert 1.7 * both < half(estimate) < 3.2 * both


def test_a_block_without_the_quantity_leaves_no_bar() -> None:
    data = cube([0.1, 0.2], [0.0, 0.1])
    data[1] = 0.0
    estimate = intervals(data, [RATE])[0]
    assert estimate.value is not None
    assert estimate.low is None


@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_equal_arms_are_not_distinguishable(blocks: int) -> None:
    data = cube([0.3, -0.3, 0.2, -0.2, 0.1], np.linspace(-0.1, 0.1, blocks).tolist())
    estimate = intervals(np.concatenate([data, data], axis=2), [SPEEDUP])[0]
    assert (estimate.value, estimate.low, estimate.high) == (1.0, 1.0, 1.0)
    assert estimate.verdict == "not distinguishable"


def test_verdicts() -> None:
    assert Estimate(1.2, 1.01, 1.4, 9).verdict == "faster"
    assert Estimate(0.8, 0.7, 0.99, 9).verdict == "slower"
    assert Estimate(1.2, 0.99, 1.4, 9).verdict == "not distinguishable"
    assert Estimate(1.2, 1.0, 1.4, 9).verdict == "not distinguishable"
    assert Estimate(1.2, None, None, 1).verdict is None


def test_the_sign_test_by_hand() -> None:
    # 8 of 10 above: 2 * (1 + 10 + 45) / 1024. Those of exactly 1 say nothing.
    assert sign_test(np.asarray([1.1] * 8 + [0.9] * 2)) == pytest.approx(112 / 1024)
    assert sign_test(np.asarray([1.1] * 8 + [0.9] * 2 + [1.0] * 5)) == pytest.approx(112 / 1024)
    assert sign_test(np.asarray([1.1] * 5 + [0.9] * 5)) == pytest.approx(1.0)
    assert sign_test(np.ones(4)) is None
    assert sign_test(np.zeros(0)) is None


POSITIVE = st.lists(st.floats(0.5, 20), min_size=4, max_size=4)


@given(POSITIVE)
@pytest.mark.parametrize(
    "quantity", [SPEEDUP, Product((1, -1, 0, 0), 1000.0), Difference(Product((1, -1, 0, 0)), Product((0, 0, 1, -1)))]
)
def test_gradients_are_those_of_the_working_scale(quantity: Quantity, totals: list[float]) -> None:
    at = np.asarray(totals)
    for i, slope in enumerate(quantity.gradient(at)):
        step = np.zeros(4)
        step[i] = 1e-6 * at[i]
        numeric = (quantity.working(at + step) - quantity.working(at - step)) / (2 * step[i])
        assert slope == pytest.approx(numeric, rel=1e-4, abs=1e-5)


def test_a_difference_and_its_interval() -> None:
    rng = np.random.default_rng(1)
    rounds = rng.integers(5, 15, 30).astype(float)
    data = np.stack([3 * rounds + rng.integers(0, 9, 30), rounds, 2 * rounds + rng.integers(0, 9, 30), rounds], axis=1)
    quantity = Difference(Product((1, -1, 0, 0)), Product((0, 0, 1, -1)))
    total = data.sum(axis=0)
    for blocks in (1, 3, 6):
        estimate = intervals(np.repeat(data[None], blocks, axis=0), [quantity])[0]
        assert estimate.value == pytest.approx((total[0] - total[2]) / total[1])
        assert estimate.low < estimate.value < estimate.high  # type: ignore[operator]
    assert intervals(np.zeros((1, 3, 4)), [quantity])[0].value is None
