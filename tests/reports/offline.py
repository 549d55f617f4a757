"""Reads back what W&B wrote without a network: the record file of an offline run."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = 32_768  # the file is a sequence of blocks of this size, as in LevelDB's log


def raw_records(path: Path) -> Iterator[Any]:
    """The records of a file: chunks (checksum, length, kind) that never cross a block."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, b""  # seven bytes of head
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@dataclass(frozen=True)
class OfflineRun:
    """One run of W&B as its file tells it; nested keys are joined by dots."""

    path: Path
    id: str
    group: str
    job_type: str
    project: str
    name: str
    sweep_id: str
    config: dict[str, Any]
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    artifacts: dict[str, set[str]]  # files of each artifact that was logged by name
    steps: dict[str, str]  # the axis of each defined metric
    exit_code: int | None  # None: not finished


def read_offline(run: Path) -> list[OfflineRun]:
    """All offline runs below a run folder, in the order in which they were started."""
    found = sorted(run.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    return [read_one(path) for path in found]


def read_one(path: Path) -> OfflineRun:
    kinds: dict[str, list[Any]] = {}
    for record in raw_records(path):
        kinds.setdefault(record.WhichOneof("record_type"), []).append(record)
    start = kinds["run"][0].run
    summary: dict[str, Any] = {}
    for record in kinds.get("summary", []):
        summary |= _items(record.summary.update)
    names: dict[str, set[str]] = {}
    for record in kinds.get("artifact", []):
        files = {entry.path for entry in record.artifact.manifest.contents}
        names.setdefault(record.artifact.name, set()).update(files)
    metrics = [record.metric for record in kinds.get("metric", [])]
    named = {index: metric.name or metric.glob_name for index, metric in enumerate(metrics, start=1)}
    return OfflineRun(
        path=path,
        id=start.run_id,
        group=start.run_group,
        job_type=start.job_type,
        project=start.project,
        name=start.display_name,
        sweep_id=start.sweep_id,
        config=_items(start.config.update),
        summary=summary,
        history=[_items(record.history.item) for record in kinds.get("history", [])],
        artifacts=names,
        steps={
            metric.name or metric.glob_name: metric.step_metric or named.get(metric.step_metric_index, "")
            for metric in metrics
        },
        exit_code=kinds["exit"][0].exit.exit_code if "exit" in kinds else None,
    )


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
