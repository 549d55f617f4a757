"""States of recurrent layers for a batch of sequences, beside the key-value cache, and those of a pass over a tree.

A layer with a gated delta net keeps of a sequence the last inputs of its convolution and one matrix a head. A verify
pass begins every node from its parent's: the links say whose that is. What the nodes add stays beside the states until
the walk is known; the state of the last accepted node then becomes the sequence's, and the rest is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ddbench.decoding.gated_delta import Inputs, Writes, chain, tree
from ddbench.tree.layout import row_parents


@dataclass(frozen=True)
class Links:
    """Who follows whom among the tokens of a verify pass; token 0 is the root, parents stand before their children.

    ``parents`` [rows, tokens]: the token that each follows, -1 for the root, which follows the committed ones (and for
    padding, which nothing reads). ``ancestors`` bool [rows or 1, tokens, tokens]: token ``j`` is ``i`` or above it.
    """

    parents: Tensor
    ancestors: Tensor

    @classmethod
    def of(cls, parents: Tensor, ancestors: Tensor) -> Links:
        """From a proposal: ``parents`` [rows, nodes] without the root, ``ancestors`` with it."""
        return cls(row_parents(parents), ancestors)

    def window(self, width: int) -> Tensor:
        """[rows, tokens, width]: each token's own column and those of the ``width - 1`` tokens before it, oldest first.

        Columns are those of the ``width - 1`` last committed tokens, oldest first, followed by the pass's tokens.
        """
        past = width - 1
        rows, tokens = self.parents.shape
        columns = torch.arange(past + tokens, device=self.parents.device)
        before = torch.cat(((columns[:past] - 1).expand(rows, -1), past + self.parents), dim=1)
        steps = [columns[past:].expand(rows, -1)]
        for _ in range(past):
            steps.append(before.gather(1, steps[-1]))
        return torch.stack(steps[::-1], dim=2)


@dataclass(frozen=True)
class Pass:
    """One forward pass: rows ``first .. first + rows - 1`` take in tokens [rows, tokens].

    Without ``links`` the tokens are a chain that is committed at once. ``fresh``: the rows hold no sequence yet.
    ``real`` [rows, tokens] is False for padding, which stands before a prompt; None: no padding.
    """

    first: int
    fresh: bool
    real: Tensor | None
    links: Links | None

    @cached_property
    def windows(self) -> dict[int, Tensor]:
        return {}

    def window(self, width: int) -> Tensor:
        """The links' window, made once for all layers."""
        assert self.links is not None
        if width not in self.windows:
            self.windows[width] = self.links.window(width)
        return self.windows[width]


@dataclass(frozen=True)
class Dims:
    """Sizes of one layer's state: ``groups`` key heads of ``key``, ``heads`` value heads of ``value``."""

    groups: int
    heads: int
    key: int
    value: int
    window: int  # inputs of the convolution, the token's own among them

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values side by side."""
        return 2 * self.groups * self.key + self.heads * self.value

    def state_bytes(self, element: int) -> int:
        """Of a sequence, with convolution inputs of ``element`` bytes; the matrices are float32."""
        return self.channels * (self.window - 1) * element + self.heads * self.key * self.value * 4

    def node_bytes(self, element: int) -> int:
        """What a verify pass keeps of a token until the walk: convolution input, key, write and float64 decay."""
        return self.channels * element + (self.groups * self.key + self.heads * self.value) * 4 + self.heads * 8


@dataclass(frozen=True)
class Kept:
    """Of one layer, until the walk: the convolution's inputs [rows, tokens, channels] and what the tokens write."""

    inputs: Tensor
    writes: Writes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.inputs, self.writes.key, self.writes.write, self.writes.decay


class LayerState:
    """One layer's states: ``conv`` [rows, window - 1, channels], newest last, and ``matrix`` [rows, heads, key, value].

    The matrices are float32 whatever the model's dtype, as in the layer's own implementation.
    """

    def __init__(self, dims: Dims, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dims = dims
        self.conv = torch.zeros(rows, dims.window - 1, dims.channels, dtype=dtype, device=device)
        self.matrix = torch.zeros(rows, dims.heads, dims.key, dims.value, dtype=torch.float32, device=device)
        self.kept: Kept | None = None

    def before(self, new: Tensor, now: Pass) -> Tensor:
        """The inputs of the convolution with those committed before them: [rows, window - 1 + tokens, channels].

        A chain's last ones are the rows' state from here on.
        """
        rows = slice(now.first, now.first + new.shape[0])
        if now.real is not None:
            new = new * now.real[:, :, None]
        past = torch.zeros_like(self.conv[rows]) if now.fresh else self.conv[rows]
        columns = torch.cat((past, new), dim=1)
        if now.links is None:
            self.conv[rows] = columns[:, columns.shape[1] - past.shape[1] :]
        return columns

    def advance(self, inputs: Inputs, columns: Tensor, now: Pass) -> Tensor:
        """The tokens' outputs [rows, heads, tokens, value]; ``columns`` are those of :meth:`before`."""
        rows = slice(now.first, now.first + columns.shape[0])
        if now.links is not None:
            output, writes = tree(inputs, self.matrix[rows], now.links.ancestors)
            self.kept = Kept(columns[:, self.dims.window - 1 :], writes)
            return output
        start = torch.zeros_like(self.matrix[rows]) if now.fresh else self.matrix[rows]
        if now.real is not None:
            real = now.real[:, None]
            inputs = Inputs(inputs.query, inputs.key, inputs.value, inputs.log_decay * real, inputs.rate * real)
        output, self.matrix[rows] = chain(inputs, start)
        return output

    def commit(self, node: Tensor, now: Pass) -> None:
        """The state of ``node`` [rows] of the pass becomes each row's."""
        assert now.links is not None
        assert self.kept is not None
        count = node.shape[0]
        rows = torch.arange(count, device=node.device)
        ancestors = now.links.ancestors.expand(count, -1, -1)[rows, node]
        self.matrix[:count] = self.kept.writes.state(self.matrix[:count], node, ancestors)
        columns = torch.cat((self.conv[:count], self.kept.inputs), dim=1)
        self.conv[:count] = columns[rows[:, None], now.window(self.dims.window)[rows, node, 1:]]
        self.kept = None


class RecurrentStates:
    """The states of all recurrent layers of a target, by layer index; ``rows`` sequences.

    A pass is announced with :meth:`begin`, and one over a tree must be committed before the next: a state that is not
    the last accepted node's never goes on unnoticed.
    """

    def __init__(self, layers: dict[int, Dims], rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = {index: LayerState(dims, rows, dtype, device) for index, dims in layers.items()}
        self._now: Pass | None = None

    @property
    def now(self) -> Pass:
        assert self._now is not None, "a recurrent layer ran outside of a pass of its target"
        return self._now

    def begin(self, now: Pass) -> None:
        assert not self.pending, "a verify pass was not committed"
        self._now = now

    @property
    def pending(self) -> bool:
        """Whether nodes of a verify pass wait for their walk."""
        return any(state.kept is not None for state in self.layers.values())

    def commit(self, node: Tensor) -> None:
        """``node`` [rows]: the token of the last verify pass, root 0, whose state each row's sequence goes on from."""
        for state in self.layers.values():
            state.commit(node, self.now)

    def move_row(self, source: int, target: int) -> None:
        for state in self.layers.values():
            state.conv[target] = state.conv[source]
            state.matrix[target] = state.matrix[source]

    @property
    def sequence_bytes(self) -> int:
        """Of one sequence, all layers together."""
        return sum(state.dims.state_bytes(state.conv.element_size()) for state in self.layers.values())

    @property
    def node_bytes(self) -> int:
        """Kept of one token of a verify pass until the walk, all layers together."""
        return sum(state.dims.node_bytes(state.conv.element_size()) for state in self.layers.values())
