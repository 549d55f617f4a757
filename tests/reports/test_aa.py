"""Counting false positives, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from by_hand import stored_request, write_requests
from scipy import stats
from synthetic import Plan, arm, cell

from reports.aa import FalsePositives, false_positives
from reports.frames import read_run
from reports.points import points_of

PROMPTS = "abcdefgh"


def found(run: Path, moods: list[float], blocks: int, lost: tuple[int, ...] = ()) -> FalsePositives | None:
    """An arm whose block i takes ``moods[i]`` seconds a prompt, give or take 1 % by prompt, the same in all blocks."""
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(8))
    for block, mood in enumerate(moods):
        if block in lost:
            continue
        each = cell(Plan(prompts=8), arm("autoregressive", None, None, None), 1).with_block(block)
        write_requests(
            run, each, [stored_request(each, p, 9, 0, 0.1 + mood * x) for p, x in zip(PROMPTS, noise, strict=True)]
        )
    (run / "config.yaml").write_text(yaml.safe_dump({"aa_check": {"pairs": len(moods) // 2, "blocks": blocks}}))
    stored = read_run(run)
    return false_positives(stored, points_of(stored))


def test_one_of_four_pairs_differs(tmp_path: Path) -> None:
    """Pairs (0, 1), (3, 2), (4, 5) and (7, 6), first over second: block 2 took 20 % longer."""
    result = found(tmp_path, [1, 1, 1.2, 1, 1, 1, 1, 1], blocks=1)
    assert result is not None
    assert (result.pairs, result.false_positives, result.rate) == (4, 1, 0.25)
    assert result.low == pytest.approx(stats.beta.ppf(0.025, 1, 4))  # Clopper-Pearson
    assert result.high == pytest.approx(stats.beta.ppf(0.975, 2, 3))
    assert result.sign_test_false_positives == 1
    assert result.mean_ratio == pytest.approx(1.2 ** (-1 / 4), rel=0.01)  # the second of its pair was the slow one
    assert result.log_sd == pytest.approx(np.log(1.2) / 2, rel=0.1)


def test_blocks_of_one_measurement_show_what_they_differ_by(tmp_path: Path) -> None:
    """The same moods, three blocks a measurement: its intervals know that blocks differ."""
    moods = [1, 1.2, 1, 1.2, 1, 1.1, 1, 1, 1.2, 1, 1.1, 1.2]
    alone = found(tmp_path / "alone", moods, blocks=1)
    result = found(tmp_path / "three", moods, blocks=3)
    assert result is not None
    assert alone is not None
    assert result.pairs == 2
    assert alone.false_positives >= 4
    assert result.false_positives == 0


def test_the_order_is_abba(tmp_path: Path) -> None:
    """A machine that slows down steadily: both measurements of two pairs are as slow on average."""
    result = found(tmp_path, [1.1**i for i in range(4)], blocks=1)
    assert result is not None
    assert result.mean_ratio == pytest.approx(1.0, abs=0.01)


def test_a_pair_that_lost_a_block_is_left_out(tmp_path: Path) -> None:
    result = found(tmp_path, [1.0] * 6, blocks=1, lost=(3,))
    assert result is not None
    assert result.pairs == 2
    assert found(tmp_path / "few", [1.0] * 4, blocks=1, lost=(3,)) is None


def test_no_other_run_has_such_a_section(small_run: Path) -> None:
    stored = read_run(small_run)
    assert false_positives(stored, points_of(stored)) is None
