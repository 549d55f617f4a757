"""What the recurrent states of a hybrid target take, computed before a start. Sizes in bytes, of one rank.

SGLang holds a state and a convolution window a sequence, and for the verify pass another of both for every entry of the
window of every request: N states a layer and request, N the verify width. A delta net's state of the Qwen3-Next kind is
2 MiB in float32 (32 heads of 128 x 128), so that N = 64 takes 4.5 GiB a request in 36 layers. ``--mamba-ssm-dtype
bfloat16`` halves it; then a state is rounded after every token, as in autoregressive decoding with that setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddbench.plugins.sglang.options import Sizes  # which imports torch

SSM_DTYPE = "--mamba-ssm-dtype"


def element_of(arguments: Sequence[str]) -> int:
    """Bytes a number of a state has by a server's arguments: 4 unless they say otherwise, as the models' configs do."""
    words = [word for each in arguments for word in each.split("=", 1)]
    given = [value for name, value in pairwise(words) if name == SSM_DTYPE]
    return 2 if given and given[-1] in ("bfloat16", "float16") else 4


@dataclass(frozen=True)
class Recurrent:
    """The delta nets of a target, as its configuration has them (``linear_num_key_heads`` and so on).

    ``kernel``: tokens of the short convolution, its own counted. ``element``: bytes a number of a state (4, or 2 with
    ``--mamba-ssm-dtype bfloat16``), ``conv_element`` of a convolution window (``SGLANG_MAMBA_CONV_DTYPE``).
    """

    layers: int
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int
    element: int = 4
    conv_element: int = 2

    def state_bytes(self, ranks: int = 1) -> int:
        """Of one layer after one token."""
        return self.value_heads // ranks * self.value_size * self.key_size * self.element

    def column_bytes(self, ranks: int = 1) -> int:
        """Of one token in a layer's convolution window."""
        channels = 2 * self.key_heads * self.key_size + self.value_heads * self.value_size
        return channels // ranks * self.conv_element

    def node_bytes(self, ranks: int = 1) -> int:
        """What one more node of a tree costs a request, all layers together."""
        return self.layers * (self.state_bytes(ranks) + (self.kernel - 1) * self.column_bytes(ranks))


def state_parts(recurrent: Recurrent, slots: int, requests: int, sizes: Sizes, ranks: int = 1) -> dict[str, int]:
    """``slots``: sequences whose states the pool holds, as many as ``requests`` without a prefix cache.

    One more of each is there for padding. A chain's windows (K = 1) overlap and are held once.
    """
    width, window = sizes.verify_width, recurrent.kernel - 1
    columns = width * window if sizes.top_k > 1 else width + window - 1
    state, column, layers = recurrent.state_bytes(ranks), recurrent.column_bytes(ranks), recurrent.layers
    return {
        "states": layers * (slots + 1) * (state + window * column),
        "node_states": layers * (requests + 1) * width * state,
        "node_windows": layers * (requests + 1) * columns * column,
    }
