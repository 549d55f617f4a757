"""The stretch of a decode that is measured: from its clock's mark on, without what is rehearsed before it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ddbench.storage import write_whole
from runners.telemetry import Telemetry

if TYPE_CHECKING:
    from ddbench.decoding.graphs import Graphs

NOTES = "engine.json"  # of a cell


class MeasuredSpan:
    """Begins the telemetry when it is called, which decoding does just before its clock's mark, and ends it with its
    context; tells how much of what was measured was replayed from CUDA graphs."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry, self._open = telemetry, ExitStack()
        self._graphs: Graphs | None = None
        self._before = (0, 0, 0)

    def __enter__(self) -> MeasuredSpan:
        return self

    def __call__(self, graphs: Graphs | None) -> None:
        """``graphs``: those of the decode, None where its passes run without."""
        self._graphs, self._before = graphs, _counts(graphs)
        self._open.enter_context(self._telemetry)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def graphs(self) -> dict[str, int] | None:
        """Graphs, those of them that were captured while it was measured, and passes (of target, block drafter and
        build) that were replayed from one meanwhile and that were not; None where passes run without."""
        if self._graphs is None:
            return None
        captured, replayed, direct = (now - then for now, then in zip(_counts(self._graphs), self._before, strict=True))
        return {
            "captured": self._graphs.captured,
            "captured_while_measured": captured,
            "passes_replayed": replayed,
            "passes_not_replayed": direct,
        }

    def note(self, folder: Path, asked: bool) -> str | None:
        """Leaves :meth:`graphs` in the cell's folder. Returns why the cell is not what its flags say where graphs were
        ``asked`` for and none was replayed; None if it is."""
        found = self.graphs()
        if found is not None:
            write_whole(folder / NOTES, json.dumps({"cuda_graphs": found}, indent=1) + "\n")
        if not asked or (found is not None and found["passes_replayed"] > 0):
            return None
        return "cuda_graphs is on, and nothing that was measured was replayed from a graph"


def _counts(graphs: Graphs | None) -> tuple[int, int, int]:
    return (0, 0, 0) if graphs is None else (graphs.captured, graphs.replayed, graphs.direct)
