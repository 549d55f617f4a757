"""Which cells W&B has, so that none is logged twice."""

from __future__ import annotations

import json
from pathlib import Path

from reports.tracking.settings import WandbSettings


class Ledger:
    """``wandb/logged.jsonl`` of a run folder: a line a logged cell, with its destination and when it was measured.

    A line is added when W&B has finished with the cell. Several processes may add to one file.
    """

    def __init__(self, folder: Path, settings: WandbSettings) -> None:
        self._path = folder / "wandb" / "logged.jsonl"
        self._to = "/".join([settings.mode, settings.entity or "", settings.project])
        self._lines = set(self._path.read_text(encoding="utf-8").splitlines()) if self._path.is_file() else set()

    def has(self, cell_id: str, started: str) -> bool:
        return self._line(cell_id, started) in self._lines

    def add(self, cell_id: str, started: str) -> None:
        line = self._line(cell_id, started)
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
        self._lines.add(line)

    def _line(self, cell_id: str, started: str) -> str:
        return json.dumps({"to": self._to, "cell_id": cell_id, "started": started})
