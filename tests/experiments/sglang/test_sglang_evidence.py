"""The evidence programs: engines as children (the stand-in's), ledgers, and what the evidence file makes of shards."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ddbench.cost.model import load_cost
from ddbench.errors import ConfigError
from experiments.evidence.child import Child
from experiments.evidence.exclusive import alone
from experiments.evidence.identity import Fork, forks
from experiments.sglang_evidence import adaptive, law, replay, rounds, run, stress, tiny_checks, tiny_speed
from experiments.sglang_evidence.arms import Arm, Pair, arguments, variables
from experiments.sglang_evidence.counts import acceptance_length, against, by_prompt, histogram
from experiments.sglang_evidence.memory import predict
from experiments.sglang_evidence.node_logits import entries, path_of
from experiments.sglang_evidence.stress import ABORTED, REQUESTS, mixed
from experiments.sglang_evidence.timing import FIRST, steady_gaps
from runners.base import EngineFailure

STAND_IN = Path(__file__).resolve().parents[2] / "runners" / "sglang" / "stand_in"
CONFIG = {
    "shard": "tiny_checks",
    "python": None,
    "dtype": "bfloat16",
    "arms": ["autoregressive", "ddtree_15", "nonsense"],
    "batches": [2],
    "prompts": 2,
    "gpus": 1,
    "restart": 1,
    "limit_s": 240,
}


def test_greedy_checks_from_engines_to_the_evidence_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tree and a chain whose drafter is not there: the one is measured, the other's failure is told."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.setattr(tiny_checks, "LENGTH", 24)
    broken = Arm("nonsense", "dflash", 15, extra={"speculative_draft_model_path": "/nowhere"})
    monkeypatch.setattr(tiny_checks, "ARMS", (*tiny_checks.ARMS, broken))
    config = CONFIG | {"folder": str(tmp_path), "output": str(tmp_path / "evidence" / "sglang.json")}
    run.run(config, "id")
    record = json.loads((tmp_path / "tiny_checks.json").read_text())
    found = record["measured"]
    assert found["identity"]["ddtree_15"]["2"] == {
        "share": 1.0,
        "differences": 0,
        "widest_gap_logits": 0.0,
        "unexplained": 0,
    }
    told = found["drafted"]["ddtree_15"]["2"]
    assert told["proposed"] == 15 * told["rounds"] > 0
    accepted = sum(a * n for a, n in enumerate(found["histogram"]["ddtree_15"]["2"]))
    assert found["acceptance_length"]["ddtree_15"]["2"] == 1 + accepted / told["rounds"] > 1.5
    assert found["acceptance_length"]["autoregressive"]["2"] is None
    assert any(name.startswith("nonsense") for name in found["failed"])
    said = capsys.readouterr().err
    assert "ddtree_15" in said
    assert "nonsense" in said
    run.run(config | {"shard": "merge"}, "id")
    evidence = json.loads(Path(config["output"]).read_text())
    assert evidence["measured"]["greedy_identity_share"] == {"tiny_checks": {"ddtree_15": {"2": 1.0}, "nonsense": None}}
    assert evidence["measured"]["greedy_unexplained"] == {"tiny_checks": {"ddtree_15": 0, "nonsense": None}}
    assert evidence["measured"]["k1_identical_to_dflash"] is None  # not measured
    assert list(evidence["measured"]["failed"]["tiny_checks"]) == ["nonsense at 2"]
    assert str(tmp_path) not in json.dumps(evidence)
    asked = "'arms=[autoregressive,ddtree_15,nonsense]' 'batches=[2]' prompts=2 gpus=1 restart=1 limit_s=240"
    assert f"shard=tiny_checks dtype=bfloat16 {asked}; " in evidence["command"]
    assert set(evidence) >= {"command", "date", "gpu", "driver", "versions", "measured", "notes"}


def test_a_recording_is_held_against_live_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.setattr(replay, "LENGTH", 24)
    monkeypatch.setattr(replay, "SHAPES", replay.SHAPES[1::6])
    config = CONFIG | {"shard": "replay", "dtype": "float32", "arms": ["dflash", "recorder"], "folder": str(tmp_path)}
    run.run(config | {"output": str(tmp_path / "evidence" / "sglang.json")}, "id")
    found = json.loads((tmp_path / "replay_float32.json").read_text())["measured"]
    assert found["failed"] == {}
    assert found["shapes_checked"] == found["shapes_equal"] == 3
    assert found["rounds_by_own_scores"] == found["rounds_compared"] > 12
    assert "text" not in found  # no autoregressive arm was asked for
    assert found["stock_chain"] == {"same_text": 2, "same_histogram": 2}
    run.run(config | {"shard": "merge", "output": str(tmp_path / "evidence" / "sglang.json")}, "id")
    merged = json.loads((tmp_path / "evidence" / "sglang.json").read_text())["measured"]["replay"]
    assert merged["replay_float32"]["shapes_checked"] == 3
    assert "shapes" not in merged["replay_float32"]


def test_an_adaptive_width_takes_turns_with_fixed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machinery alone: the stand-in verifies what is pinned and has no policy of its own."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    for name, value in (("LENGTH", 16), ("COST_TOKENS", 24), ("COST_REPEATS", 1), ("REPEATS", 1), ("NARROW", (1, 4))):
        monkeypatch.setattr(adaptive, name, value)
    config = CONFIG | {"shard": "adaptive", "arms": ["adaptive"], "batches": [1], "prompts": 2}
    run.run(config | {"folder": str(tmp_path), "output": str(tmp_path / "none.json")}, "id")
    found = json.loads((tmp_path / "adaptive.json").read_text())["measured"]
    assert found["failed"] == {}
    assert set(found["tokens_per_s"]["1"]) == {"policy", "width_1", "width_4", "width_64"}
    assert set(found["step_ms"]) == {"1", "4", "64"}
    assert found["policy_vs_best_fixed"]["1"] > 0
    assert "share_of_stock_autoregressive_texts" not in found  # no such arm was asked for
    costs = load_cost(tmp_path / "adaptive_logs" / "costs.json")
    assert costs.fingerprint["engine_version"].startswith("sglang 0.5.17")
    assert (costs.round_ms([4, 64], 1, costs.fit("ddtree").measured.context[0]) > 0).all()


def test_a_child_that_dies_or_is_silent_says_why(tmp_path: Path) -> None:
    code = "import sys; print('{}', flush=True); sys.stdin.readline(); raise ValueError('no room')"
    child = Child("it", [sys.executable, "-c", code], {}, tmp_path / "log")
    assert child.answer(20.0) == {}
    with pytest.raises(EngineFailure, match=r"it: exit 1; ValueError: no room"):
        child.ask(go=1)
    child.end()
    slow = Child("slow", [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "slow")
    began = time.monotonic()
    with pytest.raises(EngineFailure, match="slow: no answer in 0 s"):
        slow.answer(0.2)
    slow.end()
    assert time.monotonic() - began < 20


def test_timed_shards_take_turns(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with alone(5.0, lock) as waited:
        assert waited < 1.0
        with pytest.raises(ConfigError, match="one timed shard at a time"), alone(0.0, lock):
            pass
    with alone(0.0, lock) as waited:
        assert waited < 1.0


def test_unknown_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"shard='all'.*rounds_16.*merge"):
        run.run(CONFIG | {"shard": "all", "folder": "x", "output": "y"}, "id")


@pytest.mark.parametrize(
    ("shard", "arms", "says"),
    [
        ("law", ["ddtree", "nope"], "some of autoregressive, .*ddtree_flashinfer"),
        ("law", [], "null, or some of"),
        ("rounds_64", ["ddtree_16"], "some of dflash_64"),
        ("stages", ["ddtree_16"], "null: stages has no arms"),
    ],
)
def test_arms_that_a_shard_does_not_know_are_refused(shard: str, arms: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"arms=.*: .*{says}"):
        run.run(CONFIG | {"shard": shard, "folder": str(tmp_path), "output": "y", "arms": arms}, "id")
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_without_sglang_is_refused(tmp_path: Path) -> None:
    asked = CONFIG | {"shard": "law", "folder": str(tmp_path), "output": "y", "python": sys.executable, "arms": None}
    with pytest.raises(ConfigError, match=r"python=.*an environment with SGLang"):
        run.run(asked, "id")


def test_first_differences() -> None:
    assert forks([[1, 2, 3], [4], [5, 6]], [[1, 9, 3], [4], [5]]) == [Fork(0, 1, 2, 9), Fork(2, 1, None, None)]


def test_acceptance_over_requests_leaves_out_the_servers_ratio() -> None:
    rows = [
        {"spec_verify_ct": 3, "spec_num_correct_drafts": 4, "spec_correct_drafts_histogram": [1, 1, 0, 1]},
        {"spec_verify_ct": 1, "spec_num_correct_drafts": 0, "spec_correct_drafts_histogram": [1]},
        {},
    ]
    assert acceptance_length(rows) == 2.0
    assert histogram(rows) == [2, 1, 0, 1]
    assert acceptance_length([{}]) is None


def test_prompts_are_compared_one_by_one() -> None:
    ours = by_prompt([[1, 2], [3], [4, 5]], [2, 1, 4])
    theirs = by_prompt([[1, 2], [3], [4, 6]], [2, 3, 4])
    assert against(ours, theirs) == {"same_output": round(2 / 3, 4), "same_rounds_where_same_output": 0.5}
    assert against(by_prompt([[1]], [1]), by_prompt([[2]], [1]))["same_rounds_where_same_output"] is None


def test_all_arms_share_every_setting_but_their_strategy() -> None:
    pair = Pair(Path("/t"), Path("/d"), Path("/e"), "bfloat16", False, 1024, 4096)
    plain = arguments(tiny_checks.ARMS[0], pair, [1, 8])
    for arm in tiny_checks.ARMS:
        settings = arguments(arm, pair, [1, 8])
        other = {name for name in settings if settings[name] != plain.get(name)}
        allowed = {"disable_decode_cuda_graph"} if not arm.graphs else set()
        allowed |= {"disable_overlap_schedule"} if not arm.overlap else set()
        allowed |= {"attention_backend"} if arm.backend != "triton" else set()
        allowed |= {"tp_size", "disable_custom_all_reduce"} if arm.ranks > 1 else set()
        assert {name for name in other if not name.startswith("speculative_")} == allowed
        assert settings.get("speculative_num_draft_tokens", 1) == arm.verify_width
    tree = Arm("x", "ddtree", 15, depth=4, hooks=("float32", "poison"), env={"A": "1"})
    assert variables(tree, pair) == {"DDTREE_DEPTH": "4", "DDBENCH_INSIDE": "float32,poison", "A": "1"}


def test_groups_of_rounds_have_one_verify_width() -> None:
    for name, arms in rounds.GROUPS.items():
        widths = {arm.verify_width for arm in arms if arm.strategy != "autoregressive"}
        assert widths == {int(name.rpartition("_")[2])}
        assert {arm.strategy for arm in arms} >= {"dflash", "ddtree", "eagle"}


def test_steps_are_counted_while_all_of_the_batch_decode() -> None:
    early = [0.1 * index for index in range(FIRST + 6)]
    late = [0.25 + 0.1 * index for index in range(FIRST + 6)]
    found = steady_gaps([early, late])
    assert all(gap == pytest.approx(0.1) for gap in found)
    assert len(found) == 2 + 2  # from the late one's first counted event to the early one's last
    assert steady_gaps([[0.0, 1.0]]) == []


def test_paths_of_a_tree() -> None:
    tree = {"tokens": [9, 5, 6, 7, 0], "parents": [-1, 0, 0, 1, -1], "depths": [0, 1, 1, 2, 0]}
    assert entries(tree) == [0, 1, 2, 3]
    assert [path_of(tree["tokens"], tree["parents"], tree["depths"], node) for node in entries(tree)] == [
        [9],
        [9, 5],
        [9, 6],
        [9, 5, 7],
    ]


def test_requests_of_the_stress_run_are_the_same_every_time() -> None:
    shipped = [list(range(10 * size, 10 * size + size)) for size in range(1, 60)]
    prompts, params, aborted = mixed(shipped)
    assert mixed(shipped) == (prompts, params, aborted)
    assert (len(prompts), len(params), len(set(aborted))) == (REQUESTS, REQUESTS, ABORTED)
    assert all(1 <= len(prompt) <= 500 for prompt in prompts)
    assert {1, 200} <= {each["max_new_tokens"] for each in params}


def test_memory_grows_with_the_verify_width() -> None:
    pair = Pair(Path("/t"), Path("/d"), Path("/e"), "bfloat16", True, 1024, 8192)
    sums = [sum(predict(Arm("x", "ddtree", nodes), pair, [1, 8], "0.5.17").values()) for nodes in (15, 63)]
    assert sums[0] < sums[1] < 1.2 * sums[0]
    assert sums[0] > 2 * 8.19e9  # the target's weights alone


def test_a_stress_run_without_its_judge_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.setattr(stress, "REQUESTS", 4)
    monkeypatch.setattr(stress, "ABORTED", 1)
    judge = Arm("autoregressive", extra={"speculative_algorithm": "NONSENSE"})  # no such engine starts
    monkeypatch.setattr(stress, "ARMS", (judge, Arm("ddtree_stress", "ddtree", 15)))
    run.run(CONFIG | {"shard": "stress", "folder": str(tmp_path), "arms": None, "prompts": None}, "id")
    found = json.loads((tmp_path / "stress.json").read_text())["measured"]
    assert list(found["failed"]) == ["autoregressive"]
    told = found["arms"]["ddtree_stress"]
    assert told["whole"] + told["aborted"] == 4
    assert (told["lost"], told["share"], told["unexplained"]) == (0, None, None)
    assert found["asked"] == ["autoregressive", "ddtree_stress"]


def test_steps_of_the_tiny_pair_are_timed_beside_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    for name, value in (("REPEATS", 2), ("TOKENS", 24), ("PROMPTS", {1: 1})):
        monkeypatch.setattr(tiny_speed, name, value)
    asked = {"shard": "tiny_speed", "arms": ["autoregressive", "dflash"], "batches": [1]}
    run.run(CONFIG | asked | {"folder": str(tmp_path), "output": str(tmp_path / "out" / "e.json")}, "id")
    found = json.loads((tmp_path / "tiny_speed.json").read_text())["measured"]
    for key, arms in (("step_ms", {"autoregressive", "dflash"}), ("ratio_vs_dflash", {"autoregressive"})):
        assert set(found[key]["1"]) == arms
        assert all(len(row["values"]) == 2 and min(row["values"]) > 0 for row in found[key]["1"].values())
    run.run(CONFIG | {"shard": "merge", "folder": str(tmp_path), "output": str(tmp_path / "out" / "e.json")}, "id")
    evidence = json.loads((tmp_path / "out" / "e.json").read_text())["measured"]
    assert evidence["tiny_step_ms"]["dflash"]["1"] == found["step_ms"]["1"]["dflash"]["median"]


def test_steps_at_real_acceptance_end_with_the_first_answer() -> None:
    short, long = [float(i) for i in range(6)], [0.5 + 2.0 * i for i in range(20)]
    assert steady_gaps([short, long], first=2, short=0.0) == []
    assert steady_gaps([[*short, 6.0, 7.0], long], first=2, short=0.0) == [1.0, 1.0, 2.0]


def test_the_law_is_tested_in_later_rounds_too() -> None:
    """A rule that is right at first and wrong from place 17 on, as after a cache that was moved wrongly."""

    def draws(seed: int, wrong_from: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        laws = np.array([[0.5, 0.3, 0.15, 0.05], [0.4, 0.3, 0.2, 0.1]])
        return [
            [int(x) for place in range(law.LENGTH) for x in rng.choice(4, 1, p=laws[int(place >= wrong_from)])]
            for _ in range(1500)
        ]

    plain, same, wrong = draws(1, 99), draws(2, 99), draws(3, 17)
    found = law.both(plain, same, 2)
    assert min(found["p"], found["later"]["p"]) > law.LEVEL
    assert set(found["later"]["places"]) == {"20", "21", "22"}
    found = law.both(plain, wrong, 2)
    assert found["p"] > law.LEVEL > found["later"]["p"]
    assert law.LAWS["plain"] == {"temperature": 1.0}
    assert not law.whole({"errors": {}, "tokens": [[1] * (law.LENGTH - 1)]})
