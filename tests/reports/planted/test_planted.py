"""Planted answers, all SYNTHETIC: an engine of known acceptance and cost; do the intervals hold the truth?

Fixed beforehand: 2,000 draws, one seed, and 93 to 97 % of 95 % intervals must cover. The draws go the road of a report
from the point's counts on; that this road gives what ``build_report`` writes from stored files is tested first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import planted_engine
import planted_run
import pyarrow.parquet as pq
import pytest
from planted_engine import PROMPTS, Draws

from ddbench import metrics
from reports import build_report
from reports.baselines import ACCEPTANCE_DIFFERENCE, COMPARED, SPEEDUP
from reports.measures import throughput
from reports.quantities import Product
from reports.statistics import Estimate, intervals, t_half_width
from reports.sums import Sums, beside, by_block_and_prompt

DRAWS, SEED = 2_000, 20_261_129
LEAST, MOST = 0.93, 0.97
TRUTH = planted_engine.truth()
OWN_RATE, OWN_ACCEPTANCE = (Product((*[0] * 2 * i, 1, -1, *[0] * (10 - 2 * i))) for i in (0, 1))


def sums(draws: Draws, arm: str, draw: int, blocks: int) -> Sums:
    """The terms of :data:`COMPARED` of one arm by block and prompt."""
    prompts = [f"p{i:03d}" for i in range(PROMPTS)] * blocks
    counts = [draws.counts(arm, draw, block) for block in range(blocks)]
    terms = np.concatenate([np.column_stack([t for ratio in COMPARED for t in ratio.terms(c)]) for c in counts])
    return by_block_and_prompt(prompts, np.repeat(np.arange(blocks), PROMPTS).tolist(), terms, one_clock=False)


def estimates(draws: Draws, draw: int, blocks: int, resamples: int = 10_000) -> dict[str, Estimate]:
    """What a report would say of the tree in one draw."""
    tree, chain, plain = (sums(draws, arm, draw, blocks) for arm in ("ddtree", "dflash", "autoregressive"))
    names = ("speedup_vs_dflash", "acceptance_difference_vs_dflash", "tokens_per_s_per_user", "acceptance_length")
    against_chain = intervals(
        beside(tree, chain).values, [SPEEDUP, ACCEPTANCE_DIFFERENCE, OWN_RATE, OWN_ACCEPTANCE], resamples=resamples
    )
    against_plain = intervals(beside(tree, plain).values, [SPEEDUP], resamples=resamples)
    return dict(zip(names, against_chain, strict=True)) | {"speedup_vs_autoregressive": against_plain[0]}


@pytest.mark.parametrize("blocks", [1, 3, 6])
def test_the_road_of_the_draws_is_that_of_the_report(blocks: int, tmp_path: Path) -> None:
    draws = planted_engine.simulate(2, blocks, SEED)
    planted_run.write(tmp_path / "synthetic" / "run", draws, blocks)
    paths = build_report(tmp_path / "synthetic" / "run", figures=False)
    assert "SYNTHETIC DATA" in paths.report.read_text()
    rows = {row["dataset"]: row for row in pq.read_table(paths.results).to_pylist() if row["strategy"] == "ddtree"}
    assert {row["engine"] for row in rows.values()} == {"synthetic"}
    for draw in range(2):
        row = rows[f"synthetic-{draw}"]
        for name, estimate in estimates(draws, draw, blocks).items():
            stored = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
            assert stored == pytest.approx([estimate.value, estimate.low, estimate.high], rel=1e-9), name


def covered(estimates: Iterator[Estimate], truth: float) -> float:
    return float(np.mean([e.low <= truth <= e.high for e in estimates]))  # type: ignore[operator]


@pytest.mark.parametrize(("blocks", "resamples"), [(1, 10_000), (3, 0), (6, 1_000)])
def test_intervals_cover_the_planted_truth(blocks: int, resamples: int) -> None:
    """With one block no start differs from another; with more, each start has a mood of its own."""
    draws = planted_engine.simulate(DRAWS, blocks, SEED + blocks)
    found = [estimates(draws, draw, blocks, resamples) for draw in range(DRAWS)]
    coverage = {name: covered((each[name] for each in found), truth) for name, truth in TRUTH.items()}
    print(f"SYNTHETIC coverage over {DRAWS} draws, {blocks} blocks:", coverage)
    assert all(LEAST <= share <= MOST for share in coverage.values()), coverage


def test_throughput_covers_the_rate_of_its_own_prompts() -> None:
    """Its replicate is the block: the interval is for these prompts, whatever others would give."""
    blocks = 3
    draws = planted_engine.simulate(DRAWS, blocks, SEED + 10)
    inside = []
    for draw in range(DRAWS):
        seconds = planted_engine.COST_S["ddtree"] * draws.rounds["ddtree"][draw].sum() + PROMPTS * planted_engine.TTFT_S
        truth = (draws.tokens[draw] + 1).sum() / seconds
        found = throughput(tuple(draws.counts("ddtree", draw, block) for block in range(blocks)))
        inside.append(found.low <= truth <= found.high)  # type: ignore[operator]
    print("SYNTHETIC coverage of aggregate tokens/s, 3 blocks:", np.mean(inside))
    assert LEAST <= np.mean(inside) <= MOST


def test_intervals_that_leave_something_out_are_caught() -> None:
    """The same draws, the same bounds: t over three blocks alone takes the prompts for fixed, and fails them."""
    draws = planted_engine.simulate(DRAWS, 3, SEED + 3)
    truth, inside = np.log(TRUTH["speedup_vs_autoregressive"]), []
    for draw in range(DRAWS):
        tree, plain = (draws.seconds[arm][draw].sum(axis=1) for arm in ("ddtree", "autoregressive"))
        logs = np.log(plain / tree)
        inside.append(abs(logs.mean() - truth) <= t_half_width(logs))
    assert np.mean(inside) < LEAST


def test_a_wrong_cost_is_caught() -> None:
    """An engine 10 % slower than it is said to be: no longer 93 %."""
    draws = planted_engine.simulate(400, 3, SEED + 20)
    found = [estimates(draws, draw, 3, 0) for draw in range(400)]
    said = TRUTH["speedup_vs_autoregressive"] * 1.1
    assert covered((each["speedup_vs_autoregressive"] for each in found), said) < LEAST


def test_the_truth_is_what_many_requests_give() -> None:
    draws = planted_engine.simulate(5_000, 1, 5)
    pooled = {arm: draws.tokens.sum() / draws.seconds[arm].sum() for arm in planted_engine.ARMS}
    assert pooled["ddtree"] / pooled["autoregressive"] == pytest.approx(TRUTH["speedup_vs_autoregressive"], rel=3e-3)
    assert pooled["ddtree"] / pooled["dflash"] == pytest.approx(TRUTH["speedup_vs_dflash"], rel=3e-3)
    assert draws.tokens.sum() / draws.rounds["ddtree"].sum() == pytest.approx(TRUTH["acceptance_length"], rel=3e-3)
    assert metrics.tokens_per_s_per_user(draws.counts("ddtree", 0, 0)) == pytest.approx(
        draws.tokens[0].sum() / draws.seconds["ddtree"][0].sum()
    )
