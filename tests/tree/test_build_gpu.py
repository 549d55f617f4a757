"""On a CUDA device: the same trees, no word to the host, and the build inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from trees import KINDS, PARTS, draft

from ddbench.tree import (
    EagleExpansion,
    ancestor_mask,
    build_tree,
    build_tree_heap,
    child_links,
    keyed_uniforms,
    position_ids,
    sample_and_match,
)

pytestmark = pytest.mark.gpu

SHAPES = [(1, 16), (8, 64), (32, 256), (4, 1024)]
LIMITS = [{}, {"force_spine": True, "min_log_prob": -9.0, "width": 12}]


@pytest.fixture
def no_host_sync() -> Iterator[None]:
    """Anything that waits for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "nodes"), SHAPES)
def test_gpu_equals_the_heap(kind: str, batch: int, nodes: int) -> None:
    log_probs = draft(batch, 15, nodes, kind, seed=nodes)
    for asked in LIMITS:
        expected = build_tree_heap(log_probs, nodes, **asked)  # type: ignore[arg-type]
        found = build_tree(log_probs.cuda(), nodes, **asked)  # type: ignore[arg-type]
        for part in PARTS:
            assert torch.equal(getattr(found, part).cpu(), getattr(expected, part)), (part, asked)


@pytest.mark.parametrize(("batch", "nodes"), SHAPES)
def test_a_graph_replays_the_build_on_new_input(batch: int, nodes: int) -> None:
    for asked in LIMITS:
        static = draft(batch, 15, nodes, "smooth", seed=0).cuda()
        build_tree(static, nodes, **asked)  # type: ignore[arg-type]  # loads the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tree = build_tree(static, nodes, **asked)  # type: ignore[arg-type]
        for seed, kind in enumerate(KINDS, start=1):
            log_probs = draft(batch, 15, nodes, kind, seed)
            static.copy_(log_probs)
            graph.replay()
            expected = build_tree_heap(log_probs, nodes, **asked)  # type: ignore[arg-type]
            for part in PARTS:
                assert torch.equal(getattr(tree, part).cpu(), getattr(expected, part)), (part, kind, asked)


@pytest.mark.usefixtures("no_host_sync")
def test_nothing_of_a_round_waits_for_the_device() -> None:
    log_probs = torch.randn(4, 15, 64, device="cuda").log_softmax(-1).sort(-1, descending=True).values
    top_ids = torch.arange(64, device="cuda").expand(4, 15, 64)
    start = torch.full((4,), 7, device="cuda")
    for asked in LIMITS:
        tree = build_tree(log_probs, 64, **asked)  # type: ignore[arg-type]
        tokens = tree.token_ids(top_ids)
        ancestor_mask(tree.parents, 15)
        child_links(tree.parents)
        positions = position_ids(tree.depths, start)
        uniforms = keyed_uniforms(torch.zeros(4, dtype=torch.int64, device="cuda"), positions + 1)
        logits = torch.randn(4, 65, 64, device="cuda")
        temperature = torch.full((4,), 0.8, device="cuda")
        sample_and_match(tree.parents, tokens, logits, temperature, 0.9, 20, uniforms, 15)
    expansion = EagleExpansion(4, 5, 8, 60, "cuda")
    expansion.first(torch.randn(4, 64, device="cuda").log_softmax(-1))
    while expansion.level < 5:
        assert expansion.beam_mask.shape[2] == expansion.level * 8
        expansion.expand(torch.randn(4, 8, 64, device="cuda").log_softmax(-1))
    expansion.rerank()


def test_nan_on_a_gpu_makes_no_node() -> None:
    log_probs = draft(2, 3, 4, "smooth", 0)
    spoilt = log_probs.clone()
    spoilt[0, :, 2:] = torch.nan
    cut = log_probs.clone()
    cut[0, :, 2:] = -torch.inf
    found = build_tree(spoilt.cuda(), 10)
    expected = build_tree_heap(cut, 10)
    for part in PARTS:
        assert torch.equal(getattr(found, part).cpu(), getattr(expected, part))


def test_draws_are_those_of_the_cpu() -> None:
    seeds, positions = torch.arange(4), torch.arange(400).view(4, 100)
    assert torch.equal(keyed_uniforms(seeds.cuda(), positions.cuda()).cpu(), keyed_uniforms(seeds, positions))
