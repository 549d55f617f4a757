"""Sizes and limits: what is read from settings and environment, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.kernels.buffers import Caps
from ddbench.plugins.sglang.options import Sizes, caps_at_start

SIZES = Sizes(64, 16, 8)


def test_sizes_of_settings() -> None:
    settings = SimpleNamespace(
        speculative_num_draft_tokens="64", speculative_dflash_block_size=16, speculative_eagle_topk=8
    )
    assert Sizes.of(settings) == SIZES


@pytest.mark.parametrize(("width", "block", "window"), [(64, 16, 64), (9, 16, 16), (16, 16, 16)])
def test_the_window_is_the_wider_of_tree_and_block(width: int, block: int, window: int) -> None:
    assert Sizes(width, block, 1).window == window


@pytest.mark.parametrize("sizes", [(2, 2, 1), (128, 17, 127), (16, 16, 15)])
def test_sizes_at_their_bounds(sizes: tuple[int, int, int]) -> None:
    assert Sizes(*sizes).verify_width == sizes[0]


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [
        ((1, 16, 1), "speculative_num_draft_tokens=1"),
        ((129, 16, 1), "speculative_num_draft_tokens=129"),
        ((16, 1, 1), "speculative_dflash_block_size=1"),
        ((16, 1000, 1), "speculative_dflash_block_size=1000"),
        ((16, 16, 0), "speculative_eagle_topk=0"),
        ((16, 16, 16), "speculative_eagle_topk=16"),
    ],
)
def test_sizes_beyond_their_bounds(sizes: tuple[int, int, int], setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        Sizes(*sizes)


def test_limits_are_the_sizes_where_nothing_is_set() -> None:
    assert caps_at_start(SIZES, {}) == Caps(width=8, depth=15, nodes=63)


def test_limits_of_the_environment() -> None:
    environment = {
        "DDTREE_WIDTH": "2",
        "DDTREE_DEPTH": "4",
        "DDTREE_NODES": "7",
        "DDTREE_MIN_LOG_PROB": "-9.5",
        "DDTREE_FORCE_SPINE": "1",
    }
    assert caps_at_start(SIZES, environment) == Caps(2, 4, 7, -9.5, True)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DDTREE_WIDTH", "9", "width=9"),
        ("DDTREE_WIDTH", "two", "DDTREE_WIDTH=two"),
        ("DDTREE_DEPTH", "16", "depth=16"),
        ("DDTREE_NODES", "64", "nodes=64"),
        ("DDTREE_NODES", "0", "nodes=0"),
        ("DDTREE_MIN_LOG_PROB", "0.5", "min_log_prob=0.5"),
        ("DDTREE_FORCE_SPINE", "yes", "DDTREE_FORCE_SPINE=yes"),
    ],
)
def test_limits_that_are_none(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        caps_at_start(SIZES, {name: value})
    assert says in str(caught.value).replace("'", "")


def test_a_spine_needs_its_nodes() -> None:
    with pytest.raises(ConfigError, match="force_spine"):
        caps_at_start(SIZES, {"DDTREE_FORCE_SPINE": "1", "DDTREE_NODES": "14"})
