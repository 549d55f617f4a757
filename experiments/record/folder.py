"""The folder of a recording: ``config.yaml``, ``environment.json``, ``record.json`` and one trace a request.

``record.json`` says what was recorded with what, and lists all traces in order; it stands before the first of them. A
trace is written whole or not at all, so that a recording that was killed goes on where it was.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ddbench.errors import ConfigError
from ddbench.records import content_hash
from ddbench.replay.trace import SCHEMA, Trace, load_trace, setup_of


@dataclass(frozen=True)
class Recording:
    """``record.json``.

    ``facts``: what a plan takes from outside (engine version, revisions, hashes, number of prompts). ``made``: what
    else decides the traces, such as the hash of the engine's source. ``traces``: their names, request by request.
    """

    schema: int
    facts: dict[str, Any]
    made: dict[str, Any]
    temperatures: tuple[float, ...]
    nodes: int
    depth: int
    traces: tuple[tuple[str, ...], ...]  # by temperature

    @property
    def setup(self) -> str:
        """Hash of all that decides what a trace holds."""
        return content_hash([self.schema, self.facts, self.made, self.nodes])


def trace_name(prompt_id: str, turn: int, repeat: int, temperature: float) -> str:
    return content_hash([prompt_id, turn, repeat, temperature])


class RecordFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.traces = path / "traces"

    def open(self, recording: Recording, config: dict[str, Any], environment: dict[str, Any]) -> None:
        """Makes the folder, or goes on with it. Raises ConfigError where it holds another recording."""
        if (self.path / "record.json").exists():
            known = self.read()
            if known.setup != recording.setup or known.traces != recording.traces:
                allowed = "a new one: that folder holds a recording of other prompts, models or settings"
                raise ConfigError("run_id", self.path.name, allowed)
        self.traces.mkdir(parents=True, exist_ok=True)
        write(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        write(self.path / "environment.json", json.dumps(environment, indent=2) + "\n")
        write(self.path / "record.json", json.dumps(asdict(recording), indent=1) + "\n")

    def read(self) -> Recording:
        """Raises ConfigError for a folder that is no recording, or one of another schema."""
        try:
            data = json.loads((self.path / "record.json").read_text(encoding="utf-8"))
            data["temperatures"] = tuple(data["temperatures"])
            data["traces"] = tuple(map(tuple, data["traces"]))
            found = Recording(**data)
        except (OSError, ValueError, TypeError, KeyError):
            raise ConfigError(
                "run", str(self.path), "the folder of an experiment=record, as printed at its end"
            ) from None
        if found.schema != SCHEMA:
            raise ConfigError("run", f"{self.path}, schema {found.schema}", f"a recording of schema {SCHEMA}")
        return found

    def config(self) -> dict[str, Any]:
        """The configuration that it was recorded with."""
        data: dict[str, Any] = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        return data

    def missing(self, recording: Recording) -> set[str]:
        """Names of traces that are not there yet."""
        names = {name for row in recording.traces for name in row}
        return {name for name in names if setup_of(self.place(name)) != recording.setup}

    def whole(self) -> int:
        """Traces that are there of the recording that the folder holds, if it holds one."""
        if not (self.path / "record.json").exists():
            return 0
        recording = self.read()
        return sum(map(len, recording.traces)) - len(self.missing(recording))

    def place(self, name: str) -> Path:
        return self.traces / f"{name}.safetensors"

    def load(self, recording: Recording) -> list[list[Trace]]:
        """All traces, by temperature. Raises ConfigError where some are missing."""
        lacking = len(self.missing(recording))
        if lacking:
            whole = sum(map(len, recording.traces))
            allowed = f"a whole recording: {lacking} of {whole} traces are missing; experiment=record run_id="
            raise ConfigError("run", str(self.path), f"{allowed}{self.path.name} does the rest")
        return [[load_trace(self.place(name)) for name in names] for names in recording.traces]


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
