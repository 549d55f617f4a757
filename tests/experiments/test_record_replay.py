"""``experiment=record`` and ``experiment=replay`` on random models: files, going on, refusals, and what is marked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hydra.core.hydra_config import HydraConfig

import ddbench as package
from ddbench.errors import ConfigError
from ddbench.replay import load_trace
from experiments.record import run as recording
from experiments.replay import run as replaying

Settings = Callable[..., dict[str, Any]]

SPEED = ("tokens_per_s", "tokens_per_s_per_user", "tpot_ms", "ttft_ms", "step_ms", "speedup_vs_autoregressive")


@pytest.fixture(scope="module")
def settings(make_command_line: Any) -> Settings:
    """The composed configuration of a verb on four made-up prompts."""
    kept = ("model=", "tracking=", "engine.", "workload", "output_dir=", "load.max_new_tokens=", "report.")
    return make_command_line().composed(*kept)


@pytest.fixture(scope="module")
def recorded(settings: Settings) -> Path:
    """A recording at two temperatures, made in two goes: a signal ends the first one."""
    config = settings("record", "record.nodes=12", "record.batch_size=3", "sweep.temperature=[0.0,1.0]")
    save, saved = recording.save_trace, []

    def then_end(path: Path, *rest: Any) -> None:
        save(path, *rest)
        saved.append(path)
        if len(saved) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    recording.save_trace = then_end
    try:
        broken_off = recording.run(config, "made")
    finally:
        recording.save_trace = save
    assert broken_off["interrupted"] == "SIGTERM"
    assert broken_off["traces"] == 2
    run = Path(broken_off["run"])
    with pytest.raises(ConfigError, match=r"6 of 8 traces are missing; experiment=record run_id=made does the rest"):
        replaying.run(settings("replay", f"run={run}"), "early")
    before = {path.name: path.stat().st_mtime_ns for path in (run / "traces").iterdir()}
    assert recording.run({**config, "run_id": "made"}, "other")["traces"] == 8
    after = {path.name: path.stat().st_mtime_ns for path in (run / "traces").iterdir()}
    assert len(after) == 8
    assert before.items() <= after.items()
    return run


def test_a_damaged_trace_is_recorded_again(settings: Settings, recorded: Path) -> None:
    first, *others = sorted((recorded / "traces").iterdir())
    whole = load_trace(first)
    first.write_bytes(first.read_bytes()[:100])
    stamps = [path.stat().st_mtime_ns for path in others]
    config = settings("record", "record.nodes=12", "record.batch_size=3", "sweep.temperature=[0.0,1.0]", "run_id=made")
    assert recording.run(config, "made")["traces"] == 8
    again = load_trace(first)
    assert (again.output == whole.output).all()
    assert (again.ranks == whole.ranks).all()
    assert [path.stat().st_mtime_ns for path in others] == stamps


@pytest.mark.parametrize(
    ("verb", "overrides", "message"),
    [
        ("record", ["run_id=made", "seed=3"], "run_id='made': a new one"),
        ("record", ["engine=vllm"], "engine='vllm': reference"),
        ("record", ["model.dflash=null"], "a model with a dflash drafter"),
        ("record", ["record.nodes=0"], "record.nodes=0"),
        ("record", ["dry_run=true"], "dry_run=True: false"),
        ("record", ["record.by=eagle"], "record.by='eagle': one of"),
        ("record", ["record.nodez=1"], None),
        ("record", ["load.max_new_tokens=ROOM"], "tokens more within the context of 512"),
        ("replay", [], "run=None: the folder of an experiment=record"),
        ("replay", ["run=/nowhere"], "the folder of an experiment=record"),
        ("replay", ["run=RUN", "replay.report_points=-1"], "replay.report_points=-1"),
        ("replay", ["run=RUN", "sweep.strategy=[ddtree]", "sweep.nodes=[8]", "sweep.depth=[9]"], "block size 8"),
    ],
)
def test_bad_input_is_one_clear_line(
    settings: Settings, recorded: Path, verb: str, overrides: list[str], message: str | None
) -> None:
    longest = json.loads((recorded / "environment.json").read_text())["prompt_tokens"]["max"]
    given = [each.replace("RUN", str(recorded)).replace("ROOM", str(512 - longest)) for each in overrides]
    if message is None:  # Hydra itself knows better
        with pytest.raises(Exception, match="nodez"):
            settings(verb, *given)
        return
    run = {"record": recording.run, "replay": replaying.run}[verb]
    with pytest.raises(ConfigError) as caught:
        run(settings(verb, *given), "bad")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def commanded(patch: pytest.MonkeyPatch, *overrides: str) -> None:
    """As if this process had been started with them, and by no job of Hydra's."""
    patch.setattr(HydraConfig.instance(), "cfg", None)
    patch.setattr("sys.argv", ["ddbench", *overrides])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("model=tiny", "model='tiny': 'tiny_untrained', or left out: it is the recording's"),
        ("model.context_length=100", "model.context_length='100': 512, or left out"),
        ("~model.eagle", "model.eagle='': left out: it is the recording's"),
        ("engine=sglang", "engine='sglang': 'reference', or left out"),
        ("seed=7", "seed='7': 0, or left out"),
        ("load=fixed_length", "load='fixed_length': left out: it is the recording's"),
        ("load.max_new_tokens=9", "load.max_new_tokens='9': 6, or left out"),
        ("sweep.temperature=[0.0]", "sweep.temperature='[0.0]': [0.0, 1.0], or left out"),
    ],
)
def test_what_the_recording_decides_is_not_asked_otherwise(
    settings: Settings, recorded: Path, monkeypatch: pytest.MonkeyPatch, other: str, message: str
) -> None:
    commanded(monkeypatch, other)
    with pytest.raises(ConfigError) as caught:
        replaying.run(settings("replay", f"run={recorded}", other), "other")
    assert message in str(caught.value)


def test_what_was_recorded_may_be_named_and_is_what_is_stored(
    settings: Settings, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = ("model=tiny_untrained", "seed=0", "load.max_new_tokens=6", "sweep.temperature=[0.0,1.0]")
    shape = ("sweep.strategy=[ddtree]", "sweep.width=[2]", "sweep.depth=[3]", "sweep.nodes=[4]", "report.build=false")
    commanded(monkeypatch, *same, *shape)
    done = replaying.run(settings("replay", f"run={recorded}", *same, *shape), "same")
    assert done["cells"]["ok"] == 2
    commanded(monkeypatch, *shape)  # another default, which nobody asked for
    done = replaying.run({**settings("replay", f"run={recorded}", "model=tiny", *shape)}, "default")
    stored = yaml.safe_load((Path(done["run"]) / "config.yaml").read_text())
    made = yaml.safe_load((recorded / "config.yaml").read_text())
    assert stored["model"] == made["model"]
    assert stored["model"]["name"] == "tiny_untrained"
    assert stored["sweep"]["nodes"] == [4]


def test_a_policy_is_not_replayed_as_a_fixed_tree(settings: Settings, recorded: Path) -> None:
    """It would have the counts of the tree of its largest budget, under its own name."""
    shapes = ["sweep.width=[null]", "sweep.depth=[null]", "sweep.nodes=[4,12]", "report.build=false"]
    done = replaying.run(settings("replay", f"run={recorded}", "strategy=ddtree_adaptive", *shapes), "policies")
    frames = package.load(done["run"])
    chosen = frames.results[frames.results["policy"].notna()]
    assert set(chosen["policy"]) == {"cost_optimal", "caddtree"}
    assert (chosen["status"] == "unsupported").all()
    assert chosen["reason"].str.contains("experiment=adaptive replays it").all()
    fixed = frames.results[(frames.results["strategy"] == "ddtree") & frames.results["policy"].isna()]
    assert (fixed["status"] == "ok").all()
    assert len(pd.read_parquet(done["surface"])) == int((frames.results["status"] == "ok").sum())


def test_a_replay_is_checked_marked_and_reported(settings: Settings, recorded: Path) -> None:
    shapes = ["sweep.width=[2,null]", "sweep.depth=[3,null]", "sweep.nodes=[4,12,24]"]
    asked = [*shapes, "sweep.strategy=[autoregressive,dflash,eagle,ddtree]", "check=true", "replay.check_shapes=4"]
    summary = replaying.run(settings("replay", f"run={recorded}", *asked), "whole")
    assert summary["cells"] == {"ok": 22, "unsupported": summary["cells"]["unsupported"], "failed": 0, "suspect": 0}
    assert summary["cells"]["unsupported"] > 0
    assert summary["check"]["shapes_checked"] == summary["check"]["shapes_equal"] == 4
    assert summary["check"]["rounds_compared"] > 40
    assert "error" not in summary

    frames = package.load(summary["run"])
    results = frames.results[frames.results["status"] == "ok"]
    assert results["replayed"].all()
    assert results[list(SPEED)].isna().all().all()
    trees = results[results["strategy"] == "ddtree"]
    assert (trees["acceptance_length"] >= 1).all()
    assert trees["lossless_share"].isna().all()
    refused = frames.results[frames.results["status"] == "unsupported"]
    assert refused["reason"].str.contains("EAGLE|record.nodes").all()
    requests = frames.requests
    assert requests[["start_s", "ttft_s", "latency_s"]].isna().all().all()
    assert len(requests) == 22 * 4

    page = Path(summary["report"]).read_text(encoding="utf-8")
    assert "> **REPLAYED.** All points were computed from a recording" in page
    rows = [line for line in page.splitlines() if line.startswith(("| ddtree", "| dflash", "| autoregressive"))]
    assert rows
    assert all("(replayed)" in line for line in rows if "unsupported" not in line)

    surface = pd.read_parquet(summary["surface"])
    assert surface["replayed"].all()
    merged = trees.merge(
        surface, on=["strategy", "width", "depth", "nodes", "temperature"], suffixes=("", "_of_surface")
    )
    assert len(merged) == len(trees)
    for name in ("rounds", "drafted", "accepted", "accepted_raw", "output_tokens"):
        assert (merged[name] == merged[f"{name}_of_surface"]).all()


def test_a_large_grid_leaves_the_surface_alone(settings: Settings, recorded: Path) -> None:
    nodes = ",".join(map(str, range(1, 13)))
    asked = ["sweep.width=[1,2,3,null]", "sweep.depth=[1,3,5,7]", f"sweep.nodes=[{nodes}]", "replay.report_points=20"]
    summary = replaying.run(settings("replay", f"run={recorded}", *asked), "large")
    assert summary["report"] is None
    surface = pd.read_parquet(summary["surface"])
    assert len(surface) > 100
    dropped = json.loads((Path(summary["run"]) / "dropped.json").read_text())
    assert len(surface) + len(dropped) == 2 * (4 * 4 * 12 + 4 + 1)
    bars = surface["accept_histogram"].map(sum)
    assert (bars == surface["rounds"]).all()


def test_through_the_door(make_command_line: Any, recorded: Path) -> None:
    shared = make_command_line()
    done = shared.bare(
        "experiment=replay",
        f"run={recorded}",
        f"output_dir={shared.folder}",
        "report.figures=false",
        "sweep.strategy=[ddtree]",
        "sweep.width=[2]",
        "sweep.depth=[7]",
        "sweep.nodes=[8]",
    )
    assert done.code == 0, done.err
    assert Path(done.summary["surface"]).is_file()
    assert "replayed" in done.err
    refused = shared.bare("experiment=replay", f"run={recorded}", "model=tiny", f"output_dir={shared.folder}")
    assert refused.code == 2
    assert refused.errors == ["error: model='tiny': 'tiny_untrained', or left out: it is the recording's"]
