"""Verify passes of several widths in one server: what of a round depends on the width, and a target graph for each.

The tree of a narrow pass is the beginning of the wide one (`ddbench.tree`: budgets are nested), copied into tables of
its own width. SGLang's runner of graphs takes a verify width, and its Triton backend reads each pass's from what the
pass is told, so that runners of several widths live beside each other on the buffers of the widest one: these are
filled before every replay, by the pass that replays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddbench.plugins.sglang.kernels.buffers import Trees
from ddbench.plugins.sglang.masks import captured_sizes
from ddbench.plugins.sglang.refused import Refused


@dataclass(frozen=True)
class VerifyRows:
    """The verify windows of a batch: slots and positions ``[rows, width]``, the same row after row, and what the pass
    is told of the trees."""

    slots: Tensor
    positions: Tensor
    flat_slots: Tensor
    flat_positions: Tensor
    flat_tokens: Tensor
    first_child: Tensor
    next_sibling: Tensor


class Stage:
    """A verify pass of ``width`` tokens a sequence. ``graphs``: SGLang's runner for it; None: the server's own."""

    def __init__(self, width: int, trees: Trees, slots: Tensor, positions: Tensor) -> None:
        self.width, self.trees, self.slots, self.positions = width, trees, slots, positions
        self.graphs: Any = None
        self._rows: dict[int, VerifyRows] = {}

    def rows(self, rows: int) -> VerifyRows:
        """The first ``rows`` of the tables; made once, as `Tables.draft_rows`."""
        found = self._rows.get(rows)
        if found is None:
            slots, positions = self.slots[:rows], self.positions[:rows]
            found = self._rows[rows] = VerifyRows(
                slots,
                positions,
                flat_slots=slots.view(-1),
                flat_positions=positions.view(-1),
                flat_tokens=self.trees.tokens[:rows].view(-1),
                first_child=self.trees.first_child[:rows],
                next_sibling=self.trees.next_sibling[:rows],
            )
        return found

    @classmethod
    def narrow(cls, width: int, rows: int, block: int, device: torch.device | str) -> Stage:
        """With tables of its own."""
        trees = Trees(rows, width, block, device)
        trees.bits[:, 0, 0] = 1  # the root sees itself: all there is in a step without the drafter
        table = torch.zeros((rows, width), dtype=torch.int64, device=device)
        return cls(width, trees, table, table.clone())

    @property
    def drafts(self) -> bool:
        """Whether the drafter is asked."""
        return self.width > 1

    def take(self, wide: Trees, rows: int, roots: Tensor) -> Trees:
        """The trees of this pass: the first nodes of the wide ones, or their roots alone."""
        if wide is self.trees:
            return wide
        if not self.drafts:
            self.trees.tokens[:rows, 0].copy_(roots)
            return self.trees
        for mine, theirs in (
            (self.trees.tokens, wide.tokens),
            (self.trees.parents, wide.parents),
            (self.trees.depths, wide.depths),
        ):
            mine[:rows].copy_(theirs[:rows, : self.width])
        self.trees.bits[:rows].copy_(wide.bits[:rows, : self.width, : self.trees.bits.shape[2]])
        return self.trees

    @contextmanager
    def bound(self, runner: Any) -> Iterator[None]:
        """While it is open, SGLang's ModelRunner replays this pass's graphs."""
        if self.graphs is None:
            yield
            return
        stock = runner.decode_cuda_graph_runner
        runner.decode_cuda_graph_runner = self.graphs
        try:
            yield
        finally:
            runner.decode_cuda_graph_runner = stock


def capture(runner: Any, stages: Sequence[Stage]) -> None:
    """Target graphs of the narrow passes, after those of the widest. Raises Refused for another backend than Triton."""
    if not stages or not captured_sizes(runner.decode_cuda_graph_runner):
        return  # no narrow passes; or a server without graphs, which runs every width as it comes
    if type(runner.attn_backend).__name__ != "TritonAttnBackend":
        raise Refused(f"an adaptive width on {type(runner.attn_backend).__name__}: Triton alone shares its buffers")
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    with _buffers_kept(runner.attn_backend):
        for stage in stages:
            stage.graphs = DecodeCudaGraphRunner(runner, speculative_num_draft_tokens=stage.width)


@contextmanager
def _buffers_kept(backend: Any) -> Iterator[None]:
    """While it is open, a runner of graphs that is made on this backend leaves its buffers where they are: the graphs
    that were captured read them there, and they hold the widest pass."""
    backend.init_cuda_graph_state = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del backend.init_cuda_graph_state
