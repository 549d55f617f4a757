"""``experiment=adaptive``: are budgets that a policy chooses worth it? Predicted by batch size, and live if asked."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ddbench.cost import CostModel, late_steps
from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES
from ddbench.replay import Trace
from ddbench.storage import write_whole
from experiments.adaptive.calibration import calibration
from experiments.adaptive.compare import Row, compare, groups, summary, verdicts
from experiments.adaptive.settings import Comparison, load
from experiments.evidence.predicted import keep
from experiments.progress import counted, duration, say, warn
from experiments.step_cost.covered import contexts, covered
from experiments.store import RunFolder
from experiments.writable import check_place

if TYPE_CHECKING:
    from experiments.adaptive.judge import Judge

NOTES = (
    "Rounds are replayed from a recording, every speed is predicted: a policy against the best of autoregressive "
    "decoding, the chains and the fixed trees, which hindsight picks. With a judge, measured round times price all "
    "arms while the policy chooses by its fit; without one the fit does both. late_steps: steps that a request which "
    "has ended still takes part in, as on the engine that was timed. other_model says if rounds and times are of two "
    "models: then the speeds are nobody's and show the method alone."
)
TABLE = pa.schema(
    [
        ("group", pa.string()),  # a dataset, or dataset/category
        ("temperature", pa.float64()),
        ("batch_size", pa.int32()),
        ("arm", pa.string()),
        ("kind", pa.string()),
        ("nodes", pa.int32()),
        ("tokens_per_s", pa.float64()),
        ("emitted", pa.int64()),
        ("rounds", pa.int64()),
        ("steps", pa.int64()),
        ("mean_verify_width", pa.float64()),
        ("autoregressive_share", pa.float64()),
        ("chain_share", pa.float64()),
        ("replayed", pa.bool_()),  # always true: of the rounds
        ("predicted", pa.bool_()),  # always true: of the speeds
    ]
)


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Compares; the summary names ``table`` and ``verdicts``, and has ``live`` where it was asked for.

    Raises:
        ConfigError: a recording, a cost file or a setting that cannot be used, or no batch size that the cost covers.
    """
    asked = load(config, run_id)
    settings = asked.replayed.settings
    folder = Path(settings.output_dir) / settings.name / settings.run_id
    if (folder / "adaptive.json").exists():
        raise ConfigError("run_id", settings.run_id, "a new one: a comparison is made at once")
    check_place("adaptive.evidence", asked.adaptive.evidence, "experiment=adaptive")
    RunFolder(folder).check_writable()
    recording = asked.replayed.recording
    loaded = asked.replayed.folder.load(recording)
    traces = dict(zip(recording.temperatures, loaded, strict=True))
    candidates, judge = asked.candidates(), _judge(asked)
    clock = time.perf_counter()
    rows: list[Row] = []
    left: list[dict[str, Any]] = []
    for temperature, own in traces.items():
        for name, members in groups(own).items():
            found = compare(
                name,
                temperature,
                members,
                candidates,
                asked.cost,
                asked.adaptive.batch_size,
                asked.adaptive.policies,
                asked.adaptive.fill,
                judge,
                asked.adaptive.knows,
            )
            rows += found[0]
            left += found[1]
    if not rows:
        raise ConfigError("adaptive.batch_size", list(asked.adaptive.batch_size), left[0]["reason"])
    judged = verdicts(rows)
    summaries = {name: summary(judged, name) for name in asked.adaptive.policies}
    say(f"replayed {counted(len(rows), 'point')} in {duration(time.perf_counter() - clock)}")
    _tell_context(asked.cost, [trace for own in traces.values() for trace in own])
    for reason in dict.fromkeys((each["batch_size"], each["reason"]) for each in left if each["arm"] is None):
        warn(f"batch {reason[0]} is left out: {reason[1]}")
    for each in left:
        if each["kind"] == "policy":
            warn(f"{each['arm']} on {each['group']} at batch {each['batch_size']} is left out: {each['reason']}")
    told: dict[str, Any] = {
        "replayed": True,
        "predicted": True,
        "date": datetime.now(UTC).date().isoformat(),
        "recording": {"setup": recording.setup, "gpu": recording.made["gpu"], "workload": settings.workload.name},
        "model": settings.model.name,
        "cost": {"fingerprint": dict(asked.cost.fingerprint), "source": dict(asked.cost.source)},
        "candidates": {"trees": list(candidates.trees), "chains": list(candidates.chains)},
        "fill": asked.adaptive.fill,
        "late_steps": late_steps(asked.cost),
        "judge": asked.adaptive.judge and Path(asked.adaptive.judge).name,
        "judge_left_out": [] if judge is None else list(judge.left_out),
        "knows": asked.adaptive.knows,
        "other_model": asked.other_model,
        "calibration": [
            {"group": name, "temperature": temperature, **calibration(members)}
            for temperature, own in traces.items()
            for name, members in groups(own).items()
            if "/" not in name
        ],
        "summary": summaries,
        "verdicts": [asdict(each) for each in judged],
        "left_out": left,
        "live": _live(asked, candidates, traces),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.yaml", yaml.safe_dump(asked.replayed.told(config), sort_keys=False))
    pq.write_table(
        pa.Table.from_pylist([{**asdict(row), "replayed": True, "predicted": True} for row in rows], schema=TABLE),
        folder / "adaptive.parquet",
    )
    write_whole(folder / "adaptive.json", json.dumps(told, indent=1, allow_nan=False) + "\n")
    from reports.adaptive import write_comparison

    report = write_comparison(folder)
    if asked.adaptive.evidence is not None:
        keep(asked.adaptive.evidence, asked.cost, _kept(told), NOTES)
    return {
        "run": str(folder),
        "report": str(report),
        "results": None,
        "cells": dict.fromkeys(FINAL_STATUSES, 0),
        "replayed": True,
        "predicted": True,
        "table": str(folder / "adaptive.parquet"),
        "points": len({(each.group, each.temperature, each.batch_size) for each in rows}),
        "policies": {
            name: {key: found[key] for key in ("worst", "median", "best")}
            | {"below": len(found["below"]), "above": len(found["above"])}
            for name, found in summaries.items()
        },
        "live": told["live"]
        and [{"batch_size": each["batch_size"], **_ratios(each)} for each in told["live"]["points"]],
    }


def _kept(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is found, without every point of the policies that only compare."""
    named = ("replayed", "recording", "model", "other_model", "candidates", "fill", "late_steps")
    named += ("judge", "judge_left_out", "knows")
    summaries = {
        name: {**each, "below": [_short(point) for point in each["below"]], "above": len(each["above"])}
        for name, each in told["summary"].items()
    }
    left = [each for each in told["left_out"] if each["kind"] == "policy"]
    whole = _whole(told["verdicts"])
    return {**{name: told[name] for name in named}, "summary": summaries, "whole_sets": whole, "left_out": left}


def _whole(verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The points of whole data sets, not of their categories."""
    return [_short(each) for each in verdicts if "/" not in each["group"]]


def _short(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in point.items()}


def _tell_context(cost: CostModel, traces: Sequence[Trace]) -> None:
    """A context is carried on in a line beyond those that were measured; a recording whose mean lies there is told."""
    least, most = contexts(cost)
    mean = sum(trace.prompt_tokens + trace.anchors / 2 for trace in traces) / len(traces)
    if not least <= mean <= most:
        warn(
            f"the recording's sequences have {mean:.0f} tokens in the mean, outside of what the cost file was measured "
            f"in ({covered(cost)}): prices are carried on in a line and may be far off"
        )


def _judge(asked: Comparison) -> Judge | None:
    place, drafter = asked.adaptive.judge, asked.replayed.settings.model.dflash
    if place is None:
        return None
    from experiments.adaptive.judge import Judge

    return Judge.of(asked.cost, place, (drafter.block_size if drafter else None) or 1)


def _live(asked: Comparison, candidates: Any, traces: Any) -> dict[str, Any] | None:
    if not asked.adaptive.decode:
        return None
    from experiments.adaptive.live import live

    return live(asked, candidates, traces)


def _ratios(point: Mapping[str, Any]) -> dict[str, float]:
    return {row["arm"]: round(row["ratio"], 4) for row in point["arms"] if row["policy"] is not None}
