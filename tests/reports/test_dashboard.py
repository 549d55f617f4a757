"""The dashboard and the sweep file of W&B, as far as they go without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import wandb_dashboard
from reports.tracking import cell_run

dashboard = pytest.importorskip("reports.tracking.dashboard")
pytest.importorskip("wandb_workspaces")

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ROOT / "examples" / "wandb_sweep.yaml"


def spec(run_id: str | None) -> dict[str, Any]:
    """What would be sent."""
    model = dashboard.workspace("team", "ddbench", run_id)._to_model()
    data: dict[str, Any] = json.loads(model.model_dump_json(by_alias=True))
    return data


def panels_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    rows = data["spec"]["section"]["panelBankConfig"]["sections"]
    return [panel for row in rows for panel in row["panels"]]


def test_curves_are_of_metrics_that_the_cells_log() -> None:
    lines = [panel["config"] for panel in panels_of(spec(None)) if panel["viewType"] == "Run History Line Plot"]
    assert {line["xAxis"] for line in lines} == set(cell_run.AXES)
    logged = {f"by_{axis}/{name}" for axis in cell_run.AXES for name in cell_run.CURVES}
    for line in lines:
        assert set(line["metrics"]) <= logged
        assert line["metrics"][0].startswith(f"by_{line['xAxis']}/")
        assert line["groupBy"] == "strategy.value"
        assert line["chartTitle"]
        assert line["yAxisTitle"]


def test_every_section_has_panels() -> None:
    kinds = [panel["viewType"] for panel in panels_of(spec(None))]
    assert len(kinds) == sum(len(each.panels) for each in dashboard.sections()) == 12
    assert {"Scatter Plot", "Parallel Coordinates Plot", "Media Browser"} <= set(kinds)


def test_one_run_folder_alone() -> None:
    everything, one = spec(None), spec("20260101-000000")
    assert "20260101-000000" not in json.dumps(everything["spec"])
    assert "20260101-000000" in json.dumps(one["spec"]["section"]["runSets"])


def test_the_report_has_the_same_panels() -> None:
    blocks = dashboard.page("team", "ddbench", "night").blocks
    grids = [block for block in blocks if type(block).__name__ == "PanelGrid"]
    assert [len(grid.panels) for grid in grids] == [len(each.panels) for each in dashboard.sections()]
    assert all("night" in str(grid.runsets[0].filters) for grid in grids)


@pytest.mark.parametrize("kind", ["workspace", "report"])
def test_it_is_built_without_being_sent(kind: str) -> None:
    config = {"entity": "team", "project": "p", "kind": kind, "run_id": None, "save": False}
    made = wandb_dashboard.run(config, "now")
    assert made["dashboard"] is None
    assert sum(made["panels"].values()) == 12


def test_an_entity_is_required() -> None:
    config = {"entity": None, "project": "p", "kind": "workspace", "run_id": None, "save": False}
    with pytest.raises(ValueError, match=r"entity=None: the W&B user or team"):
        wandb_dashboard.run(config, "now")


def commands() -> list[list[str]]:
    """What the agent would run for each combination, put together by W&B's own code where it is a function."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    sweep = yaml.safe_load(SWEEP.read_text())
    names = list(sweep["parameters"])
    choices = [each.get("values") or [each["value"]] for each in sweep["parameters"].values()]
    found = []
    for values in product(*choices):
        arguments = {name: {"value": value} for name, value in zip(names, values, strict=True)}
        macros = {**create_sweep_command_args({"args": arguments}), "env": ["/usr/bin/env"]}
        parts = create_sweep_command(list(sweep["command"]))
        found.append([word for part in parts for word in (macros[part[2:-1]] if part.startswith("${") else [part])])
    return found


def test_the_sweep_maximises_what_a_trial_logs() -> None:
    from reports.tracking.report_run import BEST

    sweep = yaml.safe_load(SWEEP.read_text())
    assert sweep["metric"]["name"].removeprefix("best/") in BEST
    assert (ROOT / sweep["program"]).is_file()


def test_every_trial_of_the_sweep_is_a_valid_configuration() -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from experiments.settings import load_settings

    tried = commands()
    assert len(tried) == 36
    words = {word for command in tried for word in command}
    tried = tried[::7]  # six, with every value of every parameter among them
    assert {word for command in tried for word in command} == words
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for command in tried:
            overrides = command[command.index("ddbench") + 1 :]
            data: Any = OmegaConf.to_container(compose("config", overrides=overrides), resolve=True)
            settings = load_settings(data, "now")
            assert [len(axis) for axis in (settings.sweep.width, settings.sweep.depth, settings.sweep.nodes)] == [1] * 3
            assert (settings.tracking.mode, settings.tracking.cells) == ("online", False)


def test_a_trial_of_the_sweep_is_accepted(tmp_path: Path) -> None:
    command = commands()[0]
    assert command[:4] == ["/usr/bin/env", "python", "-m", "ddbench"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*command, "dry_run=true", f"output_dir={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["planned"] == 2
