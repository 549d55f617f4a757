"""The bootstrap: seeded, paired, vectorised, and honest about what it covers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports import statistics
from reports.statistics import bootstrap, cluster_sums, ratio_of_replicates, resampling_weights

SPEEDUP = (1, -1, -1, 1)


def draw(rng: np.random.Generator, prompts: int) -> np.ndarray:
    """SYNTHETIC [prompts, (tokens, seconds, tokens, baseline seconds)]: skewed lengths, acceptance by prompt."""
    tokens = np.minimum(128, 8 + rng.geometric(1 / 90, prompts)).astype(float)
    seconds = np.ceil(tokens / (1 + rng.gamma(3, 1, prompts))) * 8 * np.exp(rng.normal(0, 0.05, prompts))
    return np.stack([tokens, seconds, tokens, tokens * 7 * np.exp(rng.normal(0, 0.05, prompts))], axis=1)


def test_at_least_five_thousand_resamples() -> None:
    assert statistics.RESAMPLES >= 5_000


def test_weights_are_resamples_with_replacement() -> None:
    weights = resampling_weights(9, 500, 3)
    assert weights.shape == (500, 9)
    assert (weights.sum(axis=1) == 9).all()
    assert (weights == resampling_weights(9, 500, 3)).all()
    assert weights.mean() == 1.0


def test_the_value_is_the_plain_ratio_and_lies_inside() -> None:
    sums = draw(np.random.default_rng(0), 16)
    estimate = bootstrap(sums, SPEEDUP)
    total = sums.sum(axis=0)
    assert estimate.value == pytest.approx(total[0] / total[1] / (total[2] / total[3]))
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < estimate.value < estimate.high
    assert estimate.n == 16


def test_seeded() -> None:
    sums = draw(np.random.default_rng(0), 16)
    assert bootstrap(sums, SPEEDUP) == bootstrap(sums, SPEEDUP)
    assert bootstrap(sums, SPEEDUP) != bootstrap(sums, SPEEDUP, seed=1)


def test_one_block_of_resamples_equals_a_plain_loop() -> None:
    sums = draw(np.random.default_rng(1), 10)
    plain = [w @ sums for w in resampling_weights(10, 300, 5).astype(float)]
    assert np.allclose(statistics.resampled_totals(sums[None], 300, 5), plain)


def test_many_prompts_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = draw(np.random.default_rng(1), 10)
    whole = statistics.resampled_totals(sums[None], 300, 5)
    monkeypatch.setattr(statistics, "FEW_UNITS", 0)
    monkeypatch.setattr(statistics, "CHUNK", 700)  # 70 resamples a piece
    assert np.allclose(statistics.resampled_totals(sums[None], 300, 5), whole)


def test_blocks_are_drawn_and_within_them_the_same_prompts() -> None:
    cube = np.stack([draw(np.random.default_rng(i), 10) for i in range(7)])
    prompts, blocks = resampling_weights(10, 200, 5), resampling_weights(7, 200, 6)
    plain = [
        sum(blocks[r, b] * prompts[r, i] * cube[b, i].astype(float) for b in range(7) for i in range(10))
        for r in range(200)
    ]
    assert np.allclose(statistics.resampled_totals(cube, 200, 5), plain)


def test_blocks_and_prompts_are_drawn_apart() -> None:
    """As many of the one as of the other must not mean that they are drawn alike."""
    prompts, blocks = resampling_weights(8, 400, statistics.SEED), resampling_weights(8, 400, statistics.SEED + 1)
    assert abs(np.corrcoef(prompts.ravel(), blocks.ravel())[0, 1]) < 0.1


@pytest.mark.parametrize(("prompts", "least", "most"), [(8, 0.89, 0.97), (24, 0.91, 0.98)])
def test_the_interval_covers_the_truth(prompts: int, least: float, most: float) -> None:
    rng = np.random.default_rng(11)
    total = draw(rng, 400_000).sum(axis=0)
    truth = total[0] / total[1] / (total[2] / total[3])
    estimates = [bootstrap(draw(rng, prompts), SPEEDUP, resamples=500, seed=i % 5) for i in range(600)]
    covered = np.mean([e.low <= truth <= e.high for e in estimates])  # type: ignore[operator]
    assert least <= covered <= most


def test_equal_arms_give_exactly_one() -> None:
    sums = draw(np.random.default_rng(2), 12)[:, :2]
    estimate = bootstrap(np.hstack([sums, sums]), SPEEDUP)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((1.0, 1.0, 1.0))


def test_pairing_is_narrower_than_not_pairing() -> None:
    rng = np.random.default_rng(3)
    cost = rng.lognormal(0, 1, 20)
    tokens = np.full(20, 50.0)
    paired = np.stack([tokens, cost, tokens, cost * 1.2 * np.exp(rng.normal(0, 0.02, 20))], axis=1)
    apart = paired.copy()
    apart[:, 2:] = paired[rng.permutation(20), 2:]
    width = [np.log(e.high / e.low) for e in (bootstrap(paired, SPEEDUP), bootstrap(apart, SPEEDUP))]  # type: ignore[operator]
    assert width[0] < width[1] / 5


def test_one_prompt_gives_a_point_without_a_bar() -> None:
    estimate = bootstrap(np.asarray([[3.0, 2.0]]), (1, -1))
    assert estimate == statistics.Estimate(1.5, None, None, 1)
    assert not estimate.excludes(1.0)


def test_what_does_not_exist_is_none() -> None:
    assert bootstrap(np.zeros((0, 2)), (1, -1)).value is None
    assert bootstrap(np.asarray([[1.0, 0.0], [2.0, 0.0]]), (1, -1)).value is None
    assert bootstrap(np.asarray([[1.0, np.nan], [2.0, 1.0]]), (1, -1)).value is None
    zero = bootstrap(np.asarray([[0.0, 1.0], [0.0, 2.0]]), (1, -1))
    assert (zero.value, zero.low) == (0.0, None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=2, max_size=12), st.floats(0.01, 100))
def test_scaling_scales_the_interval(rows: list[tuple[float, float]], scale: float) -> None:
    plain = bootstrap(np.asarray(rows), (1, -1), resamples=200)
    scaled = bootstrap(np.asarray(rows), (1, -1), scale, resamples=200)
    for one, other in zip((plain.value, plain.low, plain.high), (scaled.value, scaled.low, scaled.high), strict=True):
        assert other == pytest.approx(one * scale)  # type: ignore[operator]


def test_clusters_sum_turns() -> None:
    names, sums = cluster_sums(["b", "a", "b"], np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert names == ["a", "b"]
    assert sums.tolist() == [[3.0, 4.0], [6.0, 8.0]]


def test_replicates_need_two_blocks() -> None:
    assert ratio_of_replicates(1.5, [(3.0, 2.0)]) == statistics.Estimate(1.5, None, None, 1, "n = 1 block")
    estimate = ratio_of_replicates(1.5, [(3.0, 2.0), (3.1, 2.0), (2.9, 2.0)])
    assert estimate.n == 3
    assert estimate.excludes(1.0)


def test_resamples_without_a_numerator_pull_the_interval_to_zero() -> None:
    """One prompt of eight holds all that is counted: a third of the resamples miss it."""
    sums = np.array([[1.0, 10.0]] + [[0.0, 10.0]] * 7)
    estimate = bootstrap(sums, (1, -1))
    assert estimate.value == pytest.approx(1 / 80)
    assert estimate.low == 0.0
    assert estimate.high is not None
    assert estimate.high > estimate.value


def test_resamples_without_a_denominator_leave_no_bar() -> None:
    estimate = bootstrap(np.array([[10.0, 1.0]] + [[10.0, 0.0]] * 7), (1, -1))
    assert estimate.value == pytest.approx(80.0)
    assert (estimate.low, estimate.high) == (None, None)
