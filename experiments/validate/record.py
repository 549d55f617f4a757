"""What a validation leaves: the evidence file, and a table on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddbench.storage import write_whole
from experiments.command import command_line
from experiments.evidence.shards import plain
from experiments.validate.predictions import Machine
from experiments.validate.verdict import Line, Missing, Value, verdict
from runners.machine import machine_facts

NOTES = (
    "Predictions were written before the measurement. A line is not checked where nothing could be measured, or where "
    "the prediction was made for another engine or number of prompts; the verdict is then not a pass."
)


def measured_now(driver: str | None, gpu: str | None, engines: Mapping[str, Any]) -> dict[str, Any]:
    """When, where and with what this process measures; ``engines`` as :func:`experiments.validate.stored.engines`."""
    packages = machine_facts()
    return {
        "command": command(),
        "date": today(),
        "gpu": gpu,
        "driver": driver,
        "versions": {"python": packages["python"], **packages["packages"], "engine": engines["engine"]},
        "git_commit": packages["git_commit"],
        "builds": engines["builds"],
    }


def record(
    machine: Machine,
    file: Path,
    lines: list[Line],
    found: Mapping[str, Value],
    measured: Mapping[str, Any],
    note: str | None,
) -> dict[str, Any]:
    """The evidence file: ``measured``, which every evidence has, and a line a prediction of ``file``."""
    return {
        **measured,
        "predictions": file.name,
        "machine": machine.name,
        "verdict": verdict(lines),
        "lines": [asdict(line) for line in lines],
        "measured": {key: value for key, value in found.items() if not isinstance(value, Missing)},
        "notes": NOTES if note is None else f"{NOTES} {note}",
    }


def write_record(path: Path, found: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(found, indent=1) + "\n")


def table(lines: list[Line]) -> str:
    rows = []
    for line in lines:
        seen = (
            "-"
            if line.measured is None
            else f"{line.measured:.4g}"
            if isinstance(line.measured, float)
            else line.measured
        )
        why = f"  ({line.reason})" if line.reason and line.state == "not checked" else ""
        rows.append(f"{line.state:<12} {line.key:<44} {seen:>12}  predicted {line.predicted}{why}\n")
    return "".join(rows)


def command() -> str:
    """The command line of this process but for its note, which the file has in full, and for this machine's folders."""
    told: str = plain(command_line([word for word in sys.argv[1:] if not word.startswith("validate.note=")]))
    return told


def today() -> str:
    return datetime.now(UTC).date().isoformat()
