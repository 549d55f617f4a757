"""``experiment=predict`` on random models: the surface against its formula, marks, refusals, and a check by a sweep."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from ddbench.cost import Point, load_cost
from ddbench.cost.file import save_cost
from ddbench.errors import ConfigError
from ddbench.metrics import Counts, tokens_per_s_per_user
from ddbench.records import Cell
from ddbench.replay import TraceSet
from experiments import report
from experiments.predict.check import check
from experiments.predict.run import run
from experiments.record import run as recording
from experiments.record.folder import RecordFolder
from experiments.settings import ModelSettings
from experiments.step_cost.fingerprint import fingerprint
from experiments.typed import build

Make = Callable[..., dict[str, Any]]
SHAPES = ("sweep.width=[null]", "sweep.depth=[7]", "sweep.nodes=[3,8]")


@pytest.fixture(scope="module")
def make(ddbench: Any) -> Make:
    return ddbench.composed("model=", "tracking=", "engine.", "workload", "output_dir=", "load.max_new_tokens=")


@pytest.fixture(scope="module")
def recorded(make: Make) -> Path:
    return Path(recording.run(make("record", "record.nodes=8"), "made")["run"])


@pytest.fixture(scope="module")
def swept(ddbench: Any) -> Path:
    done = ddbench.run(
        "run_id=swept", "strategy=ddtree", *SHAPES, "sweep.batch_size=[1,2]", "report.build=false", "load.gaps=false"
    )
    assert done.code == 0, done.err
    return Path(ddbench.path("swept"))


def ms(strategy: str, width: int, batch: int, context: float) -> float:
    """The planted cost, linear."""
    base = {"autoregressive": 2.0, "dflash": 4.0, "ddtree": 4.5}[strategy]
    return base + 0.05 * width * batch + 0.01 * batch * context


def planted(place: Path, setup: dict[str, str]) -> Path:
    points: dict[str, list[Point]] = {
        kind: [
            Point(w, b, c, ms(kind, w, b, c), 0.1, 999.0, 3) for w in widths for b in (1, 2, 4) for c in (1.0, 200.0)
        ]
        for kind, widths in (("autoregressive", (1,)), ("dflash", (4, 8)), ("ddtree", (2, 16)))
    }
    save_cost(place, setup, points, {"how": "planted", "accepted": "pinned at 0"})
    return place


@pytest.fixture(scope="module")
def setup_of_sweep(swept: Path, make: Make) -> dict[str, str]:
    """The fingerprint of a cost that is of the sweep's setup."""
    cell = next(path for path in sorted((swept / "cells").iterdir()) if (path / "status.json").exists())
    status = json.loads((cell / "status.json").read_text())
    arm = Cell.from_dict(OmegaConf.to_container(OmegaConf.load(cell / "cell.yaml"))).arm  # type: ignore[arg-type]
    cpu = json.loads((swept / "environment.json").read_text())["cpu"]
    model = build(ModelSettings, make("predict")["model"], "model")
    return fingerprint("reference", arm.engine_version, status["build"], None, cpu, model, arm.flags)


@pytest.fixture(scope="module")
def cost(tmp_path_factory: pytest.TempPathFactory, setup_of_sweep: dict[str, str]) -> Path:
    return planted(tmp_path_factory.mktemp("cost") / "cost.json", setup_of_sweep)


@pytest.fixture(scope="module")
def predicted(make: Make, recorded: Path, cost: Path, swept: Path) -> dict[str, Any]:
    asked = (*SHAPES, "sweep.batch_size=[1,2,64]", f"run={recorded}", f"cost={cost}", f"check={swept}")
    return run(make("predict", *asked), "made")


def test_the_surface_is_acceptance_over_round_time(predicted: dict[str, Any], recorded: Path) -> None:
    frame = pd.read_parquet(predicted["surface"])
    assert frame["predicted"].all()
    told = frame[frame["round_ms"].notna()]
    assert set(told["strategy"]) == {"autoregressive", "dflash", "ddtree"}
    for _, row in told.iterrows():
        cost_ms = ms(row["strategy"], row["verify_width"], row["batch_size"], row["context"])
        assert row["round_ms"] == pytest.approx(cost_ms, rel=2e-3)
        per_user = 1e3 * row["acceptance_length"] / cost_ms
        assert row["tokens_per_s_per_user"] == pytest.approx(per_user, rel=2e-3)
        assert row["tokens_per_s"] == pytest.approx(per_user * row["batch_size"], rel=2e-3)
    plain = told[told["strategy"] == "autoregressive"].set_index("batch_size")
    assert (plain["speedup_vs_autoregressive"] == 1.0).all()
    assert (plain["acceptance_length"] == 1.0).all()
    tree = told[(told["strategy"] == "ddtree") & (told["nodes"] == 8)].set_index("batch_size")
    ratio = tree.loc[2, "tokens_per_s_per_user"] / plain.loc[2, "tokens_per_s_per_user"]
    assert tree.loc[2, "speedup_vs_autoregressive"] == pytest.approx(ratio)


def test_another_model_than_the_recordings_is_not_predicted(
    make: Make, recorded: Path, cost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    monkeypatch.setattr("sys.argv", ["ddbench", "model=tiny"])
    with pytest.raises(ConfigError, match=r"^model='tiny': 'tiny_untrained', or left out"):
        run(make("predict", f"run={recorded}", f"cost={cost}", "model=tiny"), "other")


def test_points_outside_have_no_numbers_unless_asked_for(
    predicted: dict[str, Any], make: Make, recorded: Path, cost: Path
) -> None:
    frame = pd.read_parquet(predicted["surface"])
    far = frame[frame["batch_size"] == 64]
    assert far["extrapolated"].all()
    assert far["round_ms"].isna().all()
    assert predicted["without_numbers"] == len(far)
    asked = (*SHAPES, "sweep.batch_size=[64]", f"run={recorded}", f"cost={cost}", "predict.extrapolate=true")
    bold = run(make("predict", *asked), "bold")
    assert pd.read_parquet(bold["surface"])["round_ms"].notna().all()
    assert bold["without_numbers"] == 0
    told = json.loads((Path(bold["run"]) / "predicted.json").read_text())
    assert all(each["extrapolated"] is True for each in told["best"])
    assert all(each["extrapolated"] == [64] for each in told["pays"])
    kept = json.loads((Path(predicted["run"]) / "predicted.json").read_text())
    assert not any(each["extrapolated"] for each in [*kept["best"], *kept["pays"]])
    page = Path(bold["report"]).read_text()
    rows = [line.split("|") for line in _section(page, "## Best shape").splitlines()]
    assert [row[-2].strip() for row in rows if row[1:2] and row[1].strip() == "64"] == ["yes"]
    assert "yes" not in _section(Path(predicted["report"]).read_text(), "## Best shape")


def test_the_check_is_the_error_against_the_measured_cells(predicted: dict[str, Any], swept: Path) -> None:
    """Measured speeds from the cells' own files; the closed loop of one request at a time worked out by its sum."""
    told = json.loads((Path(predicted["run"]) / "predicted.json").read_text())["check"]
    cells = {}
    for folder in (swept / "cells").iterdir():
        cell = Cell.from_dict(OmegaConf.to_container(OmegaConf.load(folder / "cell.yaml")))  # type: ignore[arg-type]
        cells[cell.arm.strategy, cell.arm.nodes, cell.batch_size] = pd.read_parquet(folder / "requests.parquet")
    assert len(told["points"]) == len(cells) == 8
    for each in told["points"]:
        rows = cells[each["strategy"], each["nodes"], each["batch_size"]]
        measured = tokens_per_s_per_user(Counts.from_columns(rows))
        assert each["measured"] == pytest.approx(measured)
        assert each["loop_error"] == pytest.approx(each["predicted"] / each["measured"] - 1)
        assert each["same_rounds"] == 1.0
        if each["batch_size"] > 1 or each["strategy"] == "autoregressive":
            continue
        width = 8 if each["strategy"] == "dflash" else each["nodes"] + 1
        growth = (rows["output_tokens"] - 1) / rows["rounds"].clip(lower=1)
        context = rows["prompt_tokens"] + growth * (rows["rounds"] - 1) / 2
        taken = sum(n * ms(each["strategy"], width, 1, c) for n, c in zip(rows["rounds"], context, strict=True))
        alone = 1e3 * (rows["output_tokens"] - 1).sum() / taken
        assert each["predicted"] == pytest.approx(alone, rel=2e-3)
    errors = [abs(each["loop_error"]) for each in told["points"]]
    assert told["summary"]["loop_error"]["median"] == pytest.approx(np.median(errors))
    assert told["summary"]["loop_error"]["worst"] == pytest.approx(max(errors))
    assert predicted["check"] == told["summary"]


def test_what_a_policy_did_is_not_held_against_a_fixed_tree(
    swept: Path, cost: Path, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RecordFolder(recorded)
    recording_of = folder.read()
    sets = dict(zip(recording_of.temperatures, map(TraceSet.of, folder.load(recording_of)), strict=True))
    copy = tmp_path / "swept"
    shutil.copytree(swept, copy)
    for place in (copy / "cells").glob("*/cell.yaml"):
        data = OmegaConf.to_container(OmegaConf.load(place))
        assert isinstance(data, dict)
        if data["arm"]["strategy"] == "ddtree":
            data["arm"]["policy"] = "cost_optimal"
            OmegaConf.save(OmegaConf.create(data), place)
    found = check(copy, load_cost(cost), sets)
    assert {each.shape.strategy for each in found} == {"autoregressive", "dflash"}
    assert "4 measured cells left out" in capsys.readouterr().err


def test_every_page_and_figure_says_predicted(predicted: dict[str, Any]) -> None:
    page = Path(predicted["report"]).read_text()
    assert page.startswith("# PREDICTED")
    headings = [line for line in page.splitlines() if line.startswith("## ") and "Against measured" not in line]
    assert headings
    assert all("PREDICTED" in line for line in headings)
    folder = Path(predicted["run"])
    assert {path.name for path in (folder / "figures").iterdir()} == {
        "predicted_speed.png",
        "predicted_against_measured.png",
    }
    assert json.loads((folder / "predicted.json").read_text())["predicted"] is True
    assert predicted["predicted"] is True
    assert (folder / "report.html").exists()


def test_a_page_is_built_again_from_the_stored_files(predicted: dict[str, Any]) -> None:
    page = Path(predicted["report"])
    text = page.read_bytes()
    page.unlink()
    summary = report.run({"run": predicted["run"]}, "again")
    assert summary["report"] == str(page)
    assert page.read_bytes() == text


def test_refusals(
    make: Make, recorded: Path, cost: Path, swept: Path, setup_of_sweep: dict[str, str], tmp_path: Path
) -> None:
    def refused(*overrides: str) -> str:
        with pytest.raises(ConfigError) as error:
            run(make("predict", *SHAPES, f"run={recorded}", *overrides), "no")
        return str(error.value)

    assert "cost=None: a cost file" in refused()
    assert "run='nowhere'" in refused(f"cost={cost}", "run=nowhere")
    assert "check='nowhere': the folder of a sweep" in refused(f"cost={cost}", "check=nowhere")
    assert "predict.card='abacus'" in refused(f"cost={cost}", "predict.card=abacus")
    line = refused(f"cost={cost}", "predict.card=pro6000_workstation")
    assert line.startswith("predict.card='pro6000_workstation': null for a cost of cpu")
    assert "scaled from one of H200" in line
    assert "a folder that can be written" in refused(f"cost={cost}", f"output_dir={cost}/x")
    larger = planted(tmp_path / "larger.json", {**setup_of_sweep, "target": "70 parameters"})
    assert "one of the recording's target" in refused(f"cost={larger}")
    other = planted(tmp_path / "other.json", {**setup_of_sweep, "dtype": "bfloat16"})
    line = refused(f"cost={other}", f"check={swept}")
    assert "a cost file of this setup (dtype is bfloat16 there and float32 here)" in line
    assert "\n" not in line
    run(make("predict", *SHAPES, f"run={recorded}", f"cost={cost}", "sweep.batch_size=[1]"), "no")
    assert "run_id='no': a new one" in refused(f"cost={cost}")


def _section(page: str, heading: str) -> str:
    """From the heading to the next one of its level."""
    return page.partition(heading)[2].partition("\n## ")[0]
