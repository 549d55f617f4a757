"""The run folder: what is written when, so that being killed at any moment loses the running cell alone."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import yaml

from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES, Cell, CellStatus, content_hash
from experiments.plan import Dropped, Planned


class RunFolder:
    """``<output_dir>/<experiment>/<run_id>``.

    A cell is made in ``.running/<host>-<pid>/<cell_id>``, its status.json last, and then renamed into ``cells/``: what
    stands there is whole. Several processes may work on one folder, each on cells of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells = path / "cells"
        self._running = path / ".running" / f"{platform.node()}-{os.getpid()}"

    def check_writable(self) -> None:
        """Raises ConfigError when the folder cannot be made or written; leaves no trace of the attempt."""
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".write-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConfigError("output_dir", str(self.path), f"a folder that can be written ({reason})") from None
        finally:
            for folder in made:
                with suppress(OSError):  # not made, or another process already uses it
                    folder.rmdir()

    def open(
        self,
        config: dict[str, Any],
        environment: dict[str, Any] | None,
        dropped: tuple[Dropped, ...],
        planned: tuple[Planned, ...] = (),
    ) -> None:
        """Makes the folder, or goes on with it. A file that changes keeps its earlier version beside the new one.

        ``environment`` None: nothing is measured, so that of the earlier measurement stands.
        """
        self.cells.mkdir(parents=True, exist_ok=True)
        self._clear_dead()
        _replace(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        if environment is not None:
            _replace(self.path / "environment.json", json.dumps(environment, indent=2) + "\n")
        known = _read_json(self.path / "dropped.json") or []
        rows = known + [row for row in map(asdict, dropped) if row not in known]
        _write(self.path / "dropped.json", json.dumps(rows, indent=2) + "\n")
        if planned:
            self._remember(planned)

    def config(self) -> dict[str, Any]:
        """The configuration of the last process that measured here; empty where there is none."""
        try:
            data = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return data if isinstance(data, dict) else {}

    def status(self, cell: Cell) -> str | None:
        """The final status of a cell, or None if it has none yet."""
        return _final_status(self.cells / cell.cell_id)

    def begin(self, cell: Cell) -> Path:
        """An empty folder to make the cell in."""
        folder = self._running / cell.cell_id
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def finish(self, cell: Cell, folder: Path, status: CellStatus) -> None:
        """Puts the finished cell in its place, and an earlier version of it (a failed one) out of it."""
        _write(folder / "cell.yaml", yaml.safe_dump(asdict(cell), sort_keys=False))
        _write(folder / "status.json", json.dumps(asdict(status), indent=2) + "\n")
        place = self.cells / cell.cell_id
        if place.exists():
            shutil.rmtree(place)
        folder.rename(place)

    def close(self) -> None:
        """Drops what was left of a cell that did not end."""
        shutil.rmtree(self._running, ignore_errors=True)
        with suppress(OSError):  # there is none, or another process works there
            self._running.parent.rmdir()

    def _remember(self, planned: tuple[Planned, ...]) -> None:
        """Stores what is to be run, so that a report can say what was not.

        Each plan is a file of its own, named by its cells: of processes that share the folder none loses another's.
        """
        rows = sorted((_row(item.cell) for item in planned), key=lambda row: str(row["cell_id"]))
        folder = self.path / "planned"
        folder.mkdir(exist_ok=True)
        name = content_hash([row["cell_id"] for row in rows])
        _write(folder / f"{name}.json", "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")

    def _clear_dead(self) -> None:
        """Drops what processes of this host that were killed left behind."""
        for folder in self._running.parent.glob(f"{platform.node()}-*"):
            pid = folder.name.rpartition("-")[2]
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)

    def ids(self) -> set[str]:
        """The cells that have a final status, of whatever plan."""
        found = self.cells.iterdir() if self.cells.is_dir() else ()
        return {folder.name for folder in found if _final_status(folder)}

    def counts(self, doubted: Collection[str] = ()) -> dict[str, int]:
        """Cells of the folder by final status; those that are ``doubted`` and ended well count as suspect."""
        final = {name: _final_status(self.cells / name) for name in self.ids()}
        counts = Counter("suspect" if s == "ok" and name in doubted else s for name, s in final.items())
        return {status: counts[status] for status in FINAL_STATUSES}


def _row(cell: Cell) -> dict[str, Any]:
    """What names a planned cell to people."""
    arm = {name: getattr(cell.arm, name) for name in ("engine", "strategy", "width", "depth", "nodes")}
    where = {name: getattr(cell, name) for name in ("batch_size", "temperature", "block")}
    return {"cell_id": cell.cell_id, **arm, **where}


def _final_status(folder: Path) -> str | None:
    data = _read_json(folder / "status.json")
    status = data.get("status") if isinstance(data, dict) else None
    return status if status in FINAL_STATUSES else None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _replace(path: Path, text: str) -> None:
    """Writes a file; one of other contents that stood there becomes ``<stem>-1<suffix>``, ``-2`` and so on."""
    if path.exists() and path.read_text(encoding="utf-8") != text:
        number = 1
        while (kept := path.with_stem(f"{path.stem}-{number}")).exists():
            number += 1
        path.rename(kept)
    _write(path, text)


def _write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
