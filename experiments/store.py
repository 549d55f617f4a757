"""The run folder: what is written when, so that being killed at any moment loses the running cell alone."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES, Cell, CellStatus, content_hash
from ddbench.redaction import redact, redact_files
from ddbench.storage import (
    SCHEMA_VERSION,
    NewerSchema,
    check_version,
    damaged,
    schema_version,
    sync_tree,
    write_whole,
)
from experiments.claims import Claims
from experiments.owners import Owner
from experiments.plan import Dropped, Planned
from experiments.progress import warn
from experiments.writable import probe

MEASURED = ("ok", "suspect")  # statuses of cells that have tables
POLL_S = 0.05

Stamp = tuple[int, int]


class RunFolder:
    """``<output_dir>/<experiment>/<run_id>``.

    A cell is made in ``.running/<owner>/<cell_id>``, its status.json last, and then renamed into ``cells/``: what
    stands there is whole. Several processes may work on one folder, each on cells that it has claimed.
    """

    def __init__(self, path: Path, heartbeat_s: float = 10.0, stale_s: float = 120.0) -> None:
        self.path = path
        self.cells = path / "cells"
        self.claims = Claims(path / ".claims", heartbeat_s, stale_s)
        self._running = path / ".running" / self.claims.owner.name
        self._told: set[str] = set()  # damaged cells that were spoken of
        self._whole: dict[Path, Stamp] = {}  # tables that were read to their end, and what they were then

    def check_writable(self) -> None:
        """Raises ConfigError when the folder cannot be made or written; leaves no trace of the attempt."""
        try:
            probe(self.path / f".write-{os.getpid()}")
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConfigError("output_dir", str(self.path), f"a folder that can be written ({reason})") from None

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
        with self.alone("folder"):
            self.clear_dead()
            _replace(self.path / "config.yaml", redact(yaml.safe_dump(config, sort_keys=False, allow_unicode=True)))
            if environment is not None:
                _replace(self.path / "environment.json", redact(json.dumps(environment, indent=2) + "\n"))
            known = _read_json(self.path / "dropped.json")
            known = known if isinstance(known, list) else []
            rows = known + [row for row in map(asdict, dropped) if row not in known]
            write_whole(self.path / "dropped.json", json.dumps(rows, indent=2) + "\n")
            if planned:
                self._remember(planned)

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """While no other process is at ``what``, which belongs to the folder as a whole."""
        while not self.claims.take(what, what):
            time.sleep(POLL_S)
        try:
            yield
        finally:
            self.claims.release(what)

    def config(self) -> dict[str, Any]:
        """The configuration of the last process that measured here; empty where there is none."""
        try:
            data = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return {}
        return data if isinstance(data, dict) else {}

    def status(self, cell: Cell) -> str | None:
        """The final status of a cell, or None if it has none yet, or its files are damaged.

        Raises:
            ConfigError: a later version of ddbench stored it.
        """
        folder = self.cells / cell.cell_id
        if not folder.exists():
            return None
        status = _final_status(folder)
        broken = "status.json" if status is None else self._broken(folder)
        if broken is None:
            return status
        if cell.cell_id not in self._told:
            self._told.add(cell.cell_id)
            warn(f"cells/{cell.cell_id}/{broken} is missing or damaged: the cell is measured again")
        return None

    def stamp(self, cell: Cell) -> Stamp | None:
        """Changes whenever the cell gets a status; None while it has none."""
        try:
            stat = (self.cells / cell.cell_id / "status.json").stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def begin(self, cell: Cell) -> Path:
        """An empty folder to make the cell in. Raises OSError."""
        folder = self._running / cell.cell_id
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def finish(self, cell: Cell, folder: Path, status: CellStatus) -> bool:
        """Puts the finished cell in its place, and an earlier version of it (failed or damaged) out of it.

        False, and nothing changes, if another process, which took this one for dead, has measured the cell meanwhile.
        Raises OSError.
        """
        write_whole(folder / "cell.yaml", yaml.safe_dump(asdict(cell), sort_keys=False))
        write_whole(folder / "status.json", json.dumps(asdict(status), indent=2) + "\n")
        redact_files(folder)  # an engine's log is what the engine makes it
        sync_tree(folder)
        place = self.cells / cell.cell_id
        if place.exists():
            if self.status(cell) not in (None, "failed"):
                shutil.rmtree(folder)
                return False
            old = self._running / f"{cell.cell_id}.old"
            place.rename(old)
            shutil.rmtree(old)
        folder.rename(place)
        sync_tree(self.cells)
        return True

    def close(self) -> None:
        """Drops what was left of a cell that did not end, and gives up what was claimed."""
        self.clear_dead()
        self.claims.close()
        shutil.rmtree(self._running, ignore_errors=True)
        with suppress(OSError):  # there is none, or another process works there
            self._running.parent.rmdir()

    def clear_dead(self) -> None:
        """Drops what processes that were killed left behind, as far as that can be known from here."""
        unseen = {owner.name for owner in self.claims.dead_owners()}
        for folder in self._running.parent.glob("*"):
            owner = Owner.from_name(folder.name)
            if folder.name in unseen or (owner is not None and owner.seen_dead()):
                shutil.rmtree(folder, ignore_errors=True)

    def _remember(self, planned: tuple[Planned, ...]) -> None:
        """Stores what is to be run, so that a report can say what was not.

        Each plan is a file of its own, named by its cells: of processes that share the folder none loses another's.
        """
        rows = sorted((_row(item.cell) for item in planned), key=lambda row: str(row["cell_id"]))
        folder = self.path / "planned"
        folder.mkdir(exist_ok=True)
        name = content_hash([row["cell_id"] for row in rows])
        write_whole(folder / f"{name}.json", "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")

    def ids(self) -> set[str]:
        """The cells that have a final status, of whatever plan."""
        found = self.cells.iterdir() if self.cells.is_dir() else ()
        return {folder.name for folder in found if _final_status(folder)}

    def counts(self, doubted: Collection[str] = ()) -> dict[str, int]:
        """Cells of the folder by final status; those that are ``doubted`` and ended well count as suspect.

        A cell whose tables or cell.yaml are missing or damaged counts as failed, as in a report.
        """
        final = {name: self._counted(self.cells / name) for name in self.ids()}
        counts = Counter("suspect" if s == "ok" and name in doubted else s for name, s in final.items())
        return {status: counts[status] for status in FINAL_STATUSES}

    def broken(self, cell_id: str) -> str | None:
        """The first file of a cell with a final status that is missing or damaged; None for a whole one."""
        return self._broken(self.cells / cell_id)

    def _counted(self, folder: Path) -> str | None:
        return _final_status(folder) if self._broken(folder) is None else "failed"

    def _broken(self, folder: Path) -> str | None:
        """The first file of a finished cell that is missing or damaged; None for a whole one."""
        status = _read_json(folder / "status.json")
        if not _is_cell(folder):
            return "cell.yaml"
        if not isinstance(status, dict) or status.get("status") not in MEASURED:
            return None
        names = status.get("tables", ["requests.parquet"])  # an older one does not list them
        return next((name for name in names if not self._is_whole(folder / name)), None)

    def _is_whole(self, table: Path) -> bool:
        """Whether a table can be read to its end; read once, as long as the file does not change.

        Raises:
            ConfigError: a later version of ddbench stored it.
        """
        try:
            stat = table.stat()
        except OSError:
            return False
        stamp = stat.st_ino, stat.st_mtime_ns
        if self._whole.get(table) != stamp:
            if damaged(table):
                return False
            _refuse_newer(self.path, table, schema_version(table))
            self._whole[table] = stamp
        return True


def _row(cell: Cell) -> dict[str, Any]:
    """What names a planned cell to people."""
    arm = {name: getattr(cell.arm, name) for name in ("engine", "strategy", "width", "depth", "nodes")}
    where = {name: getattr(cell, name) for name in ("batch_size", "temperature", "block")}
    return {"cell_id": cell.cell_id, **arm, **where}


def _final_status(folder: Path) -> str | None:
    """Raises ConfigError for what a later version stored."""
    path = folder / "status.json"
    data = _read_json(path)
    if not isinstance(data, dict):
        return None
    _refuse_newer(folder.parent.parent, path, data.get("schema"))
    status = data.get("status")
    return status if status in FINAL_STATUSES else None


def _refuse_newer(run: Path, file: Path, version: object) -> None:
    """Raises ConfigError for a version that this one does not know."""
    try:
        check_version(file, version)
    except NewerSchema as error:
        raise ConfigError("run", str(run), f"a run with schemas up to {SCHEMA_VERSION}; {error}") from None


def _is_cell(folder: Path) -> bool:
    """Whether cell.yaml is that of this folder."""
    try:
        data = yaml.safe_load((folder / "cell.yaml").read_text(encoding="utf-8"))
        return Cell.from_dict(data).cell_id == folder.name
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
        return False


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _replace(path: Path, text: str) -> None:
    """Writes a file; one of other contents that stood there becomes ``<stem>-1<suffix>``, ``-2`` and so on."""
    if path.exists() and path.read_bytes() != text.encode():
        number = 1
        while (kept := path.with_stem(f"{path.stem}-{number}")).exists():
            number += 1
        path.rename(kept)
    write_whole(path, text)
