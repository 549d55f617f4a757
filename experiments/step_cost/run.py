"""``experiment=step_cost``: measure the grid on an engine, or take an evidence file; leave ``cost.json`` and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ddbench.cost.file import save_cost
from ddbench.cost.model import CostModel
from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES
from ddbench.storage import write_whole
from experiments.command import command_line
from experiments.evidence.predicted import keep
from experiments.evidence.shards import plain
from experiments.progress import say
from experiments.settings import Settings
from experiments.step_cost.measured import Measured
from experiments.step_cost.settings import StepCostSettings, load
from experiments.store import RunFolder
from experiments.writable import check_place

NOTES = (
    "told: by the fit of a cost file; measured: round times and tokens/s at a pinned acceptance of evidence shards of "
    "the same setup, or the points of another cost file. No number here was fitted, but fitted_widths are of steps "
    "whose kind and verify width the fit has points of, measured anew; other_widths it has never seen. error: told / "
    "measured - 1. tokens_per_s is a closed loop of twice as many prompts of 256 tokens as are in flight, their "
    "reading included: whole rounds that emit the pinned length on average, and under overlap scheduling one more "
    "before a place is free."
)
Measure = Callable[[Settings, StepCostSettings, Callable[[Measured], None], Path], Measured]


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Measures and fits; the summary names ``cost``, the file, and the fit's errors by kind of step.

    Raises:
        ConfigError: any setting, model or file that cannot be used.
    """
    settings, asked = load(config, run_id)
    folder = Path(settings.output_dir) / settings.name / settings.run_id
    if (folder / "cost.json").exists():
        raise ConfigError("run_id", settings.run_id, "a new one: a measurement is not gone on with")
    if asked.against is not None and asked.evidence is None:
        from experiments.step_cost.against import check_engine

        check_engine(settings.engine.name, asked.against)
    check_place("step_cost.kept", asked.kept, "experiment=step_cost")
    RunFolder(folder).check_writable()
    measure = _measure(settings, asked)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "cost.json"

    def save(found: Measured) -> None:
        save_cost(place, found.fingerprint, found.points, _source(found))

    try:
        write_whole(folder / "config.yaml", yaml.safe_dump({**config, "run_id": settings.run_id}, sort_keys=False))
        found = measure(settings, asked, save, folder)
    except ConfigError:
        _leave_nothing(folder)
        raise
    model = save_cost(place, found.fingerprint, found.points, _source(found))
    held = _against(model, asked, folder)
    report = _page(folder, place) if asked.page else None
    errors = _errors(model)
    for kind, error in errors.items():
        say(f"{kind}: {len(model.points[kind])} points, fit apart by {_percent(error)} (median, worst)")
    return {
        "run": str(folder),
        "report": report and str(report),
        "results": None,
        "cells": dict.fromkeys(FINAL_STATUSES, 0),
        "cost": str(place),
        "fit": errors,
        **held,
    }


def _measure(settings: Settings, asked: StepCostSettings) -> Measure:
    """What does it: by engine, or the import of an evidence file."""
    if asked.evidence is not None:
        from experiments.step_cost.evidence import import_evidence

        return import_evidence
    name = settings.engine.name
    if name == "reference":
        from experiments.step_cost import reference

        return lambda mine, own, save, _: reference.measure(mine, own, save)
    if name == "sglang":
        if settings.engine.checkout is not None:
            raise ConfigError("engine.checkout", settings.engine.checkout, "null: a branch's steps have no cost file")
        from experiments.step_cost import sglang

        return sglang.measure
    if name == "vllm":
        from experiments.step_cost import vllm

        return vllm.measure
    raise ConfigError("engine", name, "reference, sglang or vllm")


def _against(model: CostModel, asked: StepCostSettings, folder: Path) -> dict[str, Any]:
    """Holds the fit against an evidence file, where one is named: ``against.json``, and errors for the summary."""
    if asked.against is None:
        return {}
    from experiments.step_cost.against import against, summary, to_rows

    found = against(model, asked.against)
    told = summary(found)
    write_whole(folder / "against.json", json.dumps({"summary": told, "rows": to_rows(found)}, indent=1) + "\n")
    if asked.kept is not None:
        rows = [
            {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
            for row in to_rows(found)
        ]
        keep(asked.kept, model, {"against": Path(asked.against).name, "errors": told, "rows": rows}, NOTES)
    for what, error in told.items():
        for which, each in error.items():
            if each is not None:
                told_of = f"against {what} of {Path(asked.against).name}, {which.replace('_', ' ')}"
                say(f"{told_of}: {100 * each['median']:.1f} % median, n {each['n']}")
    return {"against": told}


def _page(folder: Path, cost: Path) -> Path:
    from experiments.step_cost.page import write_page

    return write_page(folder, cost)


def _source(found: Measured) -> dict[str, Any]:
    told = {"command": command_line(), "date": datetime.now(UTC).date().isoformat(), **found.source}
    return {name: plain(value) for name, value in told.items()}


def _errors(model: CostModel) -> dict[str, dict[str, float | None]]:
    """Relative errors of each fit, rounded: median and worst, of its own points and of points left out."""
    from ddbench.cost.fit import quality_of

    summaries = {kind: quality_of(fit, model.points[kind]).summary() for kind, fit in model.fits.items()}
    return {
        kind: {name: None if value is None else round(value, 4) for name, value in each.items()}
        for kind, each in summaries.items()
    }


def _percent(error: Mapping[str, float | None]) -> str:
    return ", ".join(f"{100 * (error[name] or 0):.1f} %" for name in ("median_residual", "worst_residual"))


def _leave_nothing(folder: Path) -> None:
    """What was refused leaves no folder."""
    (folder / "config.yaml").unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
