"""From what shards store to what the evidence file says: ratios, shares, ledgers, laws; worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddbench.errors import ConfigError
from experiments.evidence.chi_square import two_samples
from experiments.evidence.dummy_models import drafter_parameters, target_parameters, write_dummy_pair
from experiments.evidence.identity import Difference, identity_share, same_but_for_ties, summary, unexplained
from experiments.evidence.timing import interleaved, spread
from experiments.vllm_evidence.merge import merge, step_ms
from experiments.vllm_evidence.timing import acceptance_length, histogram

COUNTERS = {
    "spec_decode_num_drafts": 10.0,
    "spec_decode_num_accepted_tokens": 9.0,
    "position_0": 6.0,
    "position_1": 3.0,
    "position_2": 0.0,
}


def test_acceptance_from_the_engines_counters() -> None:
    assert histogram(COUNTERS) == [4, 3, 3]
    assert sum(a * n for a, n in enumerate(histogram(COUNTERS))) == 9
    assert acceptance_length(COUNTERS) == 1.9
    assert acceptance_length({}) is None


def test_arms_take_turns_forwards_and_backwards() -> None:
    assert interleaved(["a", "b"], 3) == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_the_first_kind_of_shard_counted_rounds_and_not_steps() -> None:
    times = {"median": 11.0, "low": 10.0, "high": 12.0, "n": 5}
    rounds: dict[str, Any] = {"round_ms": {"1": {"a": times}, "8": {"a": times}}}
    assert step_ms(rounds, "8", "a")["ms"] == 11.0
    rounds["emitted_per_round"] = {"1": {"a": 1.1}, "8": {"a": 1.1}}
    assert step_ms(rounds, "8", "a") == {"ms": 10.0, "low": 9.091, "high": 10.909, "n": 5, "steady": True}
    assert step_ms(rounds, "1", "a")["ms"] == 11.0


def test_a_ratio_is_null_where_repeats_do_not_agree(tmp_path: Path) -> None:
    memory = {
        "weights_predicted_gib": 1.0,
        "weights_measured_gib": 1.0,
        "kv_tokens_predicted": 5,
        "kv_tokens_measured": 5,
    }
    measured = {
        "round_ms": {
            "1": {"dflash_16": spread([10.0, 10.0, 10.0]), "ddtree_16": spread([11.0, 10.5, 11.5])},
            "8": {"dflash_16": spread([10.0, 10.0, 10.0]), "ddtree_16": spread([11.0, 10.5, 31.5, 30.0])},
        },
        "memory": {"dflash_16": memory, "ddtree_16": memory},
    }
    record = {"command": "c", "date": "2026-01-01", "gpu": "G", "driver": "1", "versions": {}, "measured": measured}
    kernels = [{"kernel": "candidates", "batch": 1, "k": 15, "ms": 0.06}]
    kernels += [{"kernel": name, "batch": 1, "width": 16, "ms": 0.01} for name in ("build", "positions", "attention")]
    (tmp_path / "rounds.json").write_text(json.dumps(record))
    (tmp_path / "kernels.json").write_text(json.dumps({**record, "measured": {"rows": kernels}}))
    found = json.loads(merge(tmp_path, tmp_path / "out" / "e.json").read_text())["measured"]
    assert found["round_ratio_vs_dflash"] == {"16": {"1": 1.1, "8": None}}
    assert found["tree_overhead_share"] == {"16": {"1": round(0.08 / 11, 4)}}  # attention does not count


def test_nothing_to_merge_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one shard"):
        merge(tmp_path, tmp_path / "e.json")


def test_ledger_tells_ties_from_errors() -> None:
    found = summary([Difference(0, 3, 0.25), Difference(1, 9, -0.6)], "bfloat16")
    assert found == {"differences": 2, "widest_gap_logits": 0.6, "unexplained": 1}
    assert summary([Difference(0, 3, 0.25), Difference(1, 9, 0.03)], "float32")["unexplained"] == 1
    assert identity_share([[1, 2], [3]], [[1, 2], [4]]) == 0.5


def test_a_gap_that_is_no_number_is_null_and_no_tie() -> None:
    for gap in (None, float("nan"), float("inf")):
        found = summary([Difference(0, 3, gap), Difference(1, 9, 0.1)], "bfloat16")
        assert found == {"differences": 2, "widest_gap_logits": None, "unexplained": 1}
        assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_ledgers_of_another_threshold_are_judged_anew_or_not_at_all() -> None:
    def ledger(widest: float | None, counted: int, share: float = 0.97) -> dict[str, Any]:
        return {"share": share, "differences": 2, "widest_gap_logits": widest, "unexplained": counted}

    assert unexplained(ledger(0.03, 0), "float32", 0.5) == 0
    assert unexplained(ledger(0.2, 0), "float32", 0.5) is None  # both may be wider than 0.05, or one
    assert unexplained(ledger(0.2, 2), "float32", 0.05) == 2
    assert same_but_for_ties({"1": ledger(0.03, 0), "8": ledger(0.01, 0)}, "float32", 0.05) is True
    assert same_but_for_ties({"1": ledger(0.03, 0), "8": ledger(0.2, 1)}, "float32", 0.05) is False
    assert same_but_for_ties({"1": ledger(0.2, 0)}, "float32", 0.5) is None
    assert same_but_for_ties({}, "float32", 0.05) is None
    assert same_but_for_ties({"1": ledger(0.01, 0, share=0.0)}, "float32", 0.05) is False  # no tie parts all outputs
    assert same_but_for_ties({"1": ledger(0.3, 0, share=0.75)}, "bfloat16", 0.5) is True


def test_two_samples_of_one_law_pass_and_of_another_do_not() -> None:
    rng = np.random.default_rng(0)
    laws = (np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.55, 0.3, 0.1, 0.05]))
    one, same = ([(int(x),) for x in rng.choice(4, 4000, p=laws[0])] for _ in range(2))
    other = [(int(x),) for x in rng.choice(4, 4000, p=laws[1])]
    assert two_samples(one, same)["p"] > 0.001
    assert two_samples(one, other)["p"] < 0.001


def test_the_pair_without_weights_has_the_size_that_was_loaded(tmp_path: Path) -> None:
    write_dummy_pair(tmp_path)
    assert json.loads((tmp_path / "dflash" / "config.json").read_text())["block_size"] == 16
    assert 2 * target_parameters() / 2**30 == pytest.approx(15.27, rel=0.002)  # as vLLM 0.26.0 printed
    assert 2 * (target_parameters() + drafter_parameters()) / 2**30 == pytest.approx(17.22, rel=0.002)
