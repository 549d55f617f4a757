"""Slots of trees: never two requests in one, and a tree is given out once, to the request it was made for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from ddbench.errors import ConfigError
from ddbench.plugins.vllm.options import MOST_NODES, Options
from ddbench.plugins.vllm.state import Slots

SIZE = 3
REQUESTS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=SIZE)


class SlotsMachine(RuleBasedStateMachine):
    """Any order of drafting, verifying and ending, also of requests that end without notice (an abort of another kind).

    ``content`` is what a real buffer would hold: whose tree was last written into each slot.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(SIZE)
        self.content: dict[int, str] = {}
        self.unverified: set[str] = set()

    @rule(requests=REQUESTS)
    def put(self, requests: list[str]) -> None:
        given_out = self.slots.give(requests)
        self.slots.written(requests)
        assert len(set(given_out)) == len(requests)
        assert all(0 <= slot < SIZE for slot in given_out)
        self.content |= dict(zip(given_out, requests, strict=True))
        self.unverified |= set(requests)

    @rule(requests=REQUESTS)
    def take(self, requests: list[str]) -> None:
        found = self.slots.take(requests)
        for request, slot in found.items():
            assert self.content[slot] == request  # its own tree and nobody else's
            assert request in self.unverified  # and not for the second time
        self.unverified -= set(requests)

    @rule(requests=REQUESTS)
    def drop(self, requests: list[str]) -> None:
        self.slots.drop(requests)
        self.unverified -= set(requests)


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True, database=None)


def test_a_tree_that_waits_is_kept() -> None:
    slots = Slots(2)
    first = slots.give(["a", "b"])
    assert slots.take(["a", "b"]) == {}  # nothing written yet
    slots.written(["a", "b"])
    assert slots.take(["b"]) == {"b": first[1]}
    assert slots.take(["a", "b"]) == {"a": first[0]}
    assert slots.take(["a", "b"]) == {}


def test_a_lost_tree_only_costs_speed() -> None:
    """More requests pass through than there are slots: who waited loses its tree, and sees none."""
    slots = Slots(2)
    slots.give(["a", "b"])
    slots.written(["a", "b"])
    assert len(set(slots.give(["c", "d"]))) == 2
    slots.written(["c", "d"])
    assert slots.take(["a", "b"]) == {}
    assert set(slots.take(["c", "d"])) == {"c", "d"}


@given(st.integers(1, MOST_NODES), st.integers(2, 17), st.one_of(st.none(), st.integers(1, 200)))
@settings(deadline=None, derandomize=True, database=None)
def test_options_that_are_accepted_have_room_for_themselves(nodes: int, block: int, width: int | None) -> None:
    options = Options(nodes, block, width)
    assert 1 <= options.candidates <= nodes
    assert options.levels == block - 1
    assert options.lookahead > max(nodes, block - 1)


@pytest.mark.parametrize(
    ("group", "key"),
    [
        ({"width": 0}, "width"),
        ({"width": True}, "width"),
        ({"width": 2.0}, "width"),
        ({"depth": 16}, "depth"),
        ({"min_log_prob": 0.5}, "min_log_prob"),
        ({"min_log_prob": float("nan")}, "min_log_prob"),
        ({"force_spine": 1}, "force_spine"),
        ({"trace": 3}, "trace"),
        ({"nodes": 3}, "nodes"),
    ],
)
def test_options_that_cannot_be_are_named(group: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"additional_config\.ddbench\.{key}"):
        Options.of({"ddbench": group}, 24, 16)


@pytest.mark.parametrize(("nodes", "block"), [(0, 16), (MOST_NODES + 1, 16), (16, 1), (16, 18)])
def test_sizes_that_cannot_be_are_named(nodes: int, block: int) -> None:
    with pytest.raises(ConfigError, match=r"num_speculative_tokens|block_size"):
        Options.of({}, nodes, block)


def test_a_spine_needs_its_nodes() -> None:
    with pytest.raises(ConfigError, match="force_spine"):
        Options.of({"ddbench": {"force_spine": True}}, 14, 16)
    assert Options.of({"ddbench": {"force_spine": True, "depth": 14}}, 14, 16).levels == 14
    assert Options.of(None, 8, 16) == Options(8, 16)
