"""W&B for real, offline: no key, no network, and every record read back from disk."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import synthetic
import yaml
from family import living
from matplotlib.figure import Figure
from offline import OfflineRun, read_offline

from ddbench.errors import ConfigError
from ddbench.records import Cell
from reports import WandbSettings, build_report
from reports.frames import records, to_frame
from reports.tracking import Recorder

pytest.importorskip("wandb")

PLAN = synthetic.Plan(
    shapes={"autoregressive": [(None, None, None)], "dflash": [(None, 3, None)], "ddtree": [(2, 3, 8)]},
    batch_sizes=(1, 4),
    prompts=6,
)


def cells_of(run: Path) -> dict[str, Cell]:
    return {
        path.parent.name: Cell.from_dict(yaml.safe_load(path.read_text())) for path in run.glob("cells/*/cell.yaml")
    }


def keep_cells(run: Path, count: int) -> None:
    for path in sorted((run / "cells").iterdir())[count:]:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every status, its cells in the order of a sweep's."""
    folder = tmp_path_factory.mktemp("outputs") / "synthetic" / "night"
    synthetic.write_run(folder, PLAN)
    eagle = synthetic.arm("eagle", 2, 3, 6)
    synthetic.write_status(folder, synthetic.cell(PLAN, eagle, 1), "unsupported", "no such drafter")
    synthetic.write_status(folder, synthetic.cell(PLAN, eagle, 4), "failed", "out of memory")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "synthetic" / "night"
    shutil.copytree(made, folder)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return folder


@pytest.fixture(scope="module")
def logged(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[OfflineRun]]:
    """The run after its cells were logged one by one, as a sweep does it, and its report."""
    folder = tmp_path_factory.mktemp("logged") / "synthetic" / "night"
    shutil.copytree(made, folder)
    with Recorder(WandbSettings(tags=("test",)), folder) as recorder:
        recorder.start()
        recorder.ready()
        cells = cells_of(folder)
        for cell_id in sorted(cells, key=lambda name: cells[name].arm.strategy):  # autoregressive first
            recorder.cell(cell_id)
            mine = [each for each in read_offline(folder) if each.id == cell_id]
            assert [each.exit_code is not None for each in mine] == [True], "not finished before the next cell begins"
        build_report(folder, figures=False)
        (folder / "figures").mkdir()
        Figure().savefig(folder / "figures" / "speedup_vs_batch_size.png")
        (folder / "report.html").write_text("<p>the page</p>")
        assert recorder.report()
        assert 0 < recorder.seconds < 0.3 * 3 * len(cells)  # thrice the bound, for a busy machine
    return folder, read_offline(folder)


def test_one_run_a_cell_and_a_last_one(logged: tuple[Path, list[OfflineRun]]) -> None:
    folder, runs = logged
    assert {each.group for each in runs} == {"night"}
    assert {each.project for each in runs} == {"ddbench"}
    assert {each.id for each in runs if each.job_type == "cell"} == set(cells_of(folder))
    assert [each.job_type for each in runs] == ["cell"] * 8 + ["report"]
    assert runs[-1].id == "night-report"
    codes = {each.id: each.exit_code for each in runs}
    failed = [name for name, cell in cells_of(folder).items() if (cell.arm.strategy, cell.batch_size) == ("eagle", 4)]
    assert [name for name, code in codes.items() if code] == failed


def test_config_is_the_flat_cell(logged: tuple[Path, list[OfflineRun]]) -> None:
    folder, runs = logged
    for each in runs[:-1]:
        cell = cells_of(folder)[each.id]
        assert not any(isinstance(value, dict) for key, value in each.config.items() if key != "_wandb")
        expected = {
            "engine_version": cell.arm.engine_version,
            "strategy": cell.arm.strategy,
            "width": cell.arm.width,
            "nodes": cell.arm.nodes,
            "batch_size": cell.batch_size,
            "temperature": cell.temperature,
            "dataset": cell.workload,
            "flag_dtype": "float32",
            "gpu": None,
            "cpu": "SYNTHETIC CPU",
            "run_id": "night",
            "point_id": cell.point_id,
        }
        assert {name: each.config[name] for name in expected} == expected


def test_summary_is_what_the_report_derives(logged: tuple[Path, list[OfflineRun]]) -> None:
    folder, runs = logged
    points = {row["cell_ids"][0]: row for row in records(to_frame(pq.read_table(folder / "results.parquet")))}
    checked = 0
    names = (
        "acceptance_length",
        "tokens_per_s",
        "tokens_per_s_per_user",
        "tpot_ms",
        "ttft_ms",
        "step_ms",
        "speedup_vs_autoregressive",
        "lossless_share",
        "rounds",
        "accepted",
        "verify_width",
        "peak_memory_gib",
        "requests",
    )
    for each in runs[:-1]:
        row = points[each.id]
        assert each.summary["status"] == row["status"]
        for name in names:
            if row["status"] == "ok" and row[name] is not None:
                assert each.summary[name] == pytest.approx(row[name], rel=1e-12), (name, each.name)
                checked += 1
    assert checked == 6 * len(names) - 4  # an autoregressive arm has no acceptance length, and no further answers
    reasons = {each.summary["reason"] for each in runs[:-1] if each.summary["status"] != "ok"}
    assert reasons == {"no such drafter", "out of memory"}


def test_curves_are_drawn_against_batch_size_and_nodes(logged: tuple[Path, list[OfflineRun]]) -> None:
    folder, runs = logged
    for each in runs[:-1]:
        if each.summary["status"] != "ok":
            assert not each.history
            continue
        assert each.steps["by_batch_size/*"] == "batch_size"
        assert each.steps["by_nodes/*"] == "nodes"
        (step,) = each.history
        assert step["batch_size"] == cells_of(folder)[each.id].batch_size
        assert step["nodes"] == {"autoregressive": 0, "dflash": 3, "ddtree": 8}[each.config["strategy"]]
        speed = each.summary["tokens_per_s_per_user"]
        assert step["by_batch_size/tokens_per_s_per_user"] == step["by_nodes/tokens_per_s_per_user"] == speed
        assert step["requests_table._type"] == "table-file"
        assert step["requests_table.nrows"] == 6
    last = runs[-1]
    assert last.steps["ddtree/*"] == "ddtree/batch_size"
    assert last.steps["ddtree_by_nodes/*"] == "ddtree_by_nodes/nodes"
    drawn = [step for step in last.history if "ddtree/batch_size" in step]
    assert {step["ddtree/batch_size"] for step in drawn} == {1, 4}
    assert all(step["ddtree_by_nodes/nodes"] == 8 for step in drawn)


def test_files_are_artifacts(logged: tuple[Path, list[OfflineRun]]) -> None:
    folder, runs = logged
    for each in runs[:-1]:
        files = each.artifacts[f"cell-{each.id}"]
        stored = {path.name for path in (folder / "cells" / each.id).iterdir()}
        assert files == stored
    last = runs[-1]
    figures = {f"figures/{path.name}" for path in (folder / "figures").iterdir()}
    assert len(figures) == 1
    assert last.artifacts["report-night"] == {"report.md", "report.html", "results.csv"} | figures
    data = last.artifacts["data-night"]
    assert {"results.parquet", "config.yaml", "environment.json"} <= data
    assert {f"cells/{each.id}/requests.parquet" for each in runs[:-1] if each.summary["status"] == "ok"} <= data
    keys = {key for step in last.history for key in step}
    for media in ("results", "report", "figures/speedup_vs_batch_size"):
        assert f"{media}._type" in keys
    assert last.summary["best/tokens_per_s_per_user"] == max(
        each.summary.get("tokens_per_s_per_user", 0) for each in runs[:-1]
    )


def nothing_is_done_until_asked(known: Collection[psutil.Process]) -> None:
    """Neither the process that logs nor W&B's own works while a cell would be measured."""
    ours = living(known)
    names = " ".join(" ".join(child.cmdline()) for child in ours)
    assert "reports.tracking.worker" in names
    assert "wandb-core" in names

    def used() -> float:
        return sum(sum(child.cpu_times()[:2]) for child in ours)

    before = used()
    time.sleep(1.0)
    assert used() - before < 0.05


def test_a_cell_is_logged_once(run: Path) -> None:
    keep_cells(run, 2)
    build_report(run, figures=False)
    cell_id, known = sorted(cells_of(run))[0], living()
    with Recorder(WandbSettings(), run) as recorder:
        recorder.cell(cell_id)
        recorder.cell(cell_id)
        assert len(read_offline(run)) == 1
        nothing_is_done_until_asked(known)
    assert not living(known)
    with Recorder(WandbSettings(cells=False), run) as alone:
        alone.cell(sorted(cells_of(run))[1])
        assert len(read_offline(run)) == 1
    with Recorder(WandbSettings(), run) as again:  # a run that goes on
        again.cell(cell_id)
        assert len(read_offline(run)) == 1
        assert again.report()  # brings what is missing
        assert sorted(each.id for each in read_offline(run)) == sorted([*cells_of(run), "night-report"])
        path = run / "cells" / cell_id / "status.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "started": "2026-01-02T00:00:00Z"}))
        again.cell(cell_id)  # measured again
        assert len([each for each in read_offline(run) if each.id == cell_id]) == 2


def test_a_sweep_of_their_own_gets_the_report_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep7")
    monkeypatch.setenv("WANDB_RUN_ID", "trial3")
    keep_cells(run, 1)
    build_report(run, wandb=WandbSettings(), figures=False)
    cell, report = read_offline(run)
    assert (cell.id, cell.sweep_id, cell.job_type) == (*cells_of(run), "", "cell")
    assert (report.id, report.sweep_id, report.job_type) == ("trial3", "sweep7", "report")


def test_disabled_writes_nothing(run: Path) -> None:
    build_report(run, wandb=WandbSettings(mode="disabled"), figures=False)
    assert not (run / "wandb").exists()


def test_a_wrong_mode_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.mode='of': one of offline, online, disabled"):
        WandbSettings(mode="of")
    with pytest.raises(ConfigError, match=r"tracking\.timeout_s=0: seconds > 0"):
        WandbSettings(timeout_s=0)
