"""The dashboard as code: panels over the cell runs and the report runs of a project, as a workspace or as a report.

Needs the package ``wandb-workspaces`` and, to save, the network and a key. Built without either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Metric, title and unit of the curves; logged by cell_run.py as by_<axis>/<metric>.
SPEED = ("tokens_per_s_per_user", "Decode speed of one user", "tokens/s")
GAIN = ("speedup_vs_autoregressive", "Speed-up over autoregressive decoding", "ratio, one cell, no interval")
AGGREGATE = ("tokens_per_s", "Aggregate throughput", "tokens/s")
ACCEPTANCE = ("acceptance_length", "Acceptance length", "tokens emitted per round")
ROUND = ("step_ms", "Round time", "ms")
AXES = {"batch_size": "requests in flight", "nodes": "drafted nodes, root not counted"}
SHAPE = ("width", "depth", "nodes", "batch_size")


@dataclass(frozen=True)
class Section:
    """A named row of panels."""

    name: str
    panels: list[Any]


def sections() -> list[Section]:
    """The panels, from what is decided to what explains it."""
    return [
        Section("Fastest by batch size", [_curve("batch_size", *each, best=True) for each in (GAIN, SPEED, AGGREGATE)]),
        Section("Tree size", [_curve("nodes", *each, best=False) for each in (ACCEPTANCE, ROUND, SPEED)]),
        Section("Won by acceptance or by cost", list(_trade())),
        Section("Report", list(_report())),
    ]


def workspace(entity: str, project: str, run_id: str | None) -> Any:
    """A workspace of these sections; ``run_id`` shows the runs of one run folder alone."""
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        entity=entity,
        project=project,
        name=_title(run_id),
        sections=[ws.Section(name=each.name, panels=each.panels, is_open=True) for each in sections()],
        runset_settings=ws.RunsetSettings(filters=_only(run_id)),
    )


def page(entity: str, project: str, run_id: str | None) -> Any:
    """The same as a W&B report, which can be shared and commented on."""
    import wandb_workspaces.reports.v2 as wr

    blocks: list[Any] = [wr.TableOfContents()]
    for each in sections():
        runset = wr.Runset(entity=entity, project=project, name="cells", filters=_only(run_id))
        blocks += [wr.H1(each.name), wr.PanelGrid(runsets=[runset], panels=each.panels)]
    return wr.Report(
        entity=entity,
        project=project,
        title=_title(run_id),
        description="Numbers of single cells, without intervals; intervals are in report.md of the report run.",
        blocks=blocks,
    )


def _curve(axis: str, metric: str, title: str, unit: str, *, best: bool) -> Any:
    """A line a strategy against an axis: its best cell at each value, or the mean with the range of its shapes."""
    import wandb_workspaces.reports.v2 as wr

    how = "best shape" if best else "mean and range over shapes"
    return wr.LinePlot(
        title=f"{title} ({how})",
        x=axis,
        y=[f"by_{axis}/{metric}"],
        title_x=AXES[axis],
        title_y=unit,
        groupby=wr.Config("strategy"),
        groupby_aggfunc="max" if best else "mean",
        groupby_rangefunc="none" if best else "minmax",
        max_runs_to_show=1000,
    )


def _trade() -> Iterator[Any]:
    import wandb_workspaces.reports.v2 as wr

    yield wr.ScatterPlot(
        title="Acceptance length against round time: the steeper from the origin, the faster",
        x=wr.SummaryMetric(ROUND[0]),
        y=wr.SummaryMetric(ACCEPTANCE[0]),
    )
    yield wr.ScatterPlot(
        title="One user's speed against throughput",
        x=wr.SummaryMetric(AGGREGATE[0]),
        y=wr.SummaryMetric(SPEED[0]),
    )
    columns = [wr.ParallelCoordinatesPlotColumn(metric=wr.Config(name)) for name in SHAPE]
    measured = (ACCEPTANCE, ROUND, SPEED, GAIN)
    columns += [wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric(name)) for name, _, _ in measured]
    yield wr.ParallelCoordinatesPlot(title="Shape to speed", columns=columns)


def _report() -> Iterator[Any]:
    """What the report runs hold: figures, the page, the table with intervals."""
    import wandb_workspaces.reports.v2 as wr

    figures = ["figures/speedup_vs_batch_size", "figures/acceptance_vs_step_time", "figures/acceptance_by_depth"]
    yield wr.MediaBrowser(title="Figures", media_keys=figures, num_columns=1)
    yield wr.MediaBrowser(title="Report", media_keys=["report"], num_columns=1)
    yield wr.WeavePanelSummaryTable(table_name="results")


def _only(run_id: str | None) -> str:
    return "" if run_id is None else f"Metric('Group') = '{run_id}'"


def _title(run_id: str | None) -> str:
    return "ddbench" if run_id is None else f"ddbench {run_id}"
