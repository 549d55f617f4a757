"""Every node of every tree of a hybrid against the slow twin, with refills and moved rows; planted faults are caught.

What is checked: the logits of all nodes of all verify passes, and after every round the states of all rows, each
against the stock model run on that path alone. Tolerance 2e-3 on logits of up to 18 and states of up to 18 in float32:
the stock model's own two forms, a prompt at once and token by token, differ by up to 3e-4. A planted fault must be off
by more than a hundred times the tolerance.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddbench.decoding import Request
from ddbench.decoding.kv import Slots
from ddbench.decoding.masks import chain_ancestors, tree_mask
from ddbench.decoding.proposal import Proposal
from ddbench.decoding.states import Links
from ddbench.decoding.target import Prompts, Target
from tests.decoding.hybrids import (
    CONFIGS,
    WatchedLoop,
    greedy,
    make_hybrid,
    make_prompts,
    run_watched,
    twin_logits,
    twin_states,
    worst_logit,
    worst_state,
)

settings.register_profile("tree", deadline=None, derandomize=True, database=None)
settings.load_profile("tree")

TOLERANCE = 2e-3
WRONG = 100 * TOLERANCE


@given(
    kind=st.sampled_from(sorted(CONFIGS)),
    weights=st.integers(0, 2),
    lengths=st.lists(st.sampled_from([1, 2, 3, 5, 11, 23, 66]), min_size=2, max_size=4),
    rows=st.integers(1, 3),
    nodes=st.integers(1, 16),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=8)
def test_nodes_and_states_are_the_twins(
    kind: str, weights: int, lengths: list[int], rows: int, nodes: int, seed: int
) -> None:
    model = make_hybrid(kind, weights)
    requests = make_prompts(lengths, [3 + (seed + 3 * index) % 8 for index in range(len(lengths))], seed)
    out, watched = run_watched(model, requests, rows, nodes, seed)
    assert [each.output_token_ids for each in out] == [greedy(model, each) for each in requests]
    assert worst_logit(model, watched.seen) < TOLERANCE
    assert worst_state(model, watched.committed) < TOLERANCE


@pytest.mark.parametrize("kind", CONFIGS)
def test_refilled_and_moved_rows(kind: str) -> None:
    """Rows end at different times: sequences move between rows, new ones take theirs, paths of all lengths are kept."""
    model, requests = make_hybrid(kind), refilled()
    out, watched = run_watched(model, requests, 3, 10, 0)
    assert [each.output_token_ids for each in out] == [greedy(model, each) for each in requests]
    assert watched.moves >= 1
    accepted = {each.accepted_raw for generation in out for each in generation.rounds}
    assert accepted >= {0, 1, 2, 3}
    assert worst_logit(model, watched.seen) < TOLERANCE
    assert worst_state(model, watched.committed) < TOLERANCE


def refilled() -> list[Request]:
    """Five requests for three rows; the longest prompt takes more than one chunk."""
    return make_prompts([1, 5, 70, 23, 2], [9, 4, 11, 7, 8])


# -------------------------------------------------------------------------------------------------- planted faults


class Star(WatchedLoop):
    """Every node begins from the root's state, so that all share it: what a port without links does."""

    def links(self, proposal: Proposal) -> Links:
        right = links_of(self, proposal)
        shown = torch.eye(right.parents.shape[1], dtype=torch.bool)
        shown[:, 0] = True
        return Links(right.parents.clamp(max=0), shown[None])


class StarConvolution(WatchedLoop):
    """The matrices follow the tree, the windows of the convolution do not."""

    def links(self, proposal: Proposal) -> Links:
        right = links_of(self, proposal)
        return Links(right.parents.clamp(max=0), right.ancestors)


class Line(WatchedLoop):
    """Every node begins from the one before it: a kernel for chains, run over a tree."""

    def links(self, proposal: Proposal) -> Links:
        right = links_of(self, proposal)
        count = right.parents.shape[1]
        return Links((torch.arange(count) - 1).expand_as(right.parents), chain_ancestors(count, torch.device("cpu")))


class Stale(WatchedLoop):
    """The links of the round before, where they fit: what a replayed graph does whose inputs nobody renewed."""

    previous: Links | None = None

    def links(self, proposal: Proposal) -> Links:
        right = links_of(self, proposal)
        replayed, self.previous = self.previous, right
        if replayed is None or replayed.parents.shape != right.parents.shape:
            return right
        return replayed


def links_of(loop: WatchedLoop, proposal: Proposal) -> Links:
    right = WatchedLoop.links(loop, proposal)
    assert right is not None
    return right


class LastNode(Target):
    """The state of the last node that ran becomes the sequence's, accepted or not."""

    def commit(self, node: Tensor) -> None:
        assert self.states is not None
        links = self.states.now.links
        assert links is not None
        super().commit(torch.full_like(node, links.parents.shape[1] - 1))


class RootOnly(Target):
    """The accepted nodes' tokens are kept, their states are not."""

    def commit(self, node: Tensor) -> None:
        super().commit(torch.zeros_like(node))


class Unmoved(Target):
    """A sequence takes its keys and values to another row and leaves its states behind."""

    def move(self, source: int, target: int, length: int) -> None:
        self.cache.move_row(source, target, length)


class Contaminated(Target):
    """Padding before a prompt runs through the states like any other token."""

    def real_tokens(self, slots: Slots) -> Tensor | None:
        return None


FAULTS: dict[Any, str] = {
    Star: "qwen3_5",
    StarConvolution: "qwen3_next",
    Line: "olmo_hybrid",
    Stale: "qwen3_5",
    LastNode: "olmo_hybrid",
    RootOnly: "qwen3_5",
    Unmoved: "qwen3_5",
    Contaminated: "qwen3_5",
}


@pytest.mark.parametrize(("fault", "kind"), FAULTS.items(), ids=[each.__name__ for each in FAULTS])
def test_a_planted_fault_is_caught(fault: Any, kind: str) -> None:
    """The run of :func:`test_refilled_and_moved_rows`, wrong: by its nodes, by its states and by its text."""
    model, requests = make_hybrid(kind), refilled()
    planted = {"loop": fault} if issubclass(fault, WatchedLoop) else {"target": fault}
    out, watched = run_watched(model, requests, 3, 10, 0, **planted)
    assert worst_logit(model, watched.seen) > WRONG
    assert worst_state(model, watched.committed) > WRONG
    assert [each.output_token_ids for each in out] != [greedy(model, each) for each in requests]


def test_a_spine_does_not_tell_a_line_from_a_tree() -> None:
    """Without branches the links of a line are right: only siblings show what a kernel for chains does to a tree."""
    model, requests = make_hybrid(), make_prompts([4, 9], 9)
    off = {
        loop: worst_logit(model, run_watched(model, requests, 2, 5, 3, loop, spine=True)[1].seen)
        for loop in (WatchedLoop, Line, Star)
    }
    assert off[WatchedLoop] < TOLERANCE
    assert off[Line] < TOLERANCE
    assert off[Star] > WRONG


# --------------------------------------------------------------------------------------------------- parts of a prompt


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_prompt_in_parts_is_the_prompt(kind: str) -> None:
    """Prefill of a beginning, then the rest in pieces over the cache: logits and states of the whole prompt at once."""
    model, ids = make_hybrid(kind), make_prompts([90], 1)[0].token_ids
    with torch.inference_mode(), Target(model, (), 2, 96) as target:
        target.prefill(Prompts.of([ids[:20]], 0, target.dtype, target.device))
        done = 20
        for size in (1, 2, 30, 37):
            mask = tree_mask(chain_ancestors(size, target.device), torch.tensor([done]), 96, target.dtype)
            part = torch.tensor([ids[done : done + size]])
            positions = torch.arange(done, done + size)[None]
            logits = target.forward(part, positions, mask, Slots.following([done], torch.tensor([done]), size), 96)
            done += size
        assert done == len(ids)
        whole = twin_logits(model, [ids])[ids]
        torch.testing.assert_close(logits[0, -1], whole[-1], rtol=0, atol=TOLERANCE)
        assert target.states is not None
        for layer, (conv, matrix) in twin_states(model, ids).items():
            state = target.states.layers[layer]
            torch.testing.assert_close(state.conv[0], conv[-state.conv.shape[1] :], rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(state.matrix[0], matrix, rtol=0, atol=TOLERANCE)
