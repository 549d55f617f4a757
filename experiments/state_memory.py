"""Memory of a hybrid target's recurrent states, reckoned before anything starts; docs/hybrid.md has the formulas.

The built-in engine keeps a state a sequence, and until a round's walk a little of every node (:class:`.Dims`). Servers
keep a whole state of every token of a window, for one request more than may run (:class:`.Recurrent`, which is
SGLang's own allocation; vLLM's is taken to be alike, and is part of the cache that it is given).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddbench.plugins.sglang.state_memory import Recurrent, element_of
from experiments.ranges import require

CONV_BYTES = 2  # a number of a convolution window in a server, whatever the model's dtype


@dataclass(frozen=True)
class DeltaNetSettings:
    """The gated delta nets of a hybrid target, as its ``config.json`` has them (``linear_num_key_heads`` and so on): in
    every layer that keeps no key-value cache."""

    key_heads: int
    value_heads: int
    key_size: int  # numbers a head
    value_size: int
    conv_kernel: int  # tokens that the short convolution sees, its own counted

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_size", "value_size", "conv_kernel"):
            require(f"model.target.delta_nets.{name}", [getattr(self, name)], lambda v: v >= 1, "an integer >= 1")
        many = f"a number that divides the {self.value_heads} value heads, which share the keys evenly"
        require("model.target.delta_nets.key_heads", [self.key_heads], lambda v: self.value_heads % v == 0, many)


def state_bytes(
    nets: DeltaNetSettings, layers: int, engine: str, requests: int, window: int, size: int, args: Sequence[str]
) -> int:
    """Bytes of all recurrent states of ``layers`` delta nets for ``requests`` sequences.

    Args:
        window: tokens of a sequence that a verify pass takes, root counted; 0 for autoregressive decoding.
        size: bytes of a number of the model.
        args: further arguments of a server (``--mamba-ssm-dtype``).
    """
    if engine == "reference":
        return _built_in(nets, layers, requests, window, size)
    element = element_of(args)
    state = Recurrent(
        *(layers, nets.key_heads, nets.value_heads, nets.key_size, nets.value_size, nets.conv_kernel),
        element=element,
        conv_element=CONV_BYTES,
    ).node_bytes()
    return (requests + 1) * (1 + window) * state


def _built_in(nets: DeltaNetSettings, layers: int, requests: int, window: int, size: int) -> int:
    from ddbench.decoding.states import Dims  # the engine takes a while to import

    dims = Dims(nets.key_heads, nets.value_heads, nets.key_size, nets.value_size, nets.conv_kernel)
    return requests * layers * (dims.state_bytes(size) + window * dims.node_bytes(size))
