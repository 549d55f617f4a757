"""Where the numbers come from: versions, host, models, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from reports.frames import Stored, records
from reports.sections.text import NOTHING, clean, folded, literal, table
from reports.starts import Start, changes, leaves, start_of, starts

CLIENT_FLAGS = ("template", "thinking", "ignore_eos", "warmup_tokens", "request_rate")  # ours, whoever runs the server


def section(stored: Stored) -> list[str]:
    rows = [{"What": row["What"], "Value": literal(row["Value"])} for row in _rows(stored)]
    lines = ["## Provenance", "", *table(rows), "", *_starts(stored)]
    if stored.environment:
        flat = [{"Key": key, "Value": literal(value)} for key, value in leaves(stored.environment)]
        lines += [*folded("Environment (environment.json)", table(flat)), ""]
    if stored.config:
        text = yaml.safe_dump(stored.config, sort_keys=True, allow_unicode=True).rstrip().splitlines()
        lines += [*folded("Configuration (config.yaml)", ["```yaml", *text, "```"]), ""]
    return lines


def _starts(stored: Stored) -> list[str]:
    """The starts of a run that had several, with their cells as far as those can be told, and what changed."""
    found = starts(stored)
    if len(found) < 2:
        return []
    cells = [start_of(found, row["started"]) for row in records(stored.cells[stored.cells["started"].notna()])]
    rows = [
        {
            "Start": str(start.number),
            "Began to measure": start.environment.get("started"),
            "Cells": _measured_in(start, cells),
            "Commit": _commit(start.environment),
            "Command": literal(start.environment.get("command")),
        }
        for start in found
    ]
    differing = [
        {"Key": f"`{name}`", **{f"Start {s.number}": literal(v) for s, v in zip(found, values, strict=True)}}
        for name, values in changes(found).items()
    ]
    words = "The run was started several times. Software, machine and source above are those of the last start."
    lines = [words, "", *table(rows), ""]
    return [*lines, "What differs between them:", "", *table(differing), ""] if differing else lines


def _measured_in(start: Start, cells: list[Start | None]) -> str:
    """How many cells began in a start; a dash where that of some cell is not known."""
    return NOTHING if None in cells else str(sum(each is start for each in cells))


def _commit(environment: dict[str, Any]) -> str:
    changed = " with uncommitted changes" if environment.get("git_dirty") else ""
    return f"{environment['git_commit']}{changed}" if environment.get("git_commit") else NOTHING


def _rows(stored: Stored) -> Iterator[dict[str, str]]:
    cells = stored.cells
    named = {
        "Engine": ("engine", "engine_version"),
        "Target": ("model", "target", "target_revision"),
        "Drafter": ("drafter", "drafter_revision"),
        "Host": ("host",),
        "GPU": ("gpu",),
        "Workload": ("dataset", "prompts", "prompts_hash"),
        "Sampling": ("temperature", "top_p", "top_k", "seed"),
        "Output limit": ("max_new_tokens",),
        "Flags": ("flags",),
    }
    for title, columns in named.items():
        distinct = records(cells[list(columns)].drop_duplicates())
        shown = [_described(title, row) for row in distinct]
        yield {"What": title, "Value": "; ".join(dict.fromkeys(text for text in shown if text)) or "none recorded"}
    yield from _machine(stored.environment)
    started = sorted(cells["started"].dropna())
    if started:
        hours = float(cells["seconds"].fillna(0).sum())
        yield {"What": "Measured", "Value": f"{started[0]} to {started[-1]} (cells begun), {hours:.0f} s in cells"}
    memory = cells["peak_memory_gib"].dropna()
    if len(memory):
        yield {"What": "Peak memory", "Value": f"{float(memory.max()):.2f} GiB"}


def _machine(environment: dict[str, Any]) -> Iterator[dict[str, str]]:
    """What the environment says of software and machine, as far as it says it."""
    packages = environment.get("packages")
    software = [f"python {environment['python']}"] if "python" in environment else []
    software += (
        [f"{name} {version}" for name, version in sorted(packages.items())] if isinstance(packages, dict) else []
    )
    if software:
        yield {"What": "Software", "Value": ", ".join(software)}
    words = {"cpu": "{}", "cpu_usable": "{} cores usable", "memory_gib": "{} GiB memory", "platform": "{}"}
    machine = [text.format(environment[key]) for key, text in words.items() if environment.get(key)]
    if machine:
        yield {"What": "Machine", "Value": ", ".join(machine)}
    if environment.get("trust_remote_code"):
        yield {"What": "Remote code", "Value": "Python code that comes with the target could run (trust_remote_code)"}
    host = environment.get("host")
    if isinstance(host, dict) and host.get("kind") == "ssh":
        there = [text.format(host[key]) for key, text in words.items() if host.get(key)]
        yield {"What": "Machine of the engine", "Value": ", ".join(there) or NOTHING}
    if environment.get("git_commit"):
        yield {"What": "Source", "Value": f"commit {_commit(environment)}"}


def _flags(text: str) -> str:
    """An arm's flags; of a server that was already running, those that nobody knows are named as such."""
    flags = json.loads(text)
    if not flags.get("attached"):
        return text
    known = {
        name: "not known" if value is None and name not in CLIENT_FLAGS else value for name, value in flags.items()
    }
    return json.dumps(known, sort_keys=True, separators=(",", ":"))


def _described(title: str, row: dict[str, Any]) -> str:
    if title == "Flags":
        return _flags(str(row["flags"]))
    values = {name: value for name, value in row.items() if clean(value) != clean(None)}
    if title in ("Sampling", "Workload"):
        return ", ".join(f"{name} {value}" for name, value in values.items())
    return " ".join(str(value) for value in values.values())
