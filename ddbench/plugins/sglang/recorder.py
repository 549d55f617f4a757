"""Recording for exact replay: what the drafter offers in every round, kept by the drafter's graph, written after it.

``DDTREE_RECORD`` names a folder (`dumps` has its files) and turns it on at a server's start; ``DDTREE_RECORD_NODES`` is
the number of candidates that are kept of a position, as many as the tree has room for if left out, and may be more than
that. The host waits for the device in every round that is written: such a server says so, and answers no question of
time. What it does while it runs is set as its trees' limits are (`control`), by ``ddtree_record``:

    0  nothing
    1  rounds of the root alone: each emits the target's next token and nothing else, whatever was drafted, so that the
       text is that of autoregressive decoding and every token of it is the root of a round. As it starts.
    2  rounds as they are
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.limits import MOST_NODES
from ddbench.plugins.sglang.dumps import OFF, ROOTS, ROUNDS, Layout, Writer
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.options import RECORD, RECORD_NODES, Sizes, whole_number


class Recorder:
    """Candidates of the rows of a batch, ``[R, B - 1, k]`` at fixed addresses, and the files they go to.

    ``candidates`` k is at least what trees are built of: their part is the first of it.
    """

    def __init__(self, folder: Path, candidates: int, rows: int, sizes: Sizes, device: torch.device | str) -> None:
        self.folder, self.candidates, self.mode = folder, candidates, ROOTS
        shape = (rows, sizes.block - 1, candidates)
        self._log_probs = torch.zeros(shape, dtype=torch.float32, device=device)
        self._ids = torch.zeros(shape, dtype=torch.int32, device=device)
        self._writer = Writer(folder, Layout(sizes.block - 1, candidates))

    @classmethod
    def of(
        cls, environment: Mapping[str, str] | None, rows: int, sizes: Sizes, device: torch.device | str
    ) -> Recorder | None:
        """As the environment asks; None where it asks for none. Raises ConfigError."""
        found = os.environ if environment is None else environment
        if not found.get(RECORD):
            return None
        candidates = whole_number(found, RECORD_NODES, sizes.top_k)
        if not sizes.top_k <= candidates <= MOST_NODES:
            allowed = f"{sizes.top_k} to {MOST_NODES}: at least the candidates of the trees"
            raise ConfigError(RECORD_NODES, candidates, allowed)
        return cls(Path(found[RECORD]), candidates, rows, sizes, device)

    def keep(self, log_probs: Tensor, ids: Tensor) -> None:
        """Takes the candidates of a batch, ``[R, B - 1, k]``: part of the drafter's graph."""
        rows = log_probs.shape[0]
        self._log_probs[:rows].copy_(log_probs)
        self._ids[:rows].copy_(ids)

    def set(self, mode: int) -> None:
        """What the rounds that follow do. Raises ConfigError."""
        if mode not in (OFF, ROOTS, ROUNDS):
            raise ConfigError("ddtree_record", mode, "0 off, 1 rounds of the root alone, 2 rounds as they are")
        self.mode = mode

    def forced(self, rows: int) -> Tensor | None:
        """Lengths of path for the walk: of the root alone, or None for what the target follows."""
        if self.mode != ROOTS:
            return None
        return torch.ones(rows, dtype=torch.int32, device=self._ids.device)

    def write(self, requests: list[str], seq_lens: Tensor, trees: Trees, walk: Walk) -> None:
        """The round that was just walked; ``seq_lens`` are those before it."""
        if self.mode == OFF:
            return
        rows = len(requests)
        self._writer.write(
            requests,
            position=_numbers(seq_lens[:rows]),
            root=_numbers(trees.tokens[:rows, 0]),
            taken=_numbers(walk.commit_lens[:rows]),
            log_probs=_numbers(self._log_probs[:rows]),
            ids=_numbers(self._ids[:rows]),
        )


def _numbers(tensor: Tensor) -> Any:
    return tensor.cpu().numpy()
