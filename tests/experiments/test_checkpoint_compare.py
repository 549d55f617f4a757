"""Checkpoints compared for real, on the tiny pair; and the notebook of ``docs/pandas.md`` on what that run stored."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from ddbench.errors import ConfigError
from experiments.drafters import DrafterRunner, kinds, resolve_each, variants
from experiments.plan import Facts, make_plan
from experiments.settings import Settings, load_settings
from reports.aggregate import analyse
from reports.frames import read_run, records
from reports.sections.launch import measure
from runners.base import CellJob, CellOutcome, EngineFailure, Prompt

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "ddbench" / "assets" / "dflash"
ROLES = ("target", "dflash")


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The shipped drafter, one with noise on its weights, and a copy."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("noisy", "copy"):
        shutil.copytree(SHIPPED, folder / name)
    generator = torch.Generator().manual_seed(1)
    weights = load_file(SHIPPED / "model.safetensors")
    for name, values in weights.items():
        if values.dim() > 1:
            noise = torch.randn(values.shape, generator=generator) * values.float().std()
            weights[name] = (values + 0.6 * noise).to(values.dtype)
    save_file(weights, folder / "noisy" / "model.safetensors", metadata={"format": "pt"})
    return {"shipped": "asset://dflash", "noisy": str(folder / "noisy"), "copy": str(folder / "copy")}


def settings(drafters: dict[str, str], *overrides: str) -> Settings:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    given = ", ".join(f"{name}: '{source}'" for name, source in drafters.items())
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=["experiment=checkpoint_compare", f"drafters={{{given}}}", *overrides])
    data: Any = OmegaConf.to_container(config, resolve=True)
    return load_settings(data, "now")


def facts(each: Settings) -> Facts:
    revisions = resolve_each(each, ROLES)[1]
    return Facts("made", {"target": "t"}, "hash", 4, {}, drafter_revisions=revisions)


def test_a_copy_has_the_same_hash(drafters: dict[str, str]) -> None:
    files, revisions = resolve_each(settings(drafters), ROLES)
    assert revisions[drafters["shipped"]] == revisions[drafters["copy"]] != revisions[drafters["noisy"]]
    assert all(str(revision).startswith("sha256:") for revision in revisions.values())
    assert [files[source].dflash for source in drafters.values()][1:] == [drafters["noisy"], drafters["copy"]]


def test_the_plan_has_the_autoregressive_arm_once_and_blocks_in_turn(drafters: dict[str, str]) -> None:
    each = settings(drafters, "load.blocks=2")
    plan = make_plan(each, facts(each))
    cells = [planned.cell for planned in plan.cells]
    assert len(cells) == len({cell.cell_id for cell in cells}) == 2 * (1 + 2 * len(drafters))
    for block in (0, 1):
        arms = [cell.arm for cell in cells if cell.block == block]
        assert [arm.strategy for arm in arms].count("autoregressive") == 1
        order = list(dict.fromkeys(arm.drafter for arm in arms if arm.drafter))
        assert order == list(drafters.values())[:: 1 if block == 0 else -1]
    hashes = {cell.arm.drafter: cell.arm.drafter_revision for cell in cells if cell.arm.drafter}
    assert hashes == resolve_each(each, ROLES)[1]


def test_one_drafter_is_a_sweep_as_before(drafters: dict[str, str]) -> None:
    assert variants(settings({**drafters})).keys() == drafters.keys()
    assert all(not each.drafters for each in variants(settings(drafters)).values())


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["drafters={}"], "drafters={}: some of them"),
        (["drafters=null"], "drafters=None: some of them"),
        (["drafters={a: asset://dflash, b: asset://dflash}"], "each from a place of its own"),
        (["drafters={a: asset://dflash, b: /nowhere}"], "drafters.b='/nowhere': a folder with a checkpoint"),
        (["drafters={a: asset://dflash, b: 3}"], "drafters.b=3: a folder or a Hugging Face id"),
        (["drafters={a: x, b: y}", "role=eagle"], "one that uses the eagle drafter: eagle"),
        (["drafters={a: x, b: y}", "role=target"], "role='target': one of dflash, eagle"),
    ],
)
def test_what_cannot_be_is_one_clear_line(overrides: list[str], line: str, tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from experiments import checkpoint_compare

    given = ["experiment=checkpoint_compare", f"output_dir={tmp_path}", *overrides]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        data: Any = OmegaConf.to_container(compose("config", overrides=given), resolve=True)
    with pytest.raises(ConfigError) as refused:
        checkpoint_compare.run(data, "now")
    assert line in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def compared(ddbench: Any, drafters: dict[str, str]) -> Path:
    """A real run with the shipped drafter and the noisy one."""
    ended = ddbench.bare(
        "experiment=checkpoint_compare",
        f"drafters={{shipped: '{drafters['shipped']}', noisy: '{drafters['noisy']}'}}",
        "tracking=none",
        "report.figures=false",
        "engine.threads=1",
        "run_id=real",
        f"output_dir={ddbench.folder / 'out'}",
        "sweep.nodes=[8]",
        "workload.max_prompts=8",
        "load.max_new_tokens=16",
        "load.warmup_tokens=2",
    )
    assert ended.code == 0, ended.err
    assert ended.summary["cells"] == {"ok": 5, "unsupported": 0, "failed": 0, "suspect": 0}
    return Path(ended.summary["run"])


def test_the_noisy_drafter_is_worse(compared: Path, drafters: dict[str, str]) -> None:
    text = (compared / "report.md").read_text()
    section = text[text.index("## Drafter checkpoints") : text.index("\n## Results")]
    rows = [line for line in section.splitlines() if "| noisy " in line]
    assert [row.count("| worse ") for row in rows if "| dflash d15 " in row or "| ddtree w" in row] == [1, 1]
    config = yaml.safe_load((compared / "config.yaml").read_text())
    assert list(config["drafters"]) == ["shipped", "noisy"]


def test_the_winner_is_measured_alone(compared: Path, drafters: dict[str, str], ddbench: Any) -> None:
    """The command of an arm, as the page gives it, is a plan of that arm with its own drafter."""
    stored = read_run(compared)
    rows = records(analyse(stored).frame)[:3]
    assert len({row["drafter"] for row in rows}) == 3  # none, and each
    for row in rows:
        words = shlex.split(measure(stored, row))
        assert words[:3] == ["python", "-m", "ddbench"]
        ended = ddbench.bare(*words[3:], "dry_run=true", f"output_dir={ddbench.folder / 'again'}")
        assert ended.code == 0, ended.err
        assert ended.summary["planned"] == 1
        source = row["drafter"] or drafters["shipped"]
        (given,) = [word for word in words if word.startswith("drafters=")]
        assert source in given
        assert sum(each in given for each in drafters.values()) == 1
    answer = (compared / "report.md").read_text().partition("## The answer")[2].partition("\n## ")[0]
    assert re.search(r"(autoregressive|with (shipped|noisy)) was fastest", answer)
    assert re.search(r"autoregressive, the winner|(shipped|noisy), the winner", answer)


def test_the_notebook_of_the_docs_runs(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "pandas.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 10
    assert '"outputs/ddtree_sweep/<run_id>"' in blocks[0]
    mpl.use("Agg")
    names: dict[str, Any] = {}
    for block in blocks:
        code = block.replace("outputs/ddtree_sweep/<run_id>", str(compared))
        exec(compile(code, "docs/pandas.md", "exec"), names)
    assert len(names["fastest"]) == 3
    assert len(names["by_hand"]) == 4
    assert names["mine"]["acceptance_length"].notna().all()
    assert len(names["at_least"]) == 4
    for frame in re.findall(r"^\| `run\.(\w+)` \|", text, re.MULTILINE):
        assert hasattr(names["run"], frame)


class Engine:
    """A runner that only notes what is asked of it; the thing under test is which one is asked, and when."""

    def __init__(self, name: str, log: list[str], failure: Exception | None = None) -> None:
        self.name, self.log, self.failure = name, log, failure

    def start(self) -> dict[str, Any]:
        self.log.append(f"start {self.name}")
        if self.failure is not None:
            raise self.failure
        return {"up": self.name}

    def run_cell(self, job: CellJob, on_progress: Any) -> CellOutcome:
        self.log.append(f"cell {self.name}")
        return CellOutcome("ok", None)

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        self.log.append(f"ask {self.name}")
        return {"asked": len(prompts)}

    def texts(self, token_ids: Any) -> list[str]:
        return [self.name for _ in token_ids]

    def stop(self) -> None:
        self.log.append(f"stop {self.name}")


def test_engines_change_with_the_drafter(drafters: dict[str, str], tmp_path: Path) -> None:
    each = settings(drafters)
    cells = [planned.cell for planned in make_plan(each, facts(each)).cells]
    log: list[str] = []
    names = dict(zip(drafters.values(), drafters, strict=True))
    runner = DrafterRunner({source: Engine(names[source], log) for source in names}, kinds(each))
    assert runner.start() == {"up": "shipped"}
    assert [line for line in log if line.startswith("start")] == ["start shipped"]  # all have one config
    assert runner.ask(()) == {"asked": 0}
    for cell in cells:
        runner.run_cell(CellJob(cell, tmp_path, 1), lambda done, total: None)
    runner.stop()
    assert log[-1] == "stop copy"
    done = [line for line in log if not line.startswith("stop")]
    assert done == [
        "start shipped",
        "ask shipped",
        *["cell shipped"] * 3,  # the autoregressive one among them
        *["start noisy", "ask noisy", "cell noisy", "cell noisy"],
        *["start copy", "ask copy", "cell copy", "cell copy"],
    ]


def test_a_drafter_of_another_kind_is_tried_before_anything_is_measured(drafters: dict[str, str]) -> None:
    log: list[str] = []
    wrong = Engine("b", log, EngineFailure("it did not come up"))
    runner = DrafterRunner({"a": Engine("a", log), "b": wrong}, {"a": "one config", "b": "another"})
    with pytest.raises(EngineFailure, match="drafter b: it did not come up"):
        runner.start()
    assert "start a" not in log
