"""The small parts of a sweep: prompts, checkpoints, estimates, the run folder, progress."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from ddbench.__main__ import conf_folder
from ddbench.errors import ConfigError
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.state_memory import Recurrent, state_parts
from ddbench.records import Arm, Cell, CellStatus
from experiments.estimate import estimate, memory_gib, pair_gib, states_gib, target_states_gib
from experiments.models import folder_hash, resolve
from experiments.progress import Progress, describe, duration
from experiments.settings import CostSettings, DrafterSettings, ModelSettings, TargetSettings, WorkloadSettings
from experiments.state_memory import DeltaNetSettings
from experiments.store import RunFolder
from experiments.typed import build
from experiments.workloads import asset_path, choose, prompts_hash, read_prompts
from runners.base import Prompt

TARGET = TargetSettings("t/t", None, "MIT", params=1_000_000, layers=4, kv_heads=2, head_dim=8, vocab_size=100)
DFLASH = DrafterSettings("d/d", None, "MIT", params=200_000, layers=1, block_size=16)
EAGLE = DrafterSettings("e/e", None, "MIT", params=100_000, layers=1)
MODEL = ModelSettings("m", "checkpoint", "raw", None, 1024, 1.0, TARGET, DFLASH, EAGLE)
COST = CostSettings(flops_per_s=1e9, bytes_per_s=1e8, pass_overhead_s=0.001, start_s=1.0)


def cell(strategy: str = "autoregressive", **changes: object) -> Cell:
    shape = {"width": None, "depth": None, "nodes": None}
    shape |= {k: v for k, v in changes.items() if k in shape}  # type: ignore[misc]
    arm = Arm(
        "reference", "1", strategy, *shape.values(), False, None, "m", "t/t", None, None, None, "local",  # type: ignore[arg-type]
        {"dtype": "float32", "warmup_tokens": 16},
    )  # fmt: skip
    made = Cell(arm, "w", "hash", 8, 1, 64, 0.0, 1.0, 0, 0, 1, 0)
    return replace(made, **{k: v for k, v in changes.items() if k not in shape})  # type: ignore[arg-type]


def prompts(categories: str) -> list[Prompt]:
    return [Prompt(f"{name}{i}", "d", name, (f"text {i}",)) for i, name in enumerate(categories)]


def workload(**changes: object) -> WorkloadSettings:
    return replace(WorkloadSettings("w", "p", "q", None, None), **changes)  # type: ignore[arg-type]


def test_prompts_are_spread_over_the_categories() -> None:
    records = prompts("aaaabbbbcccc")
    chosen = choose(records, workload(max_prompts=5))
    assert [p.category for p in chosen] == ["a", "a", "b", "b", "c"]
    assert chosen == [p for p in records if p in chosen]
    assert choose(records, workload(max_prompts=99)) == records
    assert choose(records, workload(categories=("b",), max_prompts=2)) == records[4:6]
    with pytest.raises(ConfigError, match="one of a, b, c"):
        choose(records, workload(categories=("d",)))


@given(st.text("abc", min_size=1, max_size=30), st.integers(1, 30))
def test_no_category_gets_two_prompts_more_than_it_must(categories: str, most: int) -> None:
    records = prompts(categories)
    chosen = choose(records, workload(max_prompts=most))
    assert len(chosen) == min(most, len(records))
    counts = {name: sum(p.category == name for p in chosen) for name in set(categories)}
    for name, count in counts.items():
        if count < categories.count(name):
            assert count >= max(counts.values()) - 1


def test_prompt_files(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    record = {"id": "é1", "dataset": "d", "category": "c", "turns": ["first", "second"], "meta": {"n": 1}}
    path.write_text(json.dumps(record) + "\n\n", encoding="utf-8")
    assert read_prompts("workload.path", str(path)) == [Prompt("é1", "d", "c", ("first", "second"))]
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_prompts("workload.path", str(path))


def test_the_hash_of_prompts_follows_content_and_order() -> None:
    one = prompts("ab")
    assert prompts_hash(one) == prompts_hash(prompts("ab"))
    assert prompts_hash(one) != prompts_hash(one[::-1])
    assert prompts_hash(one) != prompts_hash([one[0], replace(one[1], turns=("other",))])


def test_asset_paths() -> None:
    assert asset_path("asset://x/y").parts[-3:] == ("assets", "x", "y")
    assert asset_path("x/y") == Path("x/y")


def test_a_folder_is_told_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"one")
    (tmp_path / "README.md").write_text("words")
    before = folder_hash(tmp_path)
    (tmp_path / "README.md").write_text("other words")
    assert folder_hash(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert folder_hash(tmp_path) != before


def test_models_are_found_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    here = replace(MODEL, target=replace(TARGET, source=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve(here, ["target"])
    (tmp_path / "config.json").write_text("{}")
    files, revisions = resolve(here, ["target"])
    assert (files.target, files.dflash, files.eagle) == (str(tmp_path), None, None)
    assert (revisions["target"] or "").startswith("sha256:")
    for source in ("./nowhere", "/nowhere", "nowhere", "a/b/c"):
        with pytest.raises(ConfigError, match=r"model\.target\.source"):
            resolve(replace(MODEL, target=replace(TARGET, source=source)), ["target"])


def test_a_random_pair_is_told_by_its_seed() -> None:
    files, revisions = resolve(replace(MODEL, kind="random", random_seed=7), ["target", "dflash"])
    assert files.random_seed == 7
    assert revisions == {"target": "seed:7", "dflash": "seed:7"}


def test_estimates_grow_with_what_is_asked() -> None:
    chain, tree = cell("dflash", depth=7), cell("ddtree", width=4, depth=7, nodes=64)
    assert estimate(tree, MODEL, COST).seconds > estimate(chain, MODEL, COST).seconds > 0
    assert memory_gib(tree, MODEL) > memory_gib(chain, MODEL) > memory_gib(cell(), MODEL)
    assert memory_gib(cell(batch_size=8), MODEL) > memory_gib(cell(), MODEL)
    more = [estimate(cell(**{axis: 16}), MODEL, COST).seconds for axis in ("prompts", "repeats")]
    assert min(more) > estimate(cell(), MODEL, COST).seconds
    slow = replace(COST, bytes_per_s=1e6)
    assert estimate(cell(), MODEL, slow).seconds > estimate(cell(), MODEL, COST).seconds


def test_memory_by_hand() -> None:
    weights = 1_000_000 * 4
    cache = (128 + 64 + 1) * 2 * 4 * 2 * 8 * 4
    logits = 1 * 100 * 4
    assert memory_gib(cell(), MODEL) == (weights + cache + logits) / 2**30
    assert pair_gib(MODEL) == (2 * 1_300_000 + 4096 * 2 * 4 * 2 * 8 * 2) / 2**30


NETS = DeltaNetSettings(key_heads=2, value_heads=4, key_size=8, value_size=16, conv_kernel=4)
HYBRID = replace(MODEL, target=replace(TARGET, attention="hybrid", kv_layers=1, delta_nets=NETS))


def test_states_of_a_hybrid_by_hand_on_the_built_in_engine() -> None:
    channels = 2 * 2 * 8 + 4 * 16
    state = 4 * 4 * 8 * 16 + channels * 3 * 4
    kept = channels * 4 + 4 * (2 * 8 + 4 * 16) + 8 * 4
    tree = cell("ddtree", width=4, depth=7, nodes=64, batch_size=3)
    assert states_gib(cell(batch_size=3), HYBRID) * 2**30 == 3 * 3 * state
    assert states_gib(tree, HYBRID) * 2**30 == 3 * 3 * (state + 65 * kept)
    assert states_gib(tree, MODEL) == 0.0
    bare = replace(HYBRID, target=replace(HYBRID.target, delta_nets=None))
    assert memory_gib(tree, HYBRID) == pytest.approx(memory_gib(tree, bare) + states_gib(tree, HYBRID))
    assert estimate(tree, HYBRID, COST).states_gib == states_gib(tree, HYBRID)


def test_states_of_a_hybrid_in_a_server_are_what_the_plug_in_counts() -> None:
    tree = cell("ddtree", width=4, depth=7, nodes=15, batch_size=3)
    recurrent = Recurrent(3, 2, 4, 8, 16, 4)
    for args, running, counted in (
        ((), None, recurrent),
        (("--mamba-ssm-dtype", "bfloat16"), 8, replace(recurrent, element=2)),
    ):
        flags = tree.arm.flags | {"extra_args": args, "max_running_requests": running}
        served = replace(tree, arm=replace(tree.arm, engine="sglang", flags=flags))
        expected = sum(state_parts(counted, running or 3, running or 3, Sizes(16, 16, 4)).values())
        assert states_gib(served, HYBRID) * 2**30 == expected


def test_the_states_of_the_configured_hybrids() -> None:
    """As docs/hybrid.md has them: 16 tokens of 8 requests, which SGLang keeps for one more, and their own states."""
    for name, gib in (("qwen36_27b", 20.6), ("qwen36_35b_a3b", 8.7), ("tiny_hybrid", 0.0368)):
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            config = OmegaConf.to_container(compose("config", overrides=[f"model={name}"]).model, resolve=True)
        target = build(ModelSettings, config, "model").target
        found = target_states_gib(target, "sglang", 8, 16, 2, {})
        nodes = found * 16 / 17  # without the states of the sequences themselves
        assert nodes == pytest.approx(gib, rel=0.01), name


@pytest.mark.parametrize("changes", [{"attention": "full"}, {"kv_layers": None}, {"kv_layers": 4}])
def test_delta_nets_need_layers_without_a_cache(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"model\.target\.delta_nets"):
        replace(HYBRID.target, **changes)  # type: ignore[arg-type]


def test_what_delta_nets_cannot_be_is_said_in_the_words_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"^model\.target\.delta_nets=\{'key_heads': 2, .*\}: null, but for"):
        replace(HYBRID.target, attention="full")
    with pytest.raises(ConfigError, match=r"delta_nets\.key_heads=3: a number that divides the 4 value heads"):
        replace(NETS, key_heads=3)
    assert replace(NETS, key_heads=4).key_heads == 4


STATUS = CellStatus("ok", None, None, "2026-01-01T00:00:00+00:00", 1.0, None, None)


def test_a_cell_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.open({"a": 1}, {"python": "3"}, ())
    one = cell()
    place = run.begin(one)
    assert run.status(one) is None
    assert run.counts() == {"ok": 0, "unsupported": 0, "failed": 0, "suspect": 0}
    run.finish(one, place, STATUS)
    assert run.status(one) == "ok"
    assert run.ids() == {one.cell_id}
    assert not run.finish(one, run.begin(one), replace(STATUS, status="failed", reason="of a process taken for dead"))
    assert run.counts() == {"ok": 1, "unsupported": 0, "failed": 0, "suspect": 0}
    two = cell(batch_size=2)
    assert run.finish(two, run.begin(two), replace(STATUS, status="failed", reason="x"))
    assert run.counts() == {"ok": 1, "unsupported": 0, "failed": 1, "suspect": 0}
    assert run.finish(two, run.begin(two), STATUS)
    assert run.counts() == {"ok": 2, "unsupported": 0, "failed": 0, "suspect": 0}
    run.close()
    assert not (run.path / ".running").exists()


def test_a_broken_status_counts_as_none(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.open({}, {}, ())
    (run.cells / "abc").mkdir()
    (run.cells / "abc" / "status.json").write_text('{"status": "o')
    assert run.ids() == set()


def test_opening_again_keeps_what_was_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.open({"a": 1}, {"python": "3"}, ())
    run.open({"a": 1}, {"python": "3"}, ())
    assert not (tmp_path / "config-1.yaml").exists()
    run.open({"a": 2}, None, ())
    assert (tmp_path / "config-1.yaml").read_text() == "a: 1\n"
    assert json.loads((tmp_path / "environment.json").read_text()) == {"python": "3"}
    run.open({"a": 3}, {"python": "4"}, ())
    assert (tmp_path / "config-2.yaml").read_text() == "a: 2\n"
    assert (tmp_path / "environment-1.json").is_file()


def test_checking_a_folder_leaves_no_trace(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a" / "b").check_writable()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can be written"):
        RunFolder(tmp_path / "file" / "b").check_writable()


def test_words_for_people() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 3600, 7500)] == ["0 s", "59 s", "1 min 01 s", "1 h 00 min", "2 h 05 min"]
    assert (
        describe(cell("ddtree", width=4, depth=7, nodes=32, batch_size=8)) == "ddtree width 4 depth 7 nodes 32, batch 8"
    )


def test_time_left_learns_from_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress([1.0, 1.0, 2.0])
    assert progress.left_s == 4.0
    progress.finished(cell(), 3.0, "ok", None)
    assert progress.left_s == 9.0
    assert "[1/3] autoregressive, batch 1: ok in 3.0 s, about 9 s left" in capsys.readouterr().err
