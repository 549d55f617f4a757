"""The gated delta rule over a tree against the recurrence itself: token by token, one matrix a node, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddbench.decoding.gated_delta import CHUNK, Inputs, chain, step, tree
from ddbench.decoding.states import Links
from ddbench.tree import ancestor_mask

settings.register_profile("tree", deadline=None, derandomize=True, database=None)
settings.load_profile("tree")

ROWS, GROUPS, HEADS, KEY, VALUE = 2, 2, 4, 6, 5


def make_inputs(tokens: int, seed: int, strongest: float = 3.0) -> tuple[Inputs, Tensor]:
    """Log decays from 0 to ``-strongest`` and rates from 0 to 2, and the matrices that they begin from."""
    torch.manual_seed(seed)
    unit = torch.nn.functional.normalize
    inputs = Inputs(
        query=unit(torch.randn(ROWS, GROUPS, tokens, KEY), dim=-1) * KEY**-0.5,
        key=unit(torch.randn(ROWS, GROUPS, tokens, KEY), dim=-1),
        value=torch.randn(ROWS, HEADS, tokens, VALUE),
        log_decay=-strongest * torch.rand(ROWS, HEADS, tokens).pow(3),
        rate=2 * torch.rand(ROWS, HEADS, tokens),
    )
    return inputs, torch.randn(ROWS, HEADS, KEY, VALUE)


def by_recurrence(inputs: Inputs, state: Tensor, parents: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Outputs [rows, heads, tokens, value] and the matrices of every token; ``parents`` -1: the committed ones."""
    per_head = HEADS // GROUPS
    matrices: list[Tensor] = []
    outputs = []
    for token, parent in enumerate(parents):
        key, query = (
            part[:, :, token].double().repeat_interleave(per_head, dim=1) for part in (inputs.key, inputs.query)
        )
        before = (state.double() if parent < 0 else matrices[parent]) * inputs.log_decay[:, :, token, None, None].exp()
        known = torch.einsum("rhkv,rhk->rhv", before, key)
        change = inputs.rate[:, :, token, None] * (inputs.value[:, :, token] - known)
        matrices.append(before + torch.einsum("rhk,rhv->rhkv", key, change))
        outputs.append(torch.einsum("rhkv,rhk->rhv", matrices[-1], query))
    return torch.stack(outputs, dim=2), matrices


def parents_of(shape: list[int]) -> list[int]:
    """A tree of ``len(shape) + 1`` tokens, the root first, from one number a node."""
    return [-1, *(number % (node + 1) for node, number in enumerate(shape))]


@given(st.lists(st.integers(0, 10**6), max_size=24), st.integers(0, 10**6))
@settings(max_examples=30)
def test_every_node_of_a_tree(shape: list[int], seed: int) -> None:
    """Outputs of all tokens and the matrices of all tokens, within 1e-5 of float64."""
    parents = parents_of(shape)
    inputs, state = make_inputs(len(parents), seed)
    nodes = torch.tensor([parents[1:]], dtype=torch.int64) - 1
    links = Links.of(nodes, ancestor_mask(nodes))
    output, writes = tree(inputs, state, links.ancestors)
    wanted, matrices = by_recurrence(inputs, state, parents)
    torch.testing.assert_close(output.double(), wanted, rtol=1e-5, atol=1e-5)
    for token, matrix in enumerate(matrices):
        node = torch.full((ROWS,), token)
        found = writes.state(state, node, links.ancestors[:, token])
        torch.testing.assert_close(found.double(), matrix, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("strongest", [3.0, 60.0])
def test_a_chain_of_any_length(tokens: int, strongest: float) -> None:
    """Whole chunks or not; decays that leave nothing of the past beside some that keep all of it."""
    inputs, state = make_inputs(tokens, tokens, strongest)
    output, last = chain(inputs, state)
    wanted, matrices = by_recurrence(inputs, state, list(range(-1, tokens - 1)))
    torch.testing.assert_close(output.double(), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last.double(), matrices[-1], rtol=1e-4, atol=1e-4)


def test_a_chain_in_parts_is_the_chain() -> None:
    inputs, state = make_inputs(150, 0)
    whole, last = chain(inputs, state)
    parts = []
    for begin, end in ((0, 1), (1, 40), (40, 41), (41, 130), (130, 150)):
        part, state = chain(inputs.slice(begin, end), state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)


def test_one_token_is_a_step() -> None:
    inputs, state = make_inputs(1, 4)
    output, after = step(inputs, state)
    as_tree, writes = tree(inputs, state, torch.ones(1, 1, 1, dtype=torch.bool))
    torch.testing.assert_close(output, as_tree)
    torch.testing.assert_close(after, writes.state(state, torch.zeros(ROWS, dtype=torch.int64), torch.ones(1, 1) > 0))


def test_a_token_of_rate_and_decay_nought_leaves_the_matrix() -> None:
    inputs, state = make_inputs(9, 1)
    idle = Inputs(inputs.query, inputs.key, inputs.value, inputs.log_decay * 0, inputs.rate * 0)
    torch.testing.assert_close(chain(idle, state)[1], state)


def test_windows_follow_the_links() -> None:
    """Columns 0 to 2 are committed tokens; the root is column 3, then come its nodes."""
    parents = torch.tensor([[-1, -1, 0, 2, 1, -2]])  # among nodes: two children of the root, and so on; padding last
    window = Links.of(parents, ancestor_mask(parents)).window(4)
    assert window[0].tolist() == [
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3, 5],
        [2, 3, 4, 6],
        [3, 4, 6, 7],
        [2, 3, 5, 8],
        [0, 1, 2, 9],
    ]
