"""What every round accepted, as JSON lines: for tests and diagnosis, since it makes the host wait for the device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.plugins.sglang.kernels.buffers import Trees, Walk


@dataclass(frozen=True)
class Trace:
    """Appends to ``path``, one line a row and round: request, tokens and parents of its tree, path, tokens emitted."""

    path: Path

    @classmethod
    def to(cls, path: str | None) -> Trace | None:
        return cls(Path(path)) if path else None

    def write(self, batch: Any, trees: Trees, walk: Walk, in_graph: bool) -> None:
        rows = len(batch.reqs)
        tokens, parents = trees.tokens[:rows].tolist(), trees.parents[:rows].tolist()
        paths, out, lengths = (
            walk.path[:rows].tolist(),
            walk.out_tokens[:rows].tolist(),
            walk.commit_lens[:rows].tolist(),
        )
        with self.path.open("a", encoding="utf-8") as stream:
            for row, request in enumerate(batch.reqs):
                line = {
                    "request": request.rid,
                    "graph": in_graph,
                    "tokens": tokens[row],
                    "parents": parents[row],
                    "path": paths[row][: lengths[row]],
                    "emitted": out[row][: lengths[row]],
                }
                stream.write(json.dumps(line) + "\n")
