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
from ddbench.__main__ import conf_folder
from ddbench.errors import ConfigError
from experiments.engines.reference import REFERENCE
from experiments.engines.vllm import VLLM
from experiments.estimate import server_starts
from experiments.plan import Facts, make_plan, make_plan_of
from experiments.settings import Settings, WorkloadSettings, load_settings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runners" / "vllm"))

from stand_in import write_stand_in  # noqa: E402

FACTS = Facts("engine 1", {"target": "t", "dflash": "d", "eagle": "e"}, "hash", 8, {})
# Cells of one workload as they were named before a run could hold several.
KNOWN = {
    "workload=shipped": "eb3a5814470b1590",
    "engine=vllm workload=gsm8k": "e8ba2e1aa55f9915",
}

# The command line, with a line in starts.txt for each start of the reference engine.
COUNTED = """
import sys
from runners.reference import ReferenceRunner

start = ReferenceRunner.start

def counted(self):
    with open("starts.txt", "a") as file:
        file.write("start\\n")
    return start(self)

if __name__ == "__main__":
    ReferenceRunner.start = counted
    from ddbench.__main__ import main
    main()
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def cells(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(self.out.strip().splitlines()[-1])["cells"]
        return counts


@dataclass(frozen=True)
class Place:
    """A folder with two small sets as files of the group ``workload``."""

    folder: Path

    def run(self, *overrides: str, multirun: bool = False) -> Ended:
        command = [
            *(sys.executable, "counted.py", *(["--multirun"] if multirun else [])),
            *(f"hydra.searchpath=[file://{self.folder}/conf]", "experiment=smoke", "model=tiny_untrained"),
            *("tracking=none", "report.build=false", "report.figures=false", "engine.threads=1"),
            *("load.max_new_tokens=5", "load.warmup_tokens=2", "sweep.batch_size=[1]", "sweep.nodes=[8]"),
            *("sweep.width=[2]", "sweep.depth=[7]", "sweep.strategy=[autoregressive,dflash]", *overrides),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def path(self, run_id: str) -> Path:
        return self.folder / "outputs" / "smoke" / run_id

    def starts(self) -> int:
        """How often the engine was started since the last question."""
        file = self.folder / "starts.txt"
        count = len(file.read_text().splitlines()) if file.exists() else 0
        file.unlink(missing_ok=True)
        return count


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("several")
    (folder / "counted.py").write_text(COUNTED)
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


def test_one_start_measures_the_cells_of_two_runs(place: Place) -> None:
    apart = place.run("workload=one,two", "run_id=apart", multirun=True)
    assert apart.code == 0, apart.err
    assert place.starts() == 2
    again = place.run("workloads=[one,two]", "run_id=apart")
    assert again.code == 0, again.err
    assert "4 of 4 cells are done already" in again.err
    assert place.starts() == 0
    both = place.run("workloads=[one,two]", "run_id=both", "report.build=true")
    assert both.code == 0, both.err
    assert place.starts() == 1
    assert both.cells == {"ok": 4, "unsupported": 0, "failed": 0, "suspect": 0}
    found = answers(place.path("both"))
    assert found == answers(place.path("apart"))
    assert Counter(len(rows) for rows in found.values()) == {2: 2, 3: 2}  # the second set has a second turn
    lines = [line.split("] ")[1] for line in both.err.splitlines() if ": ok in" in line]
    assert [line.partition(": ")[0] for line in lines] == ["one", "one", "two", "two"]

    environment = json.loads((place.path("both") / "environment.json").read_text())
    assert {name: each["source"] for name, each in environment["workloads"].items()} == {
        "one": "one.jsonl",
        "two": "two.jsonl",
    }
    assert environment["workloads"]["two"]["contexts"] is not None
    assert set(environment["prompt_tokens"]) == {"one", "two"}

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
    done = place.run("workloads=[one,two]", "workload.turns=first", "load.blocks=2", "load.gaps=false", *server)
    assert done.code == 0, done.err
    assert done.cells["ok"] == 4
    assert place.starts() == 2


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
    ],
)
def test_what_cannot_be_is_refused_in_a_line(place: Place, given: list[str], line: str) -> None:
    done = place.run(*given)
    assert done.code == 2
    (told,) = done.err.splitlines()
    assert told.startswith(f"error: {line}")
    assert not done.out
