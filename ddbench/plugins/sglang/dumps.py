"""What a recording server writes, round by round, and how it is read: numpy alone, for the engine's side and ours.

A folder of it holds ``recording.json`` (:class:`Layout`, what stands in the other files) and one file a request,
``<request id>.rounds``: a fixed-size record a round and nothing else, so that a file grows by appending. Fields of a
record, little-endian and without gaps::

    position   int32           committed tokens before the round's root: prompt and output before it
    root       int32           the root's token, the last token that was emitted before
    taken      int32           tokens that the round emitted
    log_probs  float32 [d, k]  the drafter's k best log-probabilities of each depth, best first
    ids        int32   [d, k]  their tokens

Rounds that the engine ran beyond a request's end stand there too; a request that was retracted may have two records of
one position, of which the later one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.errors import ConfigError

SCHEMA = 1
OFF, ROOTS, ROUNDS = 0, 1, 2  # what a server records: nothing, rounds of the root alone, rounds as they are
FACTS, SUFFIX = "recording.json", ".rounds"
NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")  # of a request whose rounds are written; others are left out

Rows = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """``depth`` d and ``candidates`` k of every record."""

    depth: int
    candidates: int
    schema: int = SCHEMA

    @property
    def record(self) -> np.dtype[Any]:
        shape = (self.depth, self.candidates)
        whole = [(name, "<i4") for name in ("position", "root", "taken")]
        return np.dtype([*whole, ("log_probs", "<f4", shape), ("ids", "<i4", shape)])


class Writer:
    """Appends to the files of a folder, which is made."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FACTS).write_text(json.dumps(asdict(layout)) + "\n", encoding="utf-8")
        self._folder, self._record = folder, layout.record

    def write(self, requests: Iterable[str], **columns: Rows) -> None:
        """One round of each request; ``columns`` by the fields of a record, row by row."""
        names = list(requests)
        rows = np.empty(len(names), dtype=self._record)
        for field, values in columns.items():
            rows[field] = values
        for name, row in zip(names, rows, strict=True):
            if NAME.fullmatch(name):
                with (self._folder / f"{name}{SUFFIX}").open("ab") as stream:
                    stream.write(row.tobytes())


def layout_of(folder: Path) -> Layout:
    """Raises ConfigError for a folder that no server has recorded into, or of another schema."""
    try:
        found = Layout(**json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError("recording", str(folder), f"a folder with {FACTS} ({type(error).__name__})") from None
    if found.schema != SCHEMA:
        raise ConfigError("recording", f"{folder}, schema {found.schema}", f"schema {SCHEMA}")
    return found


def rounds_of(folder: Path, request: str) -> Rows:
    """The rounds of a request by position, of two at one position the later; none where it had none."""
    path = folder / f"{request}{SUFFIX}"
    record = layout_of(folder).record
    if not path.is_file():
        return np.empty(0, dtype=record)
    found = np.fromfile(path, dtype=record)
    last = {int(position): place for place, position in enumerate(found["position"])}
    return found[[last[position] for position in sorted(last)]]
