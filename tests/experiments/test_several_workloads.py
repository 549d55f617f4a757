"""Several workloads in one run: one plan, one start of the engine, and the cells of runs of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import ddbench
import ddbench.__main__ as door
from ddbench.__main__ import conf_folder
from ddbench.errors import ConfigError
from experiments.asked import Asked, ChangingRunner
from experiments.contexts import Talk
from experiments.engines.reference import REFERENCE
from experiments.engines.vllm import VLLM
from experiments.estimate import server_starts
from experiments.plan import Facts, make_plan, make_plan_of
from experiments.settings import Settings, WorkloadSettings, load_settings
from experiments.workloads import Workload
from runners.base import CellJob, CellOutcome, EngineFailure, Prompt
from runners.reference import ReferenceRunner

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runners" / "vllm"))

from stand_in import write_stand_in  # noqa: E402

FACTS = Facts("engine 1", {"target": "t", "dflash": "d", "eagle": "e"}, "hash", 8, {})
# Cells of one workload as they were named before a run could hold several.
KNOWN = {
    "workload=shipped": "eb3a5814470b1590",
    "engine=vllm workload=gsm8k": "e8ba2e1aa55f9915",
}


@dataclass(frozen=True)
class Place:
    """A folder with two small sets as files of the group ``workload``."""

    folder: Path

    @property
    def arguments(self) -> list[str]:
        """Those of a small sweep."""
        return [
            *(f"hydra.searchpath=[file://{self.folder}/conf]", "experiment=smoke", "model=tiny_untrained"),
            *("tracking=none", "report.build=false", "report.figures=false", "engine.threads=1"),
            *("load.max_new_tokens=5", "load.warmup_tokens=2", "sweep.batch_size=[1]", "sweep.nodes=[8]"),
            *("sweep.width=[2]", "sweep.depth=[7]", "sweep.strategy=[autoregressive,dflash]"),
        ]

    def run(self, *overrides: str) -> subprocess.CompletedProcess[str]:
        """The command line."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "ddbench", *self.arguments, *overrides]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    def here(self, *overrides: str) -> int:
        """The same in this process; the engine has one of its own."""
        words = [*self.arguments, *overrides]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["ddbench", *words])
            with initialize_config_dir(str(conf_folder()), version_base="1.3"):
                config = compose("config", overrides=words)
            return door._run_job(config, "here")

    def path(self, run_id: str) -> Path:
        return self.folder / "outputs" / "smoke" / run_id


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("several")
    (folder / "conf" / "workload").mkdir(parents=True)
    for name, turns in (("one", [["one a"], ["one b, longer"]]), ("two", [["two a", "and then?"], ["two b"]])):
        rows = [{"id": f"p{i}", "category": "ab"[i], "turns": each} for i, each in enumerate(turns)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}-warmup.jsonl").write_text(json.dumps({"id": "w", "turns": [f"warm {name}"]}) + "\n")
        (folder / "conf" / "workload" / f"{name}.yaml").write_text(
            f"defaults: [file, _self_]\nname: {name}\npath: {name}.jsonl\nwarmup_path: {name}-warmup.jsonl\n"
        )
    return Place(folder)


def answers(run: Path) -> dict[str, list[Any]]:
    """What each cell of a run was answered, by id."""
    frame = ddbench.load(run).requests.sort_values(["cell_id", "prompt_id", "turn"])
    rows = zip(frame.cell_id, frame.dataset, frame.prompt_id, frame.turn, frame.output_token_ids, strict=True)
    found: dict[str, list[Any]] = {}
    for cell_id, dataset, prompt, turn, ids in rows:
        found.setdefault(cell_id, []).append((dataset, prompt, turn, list(ids)))
    return found


def test_one_start_measures_the_cells_of_two_runs(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[ReferenceRunner] = []
    start = ReferenceRunner.start
    monkeypatch.setattr(ReferenceRunner, "start", lambda self: (starts.append(self), start(self))[1])
    assert place.here("workloads=[one,two]", "run_id=both") == 0
    assert len(starts) == 1
    told = capsys.readouterr().err
    assert place.here("workload=one", "run_id=apart") == 0
    assert place.here("workload=two", "run_id=apart") == 0
    assert place.here("workloads=[one,two]", "run_id=apart") == 0
    assert "4 of 4 cells are done already" in capsys.readouterr().err
    assert len(starts) == 3
    found = answers(place.path("both"))
    assert found == answers(place.path("apart"))
    assert Counter(len(rows) for rows in found.values()) == {2: 2, 3: 2}  # the second set has a second turn
    lines = [line.split("] ")[1] for line in told.splitlines() if ": ok in" in line]
    assert [line.partition(": ")[0] for line in lines] == ["one", "one", "two", "two"]

    environment = json.loads((place.path("both") / "environment.json").read_text())
    assert {name: each["source"] for name, each in environment["workloads"].items()} == {
        "one": "one.jsonl",
        "two": "two.jsonl",
    }
    assert environment["workloads"]["two"]["contexts"] is not None
    assert set(environment["prompt_tokens"]) == {"one", "two"}

    assert place.here("experiment=report", f"+run={place.path('both')}") == 0
    results = ddbench.load(place.path("both")).results
    assert Counter(results.dataset) == {"one": 2, "two": 2}
    chains = results[results.strategy == "dflash"]
    assert set(chains.lossless_share) == {1.0}
    assert chains.speedup_vs_autoregressive.notna().all()  # each against the baseline of its own workload
    page = (place.path("both") / "report.md").read_text()
    for name in ("one", "two"):
        assert f"## tiny_untrained · engine reference · local, no GPU · {name} · T = 0" in page
        assert f" workload={name} " in page
    assert "under another" not in page


def test_a_server_for_each_arm_measures_all_workloads(place: Place) -> None:
    """On a stand-in for vLLM: one arm, two blocks, two workloads, two servers."""
    python = place.folder / "bin" / "counted"
    python.parent.mkdir()
    program = write_stand_in(python.parent)
    starts = place.folder / "starts.txt"
    python.write_text(f'#!/bin/sh\ncase "$*" in *--port*) echo start >> {starts};; esac\nexec {program} "$@"\n')
    python.chmod(0o755)
    server = ("engine=vllm", "engine.device=cpu", f"engine.python={python}", "sweep.strategy=[autoregressive]")
    asked = ("workloads=[one,two]", "workload.turns=first", "load.blocks=2", "load.gaps=false", "run_id=served")
    assert place.here(*server, *asked) == 0
    assert len(list(place.path("served").glob("cells/*/requests.parquet"))) == 4
    assert len(starts.read_text().splitlines()) == 2


def settings(*overrides: str) -> Settings:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)
    return load_settings(config, "id")


@pytest.mark.parametrize("overrides", KNOWN)
def test_cells_keep_their_names(overrides: str) -> None:
    each = settings(*overrides.split(" "))
    cells = make_plan_of([(each, FACTS)]).cells
    assert cells == make_plan(each, FACTS).cells
    assert cells[0].cell.cell_id == KNOWN[overrides]


@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_the_plan_of_several_is_theirs_without_further_starts(engine: str) -> None:
    grid = ("sweep.strategy=[autoregressive,dflash]", "sweep.depth=[15]", "sweep.batch_size=[1,8]", "load.blocks=3")
    each = [settings(f"engine={engine}", f"workload={name}", *grid) for name in ("gsm8k", "humaneval", "mbpp")]
    facts = replace(FACTS, engine=VLLM if engine == "vllm" else REFERENCE)
    alone = [make_plan(one, facts).cells for one in each]
    cells = make_plan_of([(one, facts) for one in each]).cells
    assert {item.cell.cell_id for item in cells} == {item.cell.cell_id for plan in alone for item in plan}
    assert len(cells) == sum(map(len, alone))
    starts = [
        sum(server_starts([item.cell for item in plan], facts.engine.server_per_arm)) for plan in (alone[0], cells)
    ]
    assert starts == [6 if engine == "vllm" else 3] * 2  # two arms, three blocks
    for plan, one in zip(alone, each, strict=True):  # and in the order that they have there
        assert [item for item in cells if item.cell.workload == one.workload.name] == list(plan)


def test_several_drafters_have_the_workloads_inside() -> None:
    each = [settings("experiment=checkpoint_compare", "drafters={a: /a, b: /b}", f"workload={name}") for name in NAMES]
    cells = [item.cell for item in make_plan_of([(one, FACTS) for one in each]).cells]
    drafters = [cell.arm.drafter for cell in cells if cell.arm.drafter is not None and cell.block == 0]
    assert drafters == sorted(drafters)
    assert {cell.workload for cell in cells if cell.arm.drafter == "/b"} == set(NAMES)


NAMES = ("gsm8k", "mbpp")


def test_two_of_one_name_are_refused() -> None:
    base = settings()
    twice = {"a": base.workload, "b": base.workload}
    with pytest.raises(ConfigError, match="names of their own"):
        replace(base, workloads=twice)
    with pytest.raises(ConfigError, match="at least one workload"):
        replace(base, workloads={})
    assert replace(base, workloads={"a": base.workload}).workloads is not None
    assert isinstance(base.workload, WorkloadSettings)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["workloads=[one,nope]"], "workloads='nope': one of aime, alpaca, file"),
        (["workloads=[one,two]", "workload.path=x"], "workload.path='x': left out beside workloads"),
        (["workloads=[one,two]", "workload=two"], "workload='two': left out: workloads names all"),
        (["workload=[one,two]"], "workload='[one,two]': one name; several are measured with workloads=[one,two]"),
        (["workloads=[one,two]", "experiment=aa_check"], "workloads=['one', 'two']: null: one arm is measured"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    place: Place, given: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.here(*given) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"error: {line}")


def test_the_command_line_lists_the_cells_of_all(place: Place) -> None:
    done = place.run("workloads=[two,one]", "dry_run=true", "sweep.strategy=[autoregressive]", "load.blocks=2")
    assert done.returncode == 0, done.stderr
    cells = [line.partition("GiB  ")[2] for line in done.stdout.splitlines() if "autoregressive" in line]
    plain = "autoregressive, batch 1"
    assert cells == [f"two: {plain}", f"one: {plain}", f"two: {plain}, block 1", f"one: {plain}, block 1"]
    assert "with 2 starts of the engine" in done.stderr


class Engine:
    """Notes what is asked of it; the thing under test is when."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails = False

    def start(self) -> dict[str, Any]:
        self.log.append("start")
        return {}

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        assert warmup is not None
        self.log.append(f"ask {prompts[0].id}, warm {warmup[0].id}")
        if self.fails:
            raise EngineFailure("gone")
        return {}

    def run_cell(self, job: CellJob, on_progress: Any) -> CellOutcome:
        self.log.append(f"cell {job.cell.workload}")
        return CellOutcome("ok", None)

    def texts(self, token_ids: Any) -> list[str]:
        return []

    def stop(self) -> None:
        self.log.append("stop")


def test_the_engine_is_asked_when_the_workload_changes_and_again_after_a_failure(tmp_path: Path) -> None:
    def asked(name: str) -> Asked:
        prompts, warmup = (Prompt(name, name, "c", ("text",)),), (Prompt(f"warm-{name}", name, "c", ("warm",)),)
        return Asked(settings(f"workload={name}"), Workload(prompts, warmup, {}), Talk(prompts, {}))

    each = [asked(name) for name in NAMES]
    jobs = {
        one.label: CellJob(make_plan(one.settings, one.talk.told(FACTS)).cells[0].cell, tmp_path, 1) for one in each
    }
    engine = Engine()
    runner = ChangingRunner(engine, each, FACTS)
    for name in ("gsm8k", "gsm8k", "mbpp"):
        runner.run_cell(jobs[name], None)
    first, other = "ask gsm8k, warm warm-gsm8k", "ask mbpp, warm warm-mbpp"
    assert engine.log == [first, "cell gsm8k", "cell gsm8k", other, "cell mbpp"]
    engine.log, engine.fails = [], True
    with pytest.raises(EngineFailure):
        runner.run_cell(jobs["gsm8k"], None)
    engine.fails = False
    runner.start()
    runner.run_cell(jobs["mbpp"], None)  # what the engine was asked last is not known
    assert engine.log == [first, "start", other, "cell mbpp"]
