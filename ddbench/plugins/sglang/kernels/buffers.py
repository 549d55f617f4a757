"""The trees of a batch and what a walk leaves, in buffers whose addresses never change.

Local index: entry 0 of a verify window is the root (the last emitted token), entry i + 1 is node i of the tree. N is
the verify width, nodes + 1; B the drafter's block, so that no path has more than B entries, its root counted.
"""

from __future__ import annotations

import torch

from ddbench.plugins.kernels.bits import words_of
from ddbench.plugins.kernels.limits import MOST_DEPTH, MOST_NODES
from ddbench.plugins.sglang.kernels.caps import Caps, require

__all__ = ["Caps", "Trees", "Walk"]


class Trees:
    """The trees of the rows of a batch, row r in entry r.

    Attributes, R rows, W words of 32 bits:
        caps: int32 ``[5]``, `Caps.numbers`; what the next build obeys.
        tokens: int64 ``[R, N]``, the window's tokens, the root's first; padding 0.
        parents: int32 ``[R, N]``, local index of the parent; -1 for the root and for padding.
        depths: int32 ``[R, N]``, 0 for the root and for padding, which so stands at the root's position.
        bits: int32 ``[R, N, W]``, bit j of entry i is set where j is i itself or an ancestor of it. Padding sees itself
            (and, as all entries do, the context before the window).
        first_child, next_sibling: int64 ``[R, N]``, local indices, -1 for none: the links that SGLang calls
            ``retrieve_next_token`` and ``retrieve_next_sibling``. Siblings come best first.
    """

    def __init__(self, rows: int, verify_width: int, block: int, device: torch.device | str) -> None:
        """Raises ConfigError for a verify width or a block that the kernels cannot hold."""
        most = MOST_NODES + 1
        require("verify_width", verify_width, 1 <= verify_width <= most, f"1 to {most}")
        require("block_size", block, 2 <= block <= MOST_DEPTH + 1, f"2 to {MOST_DEPTH + 1}")
        self.rows, self.verify_width, self.block = rows, verify_width, block
        shape = (rows, verify_width)
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.parents = torch.full(shape, -1, dtype=torch.int32, device=device)
        self.depths = torch.zeros(shape, dtype=torch.int32, device=device)
        self.bits = torch.zeros((*shape, words_of(verify_width)), dtype=torch.int32, device=device)
        self.first_child = torch.full(shape, -1, dtype=torch.int64, device=device)
        self.next_sibling = torch.full(shape, -1, dtype=torch.int64, device=device)
        widest = Caps(width=verify_width - 1, depth=block - 1, nodes=verify_width - 1)
        self.caps = torch.tensor(widest.numbers(), dtype=torch.int32, device=device)

    def limit(self, caps: Caps) -> None:
        """Lets the builds that follow on this stream obey ``caps``; check them first."""
        self.caps.copy_(torch.tensor(caps.numbers(), dtype=torch.int32), non_blocking=True)


class Walk:
    """What a walk leaves, for R rows. Two of them in turn outlive one more round, as overlap scheduling needs.

    Attributes:
        path: int32 ``[R, B]``, local indices of the accepted path, 0 (the root) first; -1 beyond its end.
        commit_lens: int32 ``[R]``, length of the path = tokens emitted = accepted + 1.
        bonus: int64 ``[R]``, the target's token after the path's last entry, the next round's root.
        out_tokens: int64 ``[R, B]``, the accepted tokens, then the bonus token; 0 beyond.
        new_seq_lens: int64 ``[R]``, length before the window + commit_lens.
    """

    def __init__(self, rows: int, block: int, device: torch.device | str) -> None:
        self.path = torch.full((rows, block), -1, dtype=torch.int32, device=device)
        self.commit_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.bonus = torch.zeros(rows, dtype=torch.int64, device=device)
        self.out_tokens = torch.zeros((rows, block), dtype=torch.int64, device=device)
        self.new_seq_lens = torch.zeros(rows, dtype=torch.int64, device=device)
