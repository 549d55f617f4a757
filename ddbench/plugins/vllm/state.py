"""The trees in flight, in buffers whose addresses never change, so that a captured CUDA graph can read them.

Local index: row 0 of a verify window is the root (the last emitted token), row ``i + 1`` is node ``i`` of the tree.
``words`` 32-bit words hold one bit for each local index.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ddbench.plugins.kernels.bits import words_of


class TreeState:
    """Trees by slot, and which slot each row of the running batch verifies.

    Attributes, S slots and as many rows, N nodes, W = N + 1, all int32 on one device:
        tokens ``[S, N]``: token of each node; padding 0.
        parents ``[S, N]``: local index of the parent, 0 the root; -1 padding, which nothing reaches.
        depths ``[S, N]``: 1 for a child of the root; padding 0, so that it stands at the root's position.
        mask ``[S, W, words]``: bit j of row i is set when local index j is i itself or an ancestor of it.
        row_slot ``[S]``: slot of the tree that row r of the batch verifies, -1 for none.
        row_drafts ``[S]``: nodes that row r verifies in this step, a prefix of its tree; 0 for none.
        row_next ``[S]``: slot that row r's next tree is written to, -1 for none.
        of_rows ``[3, S]``: the three in one, so that a single copy brings them to the device.
        path ``[S, N + 1]``: local indices of the path that row r's last walk took, starting with 0; -1 beyond its end.
    """

    def __init__(self, slots: int, nodes: int, device: torch.device) -> None:
        self.slots, self.nodes = slots, nodes
        words = words_of(nodes + 1)

        def table(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int32, device=device)

        self.tokens = table(slots, nodes)
        self.parents = table(slots, nodes, fill=-1)
        self.depths = table(slots, nodes)
        self.mask = table(slots, nodes + 1, words)
        self.of_rows = table(3, slots, fill=-1)
        self.row_slot, self.row_drafts, self.row_next = self.of_rows
        self.row_drafts.zero_()
        self.path = table(slots, nodes + 1, fill=-1)


class Slots:
    """Which request's tree lies in which slot. A lost tree costs speed alone: its row verifies the root."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._of: dict[str, int] = {}
        self._fresh: set[str] = set()  # requests whose tree has not been verified yet

    def take(self, requests: Iterable[str]) -> dict[str, int]:
        """Slots of the unverified trees among ``requests``; from now on all of theirs count as verified."""
        found = {request: self._of[request] for request in requests if request in self._fresh}
        self._fresh.difference_update(requests)
        return found

    def give(self, requests: list[str]) -> list[int]:
        """Slots for the next trees of ``requests``, in their order. Needs no more requests than slots."""
        missing = sum(request not in self._of for request in requests)
        if missing > len(self._free):
            self.drop(set(self._of) - set(requests))
        for request in requests:
            if request not in self._of:
                self._of[request] = self._free.pop()
        return [self._of[request] for request in requests]

    def written(self, requests: list[str]) -> None:
        """The slots of ``requests`` hold new trees."""
        self._fresh.update(requests)

    def drop(self, requests: Iterable[str]) -> None:
        """Frees the slots of requests that have ended."""
        for request in requests:
            slot = self._of.pop(request, None)
            if slot is not None:
                self._free.append(slot)
            self._fresh.discard(request)
