"""Keys and values of a batch of sequences: one static buffer, a row a sequence, token ``p`` of a row in slot ``p``.

Active sequences hold rows ``0 .. n-1``, so that attention reads a view ``[:n, :, :kv_len]`` and never gathers the
cache. Slots past a row's length hold leftovers; masks hide them and the next write overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddbench.drafters.attention import KeyValue
from ddbench.errors import ConfigError

_ALIGN = 16  # view lengths are rounded up to this: fewer distinct shapes, and masks that attention kernels like


def round_up(length: int) -> int:
    return -(-length // _ALIGN) * _ALIGN


@dataclass(frozen=True)
class Slots:
    """Where the keys and values of one forward pass go: rows ``first .. first + rows - 1``, slots per row.

    ``start`` is set when all rows write the same slots ``start .. start + tokens - 1``; then a plain slice serves.
    """

    first: int
    rows: int
    tokens: int
    start: int | None
    index: Tensor | None  # slots [rows, tokens]
    row_index: Tensor | None  # rows [rows, 1]

    @classmethod
    def following(cls, lengths: Sequence[int], lengths_tensor: Tensor, tokens: int) -> Slots:
        """``tokens`` new slots after the ``lengths`` of rows 0, 1, ..."""
        rows = len(lengths)
        if min(lengths) == max(lengths):
            return cls(0, rows, tokens, lengths[0], None, None)
        device = lengths_tensor.device
        index = lengths_tensor[:, None] + torch.arange(tokens, device=device)
        return cls(0, rows, tokens, None, index, torch.arange(rows, device=device)[:, None])

    def numbered(self, device: torch.device) -> Tensor:
        """The slots themselves, [rows, tokens]."""
        if self.index is not None:
            return self.index
        assert self.start is not None
        return torch.arange(self.start, self.start + self.tokens, device=device).expand(self.rows, -1)

    @classmethod
    def fresh(cls, first: int, lengths: Sequence[int], positions: Tensor, spare: int) -> Slots:
        """Prompts padded on the left, from slot 0 on; padding (position < 0) goes to the ``spare`` slot.

        ``positions`` [rows, tokens] are the tokens' positions, negative for padding.
        """
        rows, tokens = positions.shape
        if min(lengths) == tokens:
            return cls(first, rows, tokens, 0, None, None)
        index = torch.where(positions < 0, spare, positions)
        return cls(
            first, rows, tokens, None, index, torch.arange(first, first + rows, device=positions.device)[:, None]
        )


class KVBuffer:
    """Static keys and values [layers, 2, rows, kv_heads, length + 1, head_dim]; the last slot takes padding."""

    def __init__(
        self,
        layers: int,
        rows: int,
        kv_heads: int,
        length: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = round_up(length)
        self.data = torch.zeros(layers, 2, rows, kv_heads, self.length + 1, head_dim, dtype=dtype, device=device)
        self._layers = [(self.data[layer, 0], self.data[layer, 1]) for layer in range(layers)]

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def spare(self) -> int:
        """The slot that padding is written to and no mask shows."""
        return self.length

    def write(self, layer: int, slots: Slots, key: Tensor, value: Tensor) -> None:
        """Stores ``key`` and ``value`` [rows, kv_heads, tokens, head_dim] at ``slots``.

        Raises:
            ConfigError: heads or head size differ from the buffer's (an attention kind that it cannot hold).
        """
        for buffer, new in zip(self._layers[layer], (key, value), strict=True):
            if new.shape[1] != buffer.shape[1] or new.shape[3] != buffer.shape[3]:
                shape = f"{new.shape[1]} heads of {new.shape[3]}"
                raise ConfigError("target", shape, f"keys and values of {buffer.shape[1]} heads of {buffer.shape[3]}")
            if slots.start is not None:
                rows = slice(slots.first, slots.first + slots.rows)
                buffer[rows, :, slots.start : slots.start + slots.tokens] = new
            else:
                buffer[slots.row_index, :, slots.index] = new.transpose(1, 2)

    def view(self, layer: int, rows: int, length: int) -> KeyValue:
        """Views [rows, kv_heads, length, head_dim] of the first ``rows`` rows."""
        key, value = self._layers[layer]
        return key[:rows, :, :length], value[:rows, :, :length]

    def compact(self, lengths: Tensor, path: Tensor) -> None:
        """Moves the accepted path to the front of what a verify pass wrote, in every layer at once.

        Args:
            lengths: committed slots before the pass, [rows].
            path: verify-row indices of the accepted path, [rows, path], increasing, padded with -1.
        """
        rows, steps = path.shape
        offsets = torch.arange(steps, device=path.device)
        row_index = torch.arange(rows, device=path.device)[:, None]
        source = lengths[:, None] + torch.where(path < 0, offsets, path)
        self.data[:, :, row_index, :, lengths[:, None] + offsets] = self.data[:, :, row_index, :, source]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copies the first ``length`` slots of row ``source`` over row ``target``."""
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]
