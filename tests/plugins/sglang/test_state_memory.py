"""Memory of recurrent states: by hand for Qwen3.6-27B's dimensions, and as part of a server's whole."""

from __future__ import annotations

from dataclasses import replace

from ddbench.plugins.sglang import memory
from ddbench.plugins.sglang.memory import GIB, Model, Setup
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.state_memory import Recurrent, element_of, state_parts

MIB = 2**20
DELTA = Recurrent(layers=48, key_heads=16, value_heads=48, key_size=128, value_size=128, kernel=4)
TARGET = Model(16, 24, 4, 256, 5120, 17_408, 248_320, weight_bytes=54_000_000_000, recurrent=DELTA)
DRAFTER = Model(5, 32, 8, 128, 5120, 17_408, 248_320, weight_bytes=3_000_000_000)
SETUP = Setup("0.5.17", Sizes(16, 16, 4), 8, (1, 8), 4096, 40_000)


def test_a_node_by_hand() -> None:
    assert DELTA.state_bytes() == 48 * 128 * 128 * 4 == 3 * MIB
    assert DELTA.column_bytes() == (2 * 16 * 128 + 48 * 128) * 2 == 20_480
    assert DELTA.node_bytes() == 48 * (3 * MIB + 3 * 20_480)
    assert replace(DELTA, element=2).state_bytes() == 3 * MIB // 2
    assert DELTA.state_bytes(ranks=2) == 3 * MIB // 2
    assert DELTA.column_bytes(ranks=2) == 10_240


def test_the_size_of_a_number_is_the_last_argument_s() -> None:
    assert element_of(()) == element_of(("--mamba-ssm-dtype", "float32")) == 4
    assert element_of(("--mamba-ssm-dtype", "bfloat16")) == element_of(("--a=b", "--mamba-ssm-dtype=bfloat16")) == 2
    assert element_of(("--mamba-ssm-dtype", "bfloat16", "--mamba-ssm-dtype=float32")) == 4


def test_the_parts_of_a_tree_and_of_a_chain() -> None:
    tree = state_parts(DELTA, 8, 8, Sizes(16, 16, 4))
    assert tree["states"] == 48 * 9 * (3 * MIB + 61_440)
    assert tree["node_states"] == 48 * 9 * 16 * 3 * MIB
    assert tree["node_windows"] == 48 * 9 * 16 * 61_440
    chain = state_parts(DELTA, 8, 8, Sizes(16, 16, 1))
    assert chain["node_states"] == tree["node_states"]
    assert chain["node_windows"] == 48 * 9 * 18 * 20_480
    wide = state_parts(DELTA, 8, 8, Sizes(64, 16, 4))
    assert round(wide["node_states"] / 9 / GIB, 1) == 9.0, "a request of 64 nodes"


def test_a_server_needs_them_beside_the_rest() -> None:
    found, dense = memory.parts(SETUP, TARGET, DRAFTER), memory.parts(SETUP, replace(TARGET, recurrent=None), DRAFTER)
    own = state_parts(DELTA, 8, 8, SETUP.sizes)
    assert {name: found[name] for name in own} == own
    assert {name: size for name, size in found.items() if name not in own} == dense
    # They come out of the fraction that weights and pools share, so the rest is as a dense target's.
    plain = replace(TARGET, recurrent=None)
    assert memory.slack_bytes(SETUP, TARGET, DRAFTER) == memory.slack_bytes(SETUP, plain, DRAFTER)
    assert memory._need(SETUP, TARGET, DRAFTER, 40_000)[1] - memory._need(SETUP, plain, DRAFTER, 40_000)[1] == sum(
        own.values()
    )
