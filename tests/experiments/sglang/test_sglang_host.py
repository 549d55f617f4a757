"""The host's profile: which steps are in it, and what is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.sglang_evidence.host import ROUNDS, SKIPPED, profiling


def mode(decodes: bool) -> Any:
    return SimpleNamespace(is_decode=lambda: decodes)


def work(batch: Any) -> int:
    return sum(range(batch.size))


def test_a_profile_holds_the_steps_after_the_first_ones(tmp_path: Path) -> None:
    dump, seen = tmp_path / "profile.json", []

    def run_batch(scheduler: Any, batch: Any, more: int) -> int:
        seen.append(more)
        return work(batch)

    run = profiling(run_batch, dump)
    prefill, step = (
        SimpleNamespace(size=10, forward_mode=SimpleNamespace(is_decode=lambda on=on: on)) for on in (0, 1)
    )
    for turn in range(SKIPPED + ROUNDS):
        assert not dump.exists()
        assert run(None, step, turn) == run(None, prefill, -1) == 45
    found = json.loads(dump.read_text())
    assert seen[:2] == [0, -1]
    (row,) = [row for row in found["functions"] if row["name"].endswith(" work")]
    assert row["calls"] == 2.0  # of a step, and of the prefill beside it: all of the loop is in the profile
    assert 0 < row["own_us"] <= row["all_us"]
    assert found["ms_a_step"] > 0
