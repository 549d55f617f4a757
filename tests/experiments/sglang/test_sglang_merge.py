"""What the evidence file makes of shards: pooled repeats, nulls for what is missing, one machine; by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddbench.errors import ConfigError
from experiments.evidence.shards import Record, command, plain
from experiments.evidence.timing import kept, spread
from experiments.sglang_evidence.merge import merge
from experiments.sglang_evidence.merge_checks import CLAIMS
from experiments.sglang_evidence.merge_times import starts
from experiments.sglang_evidence.synthetic import crossover
from experiments.sglang_evidence.tiny_checks import ARMS, PAIRS

RECORD = {"command": "c", "date": "2026-01-01", "gpu": "G", "driver": "1", "versions": {}}


def merged(folder: Path, shards: dict[str, Any]) -> dict[str, Any]:
    for name, measured in shards.items():
        (folder / f"{name}.json").write_text(json.dumps({**RECORD, "measured": measured}))
    found: dict[str, Any] = json.loads(merge(folder, folder / "out" / "e.json").read_text())
    return found


def rounds(chain: list[float], tree: list[float]) -> dict[str, Any]:
    ratio = kept([b / a for a, b in zip(chain, tree, strict=True)])
    times = {"dflash_16": kept(chain), "ddtree_16": kept(tree)}
    return {"round_ms": {"8": times}, "round_ratio_vs_dflash": {"8": {"ddtree_16": ratio}}}


def test_repeats_of_restarts_are_pooled_and_not_their_medians(tmp_path: Path) -> None:
    kernels = [
        {"kernel": name, "batch": 8, "width": 16, "ms": 0.02} for name in ("build", "lay_out", "walk", "move_kv")
    ]
    shards = {
        "rounds_16": rounds([10.0, 10.0, 20.0], [10.0, 11.0, 24.0]),  # ratios 1.0, 1.1, 1.2
        "rounds_16_2": rounds([10.0] * 5, [10.2, 10.2, 10.2, 10.4, 10.5]),
        "kernels": {"rows": kernels},
    }
    found = merged(tmp_path, shards)["measured"]
    assert found["round_ratio_vs_dflash"] == {"ddtree_16": {"8": 1.03}}  # the middle of all eight, 1.02 and 1.04
    times = found["round_ms"]["ddtree_16"]["8"]
    assert (times["median"], times["low"], times["high"], times["n"], times["starts"]) == (10.3, 10.0, 24.0, 8, 2)
    assert found["tree_overhead_share"] == {"16": {"8": round(0.08 / 10.3, 5)}}
    assert len(starts(shards, "rounds_16")) == 2
    (tmp_path / "rounds_16_3.json").write_text(
        json.dumps({**RECORD, "measured": {"round_ms": {"8": {"ddtree_16": spread([1.0, 2.0])}}}})
    )
    with pytest.raises(ConfigError, match="keeps every repeat"):
        merge(tmp_path, tmp_path / "out" / "e.json")


def test_crossover() -> None:
    assert crossover({1: {"a": {"median": 1.2}}, 8: {"a": {"median": 0.9}}}, "a") == 8
    assert crossover({1: {"a": {"median": 1.2}}}, "a") is None


def checks(dtype: str = "float32", **changed: Any) -> dict[str, Any]:
    def ledger(share: float) -> dict[str, Any]:
        return {"1": {"share": share, "differences": 1, "widest_gap_logits": 0.01, "unexplained": 0}}

    shard = {
        "dtype": dtype,
        "threshold_logits": 0.5,
        "arms": ["autoregressive", "dflash", "ddtree", "ddtree_k1", "ddtree_eager"],
        "skipped": [8],
        "failed": {"ddtree_eager": 'ddtree_eager: exit 1; no room; log /tmp/a/b.log\n  File "/opt/x/torch/nn/f.py"'},
        "identity": {name: ledger(1.0) for name in ("dflash", "ddtree", "ddtree_k1")},
        "acceptance_length": {"dflash": {"1": 3.9}},
        "histogram": {"dflash": {"1": [3, 4]}, "ddtree_k1": {"1": [3, 4]}},
        "pairs": {"ddtree_k1=dflash": ledger(0.95)},
    }
    return shard | changed


def test_an_arm_that_failed_is_told_and_claims_nothing(tmp_path: Path) -> None:
    record = merged(tmp_path, {"tiny_checks_float32": checks()})
    found = record["measured"]
    assert found["failed"] == {"tiny_checks_float32": {"ddtree_eager": "ddtree_eager: exit 1; no room; log b.log"}}
    assert record["shards"]["tiny_checks_float32"]["failed"]["ddtree_eager"].endswith('File "torch/nn/f.py"')
    assert found["skipped"] == {"tiny_checks_float32": [8]}
    assert found["graphs_off_identical_to_on"] is None
    assert found["greedy_identity_share"]["tiny_checks_float32"]["ddtree_eager"] is None
    assert found["greedy_unexplained"]["tiny_checks_float32"] == {
        "dflash": 0,
        "ddtree": 0,
        "ddtree_k1": 0,
        "ddtree_eager": None,
    }
    assert (found["k1_identical_to_dflash"], found["k1_share"], found["k1_equal_acceptance"]) == (
        True,
        {"1": 0.95},
        True,
    )
    assert found["threshold_logits"] == {"tiny_checks_float32": 0.05}


def test_an_arm_may_be_made_good_by_a_second_start(tmp_path: Path) -> None:
    eager = {"8": {"share": 1.0, "differences": 0, "widest_gap_logits": 0.0, "unexplained": 0}}
    again = checks(threshold_logits=0.05, pairs={"ddtree_eager=ddtree": eager}, failed={}, skipped=[])
    found = merged(tmp_path, {"tiny_checks_float32": checks(), "tiny_checks_float32_2": again})["measured"]
    assert (found["graphs_off_identical_to_on"], found["graphs_off_share"]) == (True, {"8": 1.0})
    assert (found["k1_identical_to_dflash"], found["overlap_off_identical_to_on"]) == (True, None)
    assert list(found["failed"]) == ["tiny_checks_float32"]


def test_a_tree_of_width_1_that_never_agrees_is_no_chain(tmp_path: Path) -> None:
    apart = {"1": {"share": 0.0, "differences": 144, "widest_gap_logits": 0.01, "unexplained": 0}}
    found = merged(tmp_path, {"tiny_checks_float32": checks(pairs={"ddtree_k1=dflash": apart}, histogram={})})
    assert found["measured"]["k1_identical_to_dflash"] is False
    assert found["measured"]["k1_equal_acceptance"] is None


def test_law_backends_and_stress_name_what_is_missing(tmp_path: Path) -> None:
    planted, tree = {"p": 1e-9, "later": {"p": 1e-5}}, {"p": 0.4, "later": {"p": 0.2}}
    laws = {"top_k": {"ddtree": tree, "planted": planted}, "top_p": {"ddtree": tree}}
    wide = {"widest_difference": 0.2, "within_threshold": True}
    shards = {
        "law": {"level": 0.001, "laws": laws},
        "node_logits_float32": {"dtype": "float32", "backends": {"triton": wide}, "failed": {"x": "y"}},
        "stress": {"arms": {"ddtree_stress": {"whole": 1}}},
    }
    found = merged(tmp_path, shards)["measured"]
    assert found["t1_chi_square_p"] == {"plain": None, "top_k": 0.4, "top_p": 0.4}
    assert found["t1_chi_square_p_later"] == {"plain": None, "top_k": 0.2, "top_p": 0.2}
    assert found["t1_planted_rejected"] is None  # not tried with top_p
    assert found["t1_arms_missing"] == ["autoregressive_again", "dflash", "planted"]
    told = found["node_logits"]["node_logits_float32"]
    assert (told["triton"]["within_threshold"], told["flashinfer"]) == (False, None)
    assert found["stress"]["stress"]["dflash_stress"] is None


def test_the_law_is_told_of_float32_where_it_ran_and_of_every_shard(tmp_path: Path) -> None:
    place = {"prompt": 2, "place": 6, "drawn": [0, 76], "of": [750, 750]}
    half = {"p": 0.8, "later": {"p": 1e-6}, "steps": {"p": 0.3, "outside": [0, 0], "undecided": [place]}}
    half |= {"decided_by": ["steps"], "agrees": True}
    exact = {"p": 0.5, "later": {"p": 0.4}, "steps": {"p": 0.6, "outside": [0, 0], "undecided": []}}
    exact |= {"decided_by": ["early", "later", "steps"], "agrees": True}
    shards = {
        "law": {"level": 0.001, "dtype": "bfloat16", "laws": {"top_p": {"sampling": {}, "ddtree": half}}},
        "law_float32": {"level": 0.001, "dtype": "float32", "laws": {"top_p": {"sampling": {}, "ddtree": exact}}},
    }
    found = merged(tmp_path, shards)["measured"]
    assert (found["t1_dtype"], found["t1_chi_square_p_later"]["top_p"]) == ("float32", 0.4)
    told = found["t1_by_shard"]
    assert told["law"]["top_p"]["ddtree"] == {
        "p": 0.8,
        "later": 1e-6,
        "steps": 0.3,
        "outside": [0, 0],
        "undecided": place,
        "decided_by": ["steps"],
        "agrees": True,
    }
    assert told["law_float32"]["top_p"]["ddtree"]["undecided"] is None
    assert set(told["law"]["top_p"]) == {"ddtree"}
    whole = {law: {"sampling": {}, "ddtree": {**exact, "p": 0.7}} for law in ("top_p", "plain")}
    shards["law_float32_2"] = {"level": 0.001, "dtype": "float32", "laws": whole}
    found = merged(tmp_path, shards)["measured"]  # of two in float32 the one that was not cut short
    assert found["t1_chi_square_p"] == {"top_p": 0.7, "plain": 0.7, "top_k": None}


@pytest.mark.parametrize("text", ["{}", "garbage", "[]", '{"measured": {}}'])
def test_files_that_are_no_shards_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "law.json").write_text(text)
    with pytest.raises(ConfigError, match=r"folder=.*law\.json': the files of shards alone"):
        merge(tmp_path, tmp_path / "out" / "e.json")


def test_shards_of_two_machines_are_refused(tmp_path: Path) -> None:
    shards = {"law": {"level": 0.001, "laws": {}}, "stress": {"arms": {}}, "reference": {}}
    for name, measured in shards.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**RECORD, "measured": measured}))
    cpu = {**RECORD, "gpu": None, "driver": None, "versions": {"torch": "2.13.0+cpu"}, "measured": {}}
    (tmp_path / "reference.json").write_text(json.dumps(cpu))
    found = json.loads(merge(tmp_path, tmp_path / "out" / "e.json").read_text())
    assert (found["gpu"], found["measured"]["t1_planted_rejected"]) == ("G", None)
    for changed in ({"gpu": "H"}, {"driver": "2"}, {"versions": {"sglang": "0.5.18"}}):
        (tmp_path / "stress.json").write_text(json.dumps({**RECORD, **changed, "measured": {"arms": {}}}))
        with pytest.raises(ConfigError, match="one GPU, driver and set of versions: law has"):
            merge(tmp_path, tmp_path / "out" / "e.json")


def test_nothing_to_merge_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one shard"):
        merge(tmp_path / "nothing", tmp_path / "e.json")


def test_commands_of_shards_that_did_not_name_their_options(tmp_path: Path) -> None:
    first = "python -m ddbench experiment=sglang_evidence shard=tiny_checks"
    for name in ("tiny_checks", "tiny_checks_float32", "tiny_checks_float32_2"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**RECORD, "command": first, "measured": checks()}))
    told = json.loads(merge(tmp_path, tmp_path / "out" / "e.json").read_text())["command"].split("; ")
    assert told[:3] == [first, f"{first} dtype=float32", f"{first} dtype=float32 restart=2"]
    options = {"dtype": "float32", "arms": ["a", "b"], "batches": None, "restart": 2}
    assert command("e", "s", options) == "python -m ddbench experiment=e shard=s dtype=float32 'arms=[a,b]' restart=2"


def test_a_command_tells_no_folders_of_a_machine() -> None:
    line = "python -m ddbench engine.python=/opt/x/bin/python3 '/tmp/a b' a=docs/evidence/c.json b=1/2 'c=[/u/v,/w/x]'"
    told = "python -m ddbench engine.python=python3 'a b' a=docs/evidence/c.json b=1/2 'c=[v,x]'"
    assert plain(line) == told


def test_every_pair_of_arms_has_a_claim_of_its_own_but_those_on_another_backend() -> None:
    """Those are in ``pairs`` alone; a claim about arms that nothing compares would be null for ever."""
    backends = {arm.name: arm.backend for arm in ARMS}
    usual = backends["autoregressive"]
    assert len(set(PAIRS)) == len(PAIRS)
    assert CLAIMS.keys() == {pair for pair in PAIRS if {backends[arm] for arm in pair} == {usual}}
    assert len(set(CLAIMS.values())) == len(CLAIMS)


def test_a_pair_without_a_claim_is_in_pairs_alone(tmp_path: Path) -> None:
    equal = {"1": {"share": 1.0, "differences": 0, "widest_gap_logits": None, "unexplained": 0}}
    pair = "ddtree_k1_flashinfer=dflash_flashinfer"
    found = merged(tmp_path, {"tiny_checks": checks("bfloat16", pairs={pair: equal})})["measured"]
    assert found["pairs"]["tiny_checks"] == {pair: equal}
    assert all(found[claim] is None for claim in CLAIMS.values())


def test_a_shards_file_has_no_paths_and_no_numbers_that_are_none(tmp_path: Path) -> None:
    told = {
        "why": 'File "/home/me/lib/site-packages/torch/nn/m.py"; see https://pytorch.org/docs/stable/x.html; a/b/c',
        "rows": [float("inf"), 1.5],
    }
    expected = {
        "why": 'File "torch/nn/m.py"; see https://pytorch.org/docs/stable/x.html; a/b/c',
        "rows": [None, 1.5],
    }
    assert plain(told) == expected
    path = tmp_path / "s.json"
    Record("e", "s", path, {"dtype": "float32"}, {"sglang": "1"}).save(told)
    record = json.loads(path.read_text())
    assert (record["measured"], record["options"]) == (expected, {"dtype": "float32"})
    assert record["command"].endswith("shard=s dtype=float32")
