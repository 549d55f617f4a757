"""The gated delta rule over a chain or a tree of tokens, exact, with torch operators only.

A head keeps a matrix ``S`` [key, value]. A token with key ``k``, value ``v``, decay ``a = exp(g)`` and rate ``beta``
takes its parent's matrix to its own and reads it with its query (Gated Delta Networks, arXiv:2412.06464, equation 10):

    S = a S_parent + k w^T,   w = beta (v - a S_parent^T k),   out = S^T q

Along the path from the committed matrix ``S0`` to a token ``i``, with ``G_i`` the sum of ``g`` on that path:

    S_i = exp(G_i) S0 + sum over j on the path, i included, of exp(G_i - G_j) k_j w_j^T

so ``w`` solves a triangular system whose entries are ``beta_i exp(G_i - G_j) k_i . k_j`` where ``j`` is a proper
ancestor of ``i``: one system for the whole tree, in which no level waits for another and no matrix is made per node.
The matrix of any node follows from what is kept of its path: keys, ``w`` and ``G``. For a chain this is the form in
which the layer's authors run a chunk of a prompt (section 3.3 there); a tree changes only who is whose ancestor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 64  # tokens of a chain that one triangular system takes; what all known models are trained with


@dataclass(frozen=True)
class Inputs:
    """What a layer made of its tokens, in float32. ``heads`` are the value heads, ``groups`` the fewer key heads.

    ``query`` and ``key`` [rows, groups, tokens, key], unit length, the query divided by the root of its size; ``value``
    [rows, heads, tokens, value]; ``log_decay`` (at most 0) and ``rate`` [rows, heads, tokens].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    rate: Tensor

    @property
    def tokens(self) -> int:
        return self.key.shape[2]

    def slice(self, begin: int, end: int) -> Inputs:
        """The tokens ``begin .. end - 1``."""
        return Inputs(
            self.query[:, :, begin:end],
            self.key[:, :, begin:end],
            self.value[:, :, begin:end],
            self.log_decay[:, :, begin:end],
            self.rate[:, :, begin:end],
        )


@dataclass(frozen=True)
class Writes:
    """What tokens add to the matrix, enough to make that of any of them.

    ``key`` [rows, groups, tokens, key], ``write`` [rows, heads, tokens, value] (``w`` above), ``decay`` [rows, heads,
    tokens] in float64: the log decay of the whole path from the committed matrix (``G`` above).
    """

    key: Tensor
    write: Tensor
    decay: Tensor

    def state(self, committed: Tensor, node: Tensor, ancestors: Tensor) -> Tensor:
        """The matrices [rows, heads, key, value] of one token of every row.

        Args:
            committed: those that the tokens began from, of the same shape.
            node: [rows], which token.
            ancestors: bool [rows, tokens], the node itself and the tokens above it.
        """
        rows = torch.arange(node.shape[0], device=node.device)
        total = self.decay[rows, :, node]  # [rows, heads]
        share = (total[:, :, None] - self.decay).float().masked_fill(~ancestors[:, None], -torch.inf).exp()
        ratio = self.write.shape[1] // self.key.shape[1]
        key = self.key.repeat_interleave(ratio, dim=1) * share[..., None]
        return committed * total.float().exp()[:, :, None, None] + key.transpose(2, 3) @ self.write


def step(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row: its output [rows, heads, 1, value] and its matrices; ``state`` [rows, heads, key, value]."""
    ratio = inputs.value.shape[1] // inputs.key.shape[1]
    key, query = (part.repeat_interleave(ratio, dim=1) for part in (inputs.key, inputs.query))  # [rows, heads, 1, key]
    state = state * inputs.log_decay[..., None].exp()
    write = inputs.rate[..., None] * (inputs.value - key @ state)
    state = state + key.transpose(2, 3) * write
    return query @ state, state


def tree(inputs: Inputs, state: Tensor, ancestors: Tensor) -> tuple[Tensor, Writes]:
    """All tokens of a tree, each from its parent's matrix: outputs [rows, heads, tokens, value], and what they write.

    Args:
        inputs: tokens in an order in which parents come before their children.
        state: the matrices that the root begins from, [rows, heads, key, value]; not changed.
        ancestors: bool [rows or 1, tokens, tokens]: does token ``i`` stand at or below token ``j``?
    """
    ratio = inputs.value.shape[1] // inputs.key.shape[1]
    # Sums in float64: differences of long sums of decays are what the entries are made of.
    decay = inputs.log_decay.double() @ ancestors.double().transpose(1, 2)
    apart = (decay[..., :, None] - decay[..., None, :]).float()
    apart = apart.masked_fill(~ancestors[:, None], -torch.inf).exp()  # [rows, heads, tokens, tokens]
    own = decay.float().exp()[..., None]

    def read(of: Tensor) -> tuple[Tensor, Tensor]:
        """What ``of`` [rows, groups, tokens, key] finds in the committed matrices, and its products with the keys."""
        found = of.repeat_interleave(ratio, dim=1) @ state
        return found * own, (of @ inputs.key.transpose(2, 3)).repeat_interleave(ratio, dim=1) * apart

    rate = inputs.rate[..., None]
    known, overlap = read(inputs.key)
    # The diagonal is taken as ones and what lies above it is not read: the proper ancestors alone count.
    write = torch.linalg.solve_triangular(
        overlap * rate, (inputs.value - known) * rate, upper=False, unitriangular=True
    )
    known, overlap = read(inputs.query)
    return known + overlap @ write, Writes(inputs.key, write, decay)


def chain(inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens one after another, ``CHUNK`` a system: outputs [rows, heads, tokens, value], and the last one's matrices.

    A token of rate 0 and log decay 0 leaves the matrix as it found it: so padding is given.
    """
    if inputs.tokens == 1:
        return step(inputs, state)
    outputs = []
    for begin in range(0, inputs.tokens, CHUNK):
        part = inputs.slice(begin, min(begin + CHUNK, inputs.tokens))
        below = torch.ones(1, part.tokens, part.tokens, dtype=torch.bool, device=state.device).tril()
        output, writes = tree(part, state, below)
        last = torch.full(state.shape[:1], part.tokens - 1, device=state.device)
        state = writes.state(state, last, below[:, -1])
        outputs.append(output)
    return torch.cat(outputs, dim=2), state
