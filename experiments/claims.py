"""Which cell is whose, when several processes work in one run folder, on one machine or on many.

A claim is a file ``<cell_id>.<number>`` in ``.claims/``, put there by a hard link, which either makes the name or
fails, on NFS too. The highest number of a cell is the claim that holds. Nobody removes another's claim: who finds its
owner dead makes the next number, and of several who try one succeeds. The owner removes all numbers, the lowest first.

An owner is dead at once if it can be seen from here that its process has ended. Otherwise its file's time must change,
which the owner sees to every ``heartbeat_s`` seconds; it is dead when it has been seen to stay the same for ``stale_s``
seconds of this process's own monotonic clock. The wall clocks of the hosts do not matter.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.owners import Owner, this_process

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # file systems without hard links


@dataclass(frozen=True)
class Claim:
    """A claim of another process as its file says. ``owner`` None: the file cannot be read (yet)."""

    path: Path
    number: int
    owner: Owner | None
    group: str | None


class Claims:
    """The claims of one process in the folder ``path``. Safe to use after a fork only in the parent."""

    def __init__(self, path: Path, heartbeat_s: float = 10.0, stale_s: float = 120.0) -> None:
        self.path, self.owner = path, this_process()
        self._heartbeat_s, self._stale_s = heartbeat_s, stale_s
        self._mine: dict[str, Path] = {}  # by cell
        self._seen: dict[Path, tuple[int, float]] = {}  # time of a file, and since when it has been that
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._pulse: threading.Thread | None = None

    def take(self, cell_id: str, group: str) -> bool:
        """Makes the cell this process's own; False while another process that may live has it."""
        if cell_id in self._mine:
            return True
        found = self._found(cell_id)
        if found and not self._dead(found[-1]):
            return False
        number = found[-1].number + 1 if found else 0
        self.path.mkdir(parents=True, exist_ok=True)
        claim = self.path / f"{cell_id}.{number}"
        if not self._create(claim, json.dumps({"owner": asdict(self.owner), "group": group})):
            return False
        with self._lock:
            self._mine[cell_id] = claim
        self._beat()
        return True

    def holds(self, cell_id: str) -> bool:
        """Whether the cell is still this process's: no other has taken it for dead."""
        mine, found = self._mine.get(cell_id), self._found(cell_id)
        return mine is not None and bool(found) and found[-1].path == mine

    def release(self, cell_id: str) -> None:
        """Gives the cell up, if it is still this process's own."""
        if self.holds(cell_id):
            for claim in self._found(cell_id):
                claim.path.unlink(missing_ok=True)
        with self._lock:
            self._mine.pop(cell_id, None)

    def others(self) -> dict[str, Claim]:
        """By cell, the claims that other processes hold and that are not known to be dead."""
        found: dict[str, Claim] = {}
        for name in self._names():
            cell_id, number = _parts(name)
            highest = found[cell_id].number if cell_id in found else -1
            if cell_id not in self._mine and number > highest:
                found[cell_id] = self._read(cell_id, number)
        return {cell_id: claim for cell_id, claim in found.items() if not self._dead(claim)}

    def dead_owners(self) -> list[Owner]:
        """The owners of claims that were found dead, for those who clear up after them."""
        claims = [self._read(*_parts(name)) for name in self._names() if _parts(name)[1] >= 0]
        return [claim.owner for claim in claims if claim.owner is not None and self._dead(claim)]

    def close(self) -> None:
        """Gives up all cells."""
        self._over.set()
        if self._pulse is not None:
            self._pulse.join()
            self._pulse = None
        for cell_id in list(self._mine):
            self.release(cell_id)
        with suppress(OSError):  # there is none, or other processes have claims
            self._clear_drafts()
            self.path.rmdir()

    def _clear_drafts(self) -> None:
        """Drops what owners left that were killed while they made a claim."""
        for name in self._names():
            owner = Owner.from_name(name[1:]) if name.startswith(".") else None
            if owner is not None and owner.seen_dead():
                (self.path / name).unlink(missing_ok=True)

    def _create(self, claim: Path, text: str) -> bool:
        """Makes a file that nobody has made; False if somebody has. Raises OSError."""
        draft = self.path / f".{self.owner.name}"
        try:
            draft.write_text(text, encoding="utf-8")
            os.link(draft, claim)
        except FileExistsError:
            return False
        except OSError as error:
            if draft.exists() and draft.stat().st_nlink == 2:  # of NFS, whose answer got lost: the link is there
                return True
            if error.errno not in NO_LINKS:
                raise
            return _create_exclusively(claim, text)
        finally:
            draft.unlink(missing_ok=True)
        return True

    def _beat(self) -> None:
        if self._pulse is None:
            self._over.clear()
            self._pulse = threading.Thread(target=self._beats, name="ddbench-claims", daemon=True)
            self._pulse.start()

    def _beats(self) -> None:
        while not self._over.wait(self._heartbeat_s):
            with self._lock:
                mine = list(self._mine.values())
            for claim in mine:
                with suppress(OSError):  # given up meanwhile; or the file system is away, and others will say so
                    os.utime(claim)

    def _found(self, cell_id: str) -> list[Claim]:
        """All numbers of a cell, the lowest first."""
        numbers = [_parts(name)[1] for name in self._names() if _parts(name)[0] == cell_id]
        return [self._read(cell_id, number) for number in sorted(numbers) if number >= 0]

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.path.iterdir()]
        except FileNotFoundError:
            return []

    def _read(self, cell_id: str, number: int) -> Claim:
        path = self.path / f"{cell_id}.{number}"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return Claim(path, number, Owner(**data["owner"]), str(data["group"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Claim(path, number, None, None)

    def _dead(self, claim: Claim) -> bool:
        if claim.owner is not None and claim.owner.seen_dead():
            return True
        changed = _time_of(claim.path)
        if changed is None:
            return False  # gone meanwhile: it was given up
        before, since = self._seen.get(claim.path, (None, 0.0))
        now = time.monotonic()
        if before != changed:
            self._seen[claim.path] = (changed, now)
            return False
        return now - since > self._stale_s


def _parts(name: str) -> tuple[str, int]:
    """Cell and number of a claim's file name; -1 for another file."""
    cell_id, _, number = name.rpartition(".")
    return (cell_id, int(number)) if cell_id and number.isdecimal() else (name, -1)


def _time_of(path: Path) -> int | None:
    """When a file changed, in nanoseconds. It is opened, at which NFS asks the server and not its cache."""
    try:
        with path.open("rb") as stream:
            return os.fstat(stream.fileno()).st_mtime_ns
    except OSError:
        return None


def _create_exclusively(path: Path, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    return True
