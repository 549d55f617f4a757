"""``experiment=record engine=sglang`` and its replay, against the stand-in of tests/runners/sglang: real servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runners" / "sglang"))

from engines import write_stand_in

from ddbench.errors import ConfigError
from ddbench.replay import load_trace
from experiments.record import run as recording
from experiments.replay import run as replaying

Settings = Callable[..., dict[str, Any]]
SHORT = ("load.max_new_tokens=14", "workload.max_prompts=3", "record.nodes=12", "record.batch_size=3")
KEPT = ("model=", "tracking=", "workload", "output_dir=", "report.")
# A stand-in whose servers take their time to end: one that is told to writes its number, and ends two seconds later.
SLOW = """#!{python}
import os, sys
CODE = '''
import os, pathlib, runpy, signal, time
def end(*_):
    pathlib.Path({told!r}).write_text(str(os.getpid()))
    time.sleep(2)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
'''
served = sys.argv[1:3] == ["-m", "sglang.launch_server"]
os.execv({engine!r}, [{engine!r}, *(["-c", CODE, *sys.argv[3:]] if served else sys.argv[1:])])
"""
ENGINE = (
    "engine=sglang",
    "engine.flags.context_length=512",
    "engine.start_timeout_s=120",
    "host.share_gpus=true",  # stand-ins of other tests run beside these
)


@pytest.fixture(scope="module")
def settings(make_command_line: Any) -> Settings:
    """The composed configuration of a verb on three made-up prompts."""
    return make_command_line().composed(*KEPT)


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


def test_a_signal_while_the_engine_is_stopped_leaves_a_whole_recording(make_command_line: Any, tmp_path: Path) -> None:
    line, slow, told = make_command_line(), tmp_path / "python", tmp_path / "told"
    (tmp_path / "engine").mkdir()
    slow.write_text(SLOW.format(python=sys.executable, engine=write_stand_in(tmp_path / "engine"), told=str(told)))
    slow.chmod(0o755)
    own = [argument for argument in line.arguments if argument.startswith(KEPT)]
    command = ["experiment=record", *own, *ENGINE, *SHORT, f"engine.python={slow}", "run_id=ending"]
    with subprocess.Popen(
        [sys.executable, "-m", "ddbench", *command],
        cwd=line.folder,
        env=line.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not (told.exists() and told.read_text()) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 143, json.loads(out.splitlines()[-1]).get("error", err)
    summary = json.loads(out.splitlines()[-1])
    assert (summary["interrupted"], summary["traces"]) == ("SIGTERM", 3)
    assert len(list((Path(summary["run"]) / "traces").iterdir())) == 3
    assert "SIGTERM: the engine is stopped, then the recording ends; once more to stop now" in err
    assert "SIGTERM: the engine was stopped; the same command with run_id=ending does the rest" in err
    assert not psutil.pid_exists(int(told.read_text()))
