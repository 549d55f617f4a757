"""``experiment=record engine=sglang`` and its replay, against the stand-in of tests/runners/sglang: real servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runners" / "sglang"))

from engines import write_stand_in

from ddbench.errors import ConfigError
from ddbench.replay import load_trace
from experiments.record import run as recording
from experiments.replay import run as replaying

Settings = Callable[..., dict[str, Any]]
SHORT = ("load.max_new_tokens=14", "workload.max_prompts=3", "record.nodes=12", "record.batch_size=3")
ENGINE = (
    "engine=sglang",
    "engine.flags.context_length=512",
    "engine.start_timeout_s=120",
)


@pytest.fixture(scope="module")
def settings(make_command_line: Any) -> Settings:
    """The composed configuration of a verb on three made-up prompts."""
    return make_command_line().composed("model=", "tracking=", "workload", "output_dir=", "report.")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return (*ENGINE, *SHORT, f"engine.python={write_stand_in(tmp_path_factory.mktemp('engine'))}")


@pytest.fixture(scope="module")
def recorded(settings: Settings, engine: tuple[str, ...]) -> Path:
    summary = recording.run(settings("record", *engine), "served")
    assert "error" not in summary, summary["error"]
    assert summary["traces"] == 3
    return Path(summary["run"])


def test_traces_are_those_of_the_reference_engine(settings: Settings, recorded: Path) -> None:
    """The stand-in drafts with it, so that the same recording must come out at the other end."""
    other = recording.run(settings("record", *SHORT), "reference")
    ours = {path.name: load_trace(path) for path in (recorded / "traces").iterdir()}
    theirs = {path.name: load_trace(path) for path in (Path(other["run"]) / "traces").iterdir()}
    assert ours.keys() == theirs.keys()
    for name, trace in ours.items():
        for field in ("output", "tail", "ranks"):
            assert getattr(trace, field).tolist() == getattr(theirs[name], field).tolist(), field
        assert trace.disagreements is None
        assert trace.key == theirs[name].key
    facts = json.loads((recorded / "record.json").read_text())
    assert facts["facts"]["engine_version"] == "sglang 0.5.17 torch 2.11.0"
    assert facts["nodes"] == 16  # the most that sweep.nodes asks for


def test_a_replay_is_held_against_live_rounds(settings: Settings, recorded: Path) -> None:
    shapes = ("sweep.strategy=[dflash,ddtree]", "sweep.width=[2,null]", "sweep.depth=[3,7]", "sweep.nodes=[4,12]")
    config = settings("replay", f"run={recorded}", "report.figures=false", "check=true", *shapes)
    summary = replaying.run(config, "held")
    assert "error" not in summary, summary["error"]
    check = summary["check"]
    assert check["shapes_checked"] == check["shapes_equal"] == 10
    assert check["rounds_by_own_scores"] == check["rounds_compared"] > 50
    stored = json.loads((Path(summary["run"]) / "check.json").read_text())
    assert {shape["strategy"] for shape in stored["shapes"]} == {"dflash", "ddtree"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("sweep.temperature=[0.5]", "sweep.temperature=[0.5]: [0.0] with engine=sglang"),
        ("record.by=ddtree", "record.by='ddtree': autoregressive with engine=sglang"),
        ("engine.url=http://127.0.0.1:1", "engine.url='http://127.0.0.1:1'"),
        ("load.max_new_tokens=456", "tokens more within the context of"),
    ],
)
def test_what_sglang_cannot_record(settings: Settings, engine: tuple[str, ...], asked: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recording.run(settings("record", *engine, asked), "bad")
    assert says in str(caught.value)
