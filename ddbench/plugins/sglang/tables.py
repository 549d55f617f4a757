"""The tables of a round: what it reads of a request's state once, and never again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddbench.plugins.sglang.options import Sizes


class Lengths(NamedTuple):
    """At least the committed length of every row of a batch: int32 ``[rows]`` on the host, and their sum."""

    each: Tensor
    total: int

    @property
    def mean(self) -> float:
        return self.total / len(self.each)


@dataclass(frozen=True)
class DraftRows:
    """The drafter's blocks of a batch, ``[rows, B]`` of `Tables`, and the same tables row after row."""

    ids: Tensor
    chain: Tensor
    slots: Tensor
    flat_ids: Tensor
    flat_chain: Tensor
    flat_slots: Tensor


class Tables:
    """Buffers for the rows of a batch, N the verify width and B the drafter's block.

    SGLang tells its scheduler before the target's graph is replayed that the slot table has been read; from then on a
    row of it may be another request's. So the slots of a round are read here before that, and only here.

    Attributes:
        block_ids: int64 ``[R, B]``, the root and mask tokens.
        chain: int64 ``[R, B]``, positions of the block, and of the path once it is accepted.
        draft_slots: int64 ``[R, B]``, cache slots of these positions.
        slots: int64 ``[R, N]``, cache slots of the verify window.
        positions: int64 ``[R, N]``, positions of the tree's entries.
        host_lens: int32 ``[R]`` on the host, at least the committed lengths.
    """

    def __init__(self, rows: int, sizes: Sizes, device: torch.device | str) -> None:
        def table(width: int) -> Tensor:
            return torch.zeros((rows, width), dtype=torch.int64, device=device)

        self.block_ids, self.chain, self.draft_slots = table(sizes.block), table(sizes.block), table(sizes.block)
        self.slots, self.positions = table(sizes.verify_width), table(sizes.verify_width)
        self.host_lens = torch.zeros(rows, dtype=torch.int32)
        self._draft_rows: dict[int, DraftRows] = {}

    def draft_rows(self, rows: int) -> DraftRows:
        """The first ``rows`` of the drafter's tables; made once, since a view costs the host a microsecond or two."""
        found = self._draft_rows.get(rows)
        if found is None:
            tables = [table[:rows] for table in (self.block_ids, self.chain, self.draft_slots)]
            found = self._draft_rows[rows] = DraftRows(*tables, *(table.view(-1) for table in tables))
        return found

    def bound(self, batch: Any, draft_input: Any, slack: int) -> Lengths:
        """At least the committed lengths of this batch, in ``host_lens``.

        The host lags a round behind the device, and a round commits ``slack`` tokens at most.
        """
        lens = self.host_lens[: len(batch.seq_lens)]
        reserved = getattr(draft_input, "reserved_seq_lens_cpu", None)  # of 0.5.17
        if reserved is None:
            reserved = getattr(draft_input, "nxt_kv_lens_cpu", None)  # the same of 0.5.23
        if batch.seq_lens_cpu is not None:
            lens.copy_(batch.seq_lens_cpu).add_(slack)
        elif reserved is not None:
            lens.copy_(reserved)
        else:
            lens.copy_(batch.seq_lens)  # waits for the device: as SGLang's own last resort
        return Lengths(lens, int(lens.sum()))
