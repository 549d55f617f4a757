"""Every form of the build gives the same tree, and that is the tree of the definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import FORMS, KINDS, assert_equal, brute_force, draft, paths

from ddbench.errors import ConfigError
from ddbench.tree import Tree, build_tree, build_tree_heap

settings.register_profile("tree", deadline=None, derandomize=True, database=None)
settings.load_profile("tree")

# Sums of these collide often: equal steps, steps that the sum absorbs, steps that overflow, steps that are ruled out.
STEPS = (0.0, -1e-9, -3e-8, -0.25, -0.5, -0.5000001, -1.0, -2.0, -7.0, -3e38, -math.inf)


@st.composite
def limits(draw: st.DrawFn, depth: int, k: int, most_nodes: int) -> dict[str, object]:
    chosen: dict[str, object] = {"nodes": draw(st.integers(1, most_nodes))}
    if draw(st.booleans()):
        chosen["width"] = draw(st.integers(1, k + 1))
    if draw(st.booleans()):
        chosen["depth"] = draw(st.integers(1, depth))
    if draw(st.booleans()):
        chosen["min_log_prob"] = draw(st.sampled_from([0.0, -0.5, -1.0, -1.7, -4.0]))
    if chosen["nodes"] >= chosen.get("depth", depth):  # type: ignore[operator]
        chosen["force_spine"] = draw(st.booleans())
    return chosen


@given(st.data())
@settings(max_examples=150)
def test_all_forms_equal_brute_force(data: st.DataObject) -> None:
    batch, depth, k = (data.draw(st.integers(1, most)) for most in (2, 4, 4))
    steps = st.lists(st.sampled_from(STEPS), min_size=k, max_size=k)
    rows = [[sorted(data.draw(steps), reverse=True) for _ in range(depth)] for _ in range(batch)]
    log_probs = torch.tensor(rows)
    asked = data.draw(limits(depth, k, 40))
    expected = brute_force(log_probs, **asked)  # type: ignore[arg-type]
    for name, form in FORMS.items():
        assert_equal(form(log_probs, **asked), expected, (name, asked, rows))


@given(st.data())
@settings(max_examples=200)
def test_fast_forms_equal_the_heap(data: st.DataObject) -> None:
    batch, depth = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 2, 3, 7, 15]))
    k = data.draw(st.sampled_from([1, 2, 3, 8, 20, 64, 200]))
    log_probs = draft(batch, depth, k, data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, 10**6)))
    asked = data.draw(limits(depth, k, 150))
    expected = build_tree_heap(log_probs, **asked)  # type: ignore[arg-type]
    for name, form in FORMS.items():
        assert_equal(form(log_probs, **asked), expected, (name, asked))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "nodes"), [(8, 256), (2, 1024)])
def test_fast_forms_equal_the_heap_at_full_size(kind: str, batch: int, nodes: int) -> None:
    log_probs = draft(batch, 15, nodes, kind, seed=nodes)
    for asked in ({}, {"force_spine": True, "min_log_prob": -9.0, "width": 12}):
        expected = build_tree_heap(log_probs, nodes, **asked)  # type: ignore[arg-type]
        for name, form in FORMS.items():
            assert_equal(form(log_probs, nodes, **asked), expected, (name, asked))


def test_trees_of_one_batch_can_need_levels_of_different_size() -> None:
    # One row is nearly undecided and fills two broad levels, the others are deep and narrow.
    log_probs = draft(6, 15, 256, "smooth", seed=3)
    log_probs[2] = (
        (torch.randn(15, 256, generator=torch.Generator().manual_seed(0)) * 0.1)
        .log_softmax(-1)
        .sort(descending=True)
        .values
    )
    expected = build_tree_heap(log_probs, 256)
    for name, form in FORMS.items():
        assert_equal(form(log_probs, 256), expected, name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_budgets_are_nested(form: str, kind: str) -> None:
    log_probs = draft(3, 7, 64, kind, seed=1)
    for spine in (False, True):
        whole = FORMS[form](log_probs, 64, force_spine=spine)
        for nodes in (7, 8, 20, 63):
            assert_equal(whole.sliced(nodes), FORMS[form](log_probs, nodes, force_spine=spine))


@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60)
def test_trees_are_prefix_closed_and_ordered(kind: str, seed: int, force_spine: bool) -> None:
    tree = build_tree(draft(2, 6, 16, kind, seed), 40, force_spine=force_spine)
    for b in range(2):
        found = paths(tree, b)
        assert len(found) == len(set(found)) == tree.counts()[b]
        assert all(path[:-1] in found[:n] for n, path in enumerate(found) if len(path) > 1)
        assert [len(path) for path in found] == tree.depths[b, : len(found)].tolist()
        spine = [path for path in found if not any(path)] if force_spine else []
        assert found[: len(spine)] == spine
        scores = tree.scores[b].tolist()
        keys = [(-scores[n], path) for n, path in enumerate(found)][len(spine) :]
        assert keys == sorted(keys)


def test_scores_are_float32_sums_from_the_root_down() -> None:
    log_probs = draft(2, 6, 16, "smooth", 0)
    tree = build_tree(log_probs, 50)
    for b in range(2):
        for n, path in enumerate(paths(tree, b)):
            total = torch.tensor(0.0)
            for d, rank in enumerate(path):
                total = total + log_probs[b, d, rank]
            assert tree.scores[b, n] == total


@pytest.mark.parametrize("form", FORMS)
def test_ties_go_to_the_smaller_rank_tuple(form: str) -> None:
    tree = FORMS[form](torch.zeros(1, 3, 2), 6)
    assert paths(tree, 0) == [(0,), (0, 0), (0, 0, 0), (0, 0, 1), (0, 1), (0, 1, 0)]


@pytest.mark.parametrize("form", FORMS)
def test_collapsing_sums_keep_the_tied_winner(form: str) -> None:
    # (1, 0), (2, 0) and (3, 0) all sum to -16777216 in float32, though their parents' scores differ: pruning by place
    # among the parents could drop the smallest rank tuple.
    log_probs = torch.tensor([[[-1.0, -1.5, -2.0, -2.5], [-16777216.0, -16777217.0, -3e7, -4e7]]])
    for nodes in range(1, 12):
        assert_equal(FORMS[form](log_probs, nodes), brute_force(log_probs, nodes), nodes)


@pytest.mark.parametrize("form", FORMS)
def test_fewer_nodes_than_the_budget_are_padded(form: str) -> None:
    log_probs = torch.tensor([[[-0.5, -1.0], [-0.1, -math.inf]], [[-0.5, -math.inf], [-math.inf, -math.inf]]])
    tree = FORMS[form](log_probs, 6)
    assert tree.counts().tolist() == [4, 1]
    assert paths(tree, 0) == [(0,), (0, 0), (1,), (1, 0)]
    assert tree.scores[1].tolist() == [-0.5] + [-math.inf] * 5
    assert tree.parents[1].tolist() == [-1] + [-2] * 5
    assert tree.depths[1].tolist() == [1] + [0] * 5
    assert tree.ranks[1].tolist() == [0] + [-1] * 5


@pytest.mark.parametrize("form", FORMS)
def test_nothing_at_all(form: str) -> None:
    for force_spine in (False, True):
        tree = FORMS[form](torch.full((2, 3, 4), -math.inf), 5, force_spine=force_spine)
        assert tree.counts().tolist() == [0, 0]


@pytest.mark.parametrize("form", FORMS)
def test_floor_binds_all_but_the_spine(form: str) -> None:
    log_probs = torch.tensor([[[-1.0, -1.25], [-1.0, -4.0], [-1.0, -4.0]]])
    assert paths(FORMS[form](log_probs, 8, min_log_prob=-2.0), 0) == [(0,), (1,), (0, 0)]
    forced = FORMS[form](log_probs, 8, min_log_prob=-2.0, force_spine=True)
    assert paths(forced, 0) == [(0,), (0, 0), (0, 0, 0), (1,)]


@pytest.mark.parametrize("form", FORMS)
def test_a_spine_takes_its_place_in_a_small_budget(form: str) -> None:
    log_probs = torch.tensor([[[-0.7, -0.8], [-5.0, -6.0], [-5.0, -6.0]]])
    assert paths(FORMS[form](log_probs, 3), 0) == [(0,), (1,), (0, 0)]
    assert paths(FORMS[form](log_probs, 3, force_spine=True), 0) == [(0,), (0, 0), (0, 0, 0)]
    assert paths(FORMS[form](log_probs, 2, force_spine=True, depth=2), 0) == [(0,), (0, 0)]


@pytest.mark.parametrize("form", FORMS)
def test_width_one_is_the_chain(form: str) -> None:
    tree = FORMS[form](draft(2, 15, 8, "smooth", 5), 15, width=1)
    assert paths(tree, 0) == paths(tree, 1) == [(0,) * d for d in range(1, 16)]


@pytest.mark.parametrize("form", FORMS)
def test_log_probs_above_zero_count_as_zero(form: str) -> None:
    log_probs = torch.tensor([[[1e-6, -1.0], [1e-6, -1.0]]])
    assert_equal(FORMS[form](log_probs, 4), FORMS[form](log_probs.clamp(max=0), 4))
    assert not FORMS[form](log_probs, 4).scores.signbit()[0, :2].any()  # zero, not its negative


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_other_dtypes_count_as_their_float32(form: str, dtype: torch.dtype) -> None:
    log_probs = draft(2, 4, 8, "smooth", 1).to(dtype)
    assert_equal(FORMS[form](log_probs, 12), build_tree_heap(log_probs.float(), 12))


def test_input_that_needs_a_gradient_or_is_not_contiguous() -> None:
    log_probs = draft(2, 4, 8, "smooth", 1)
    expected = build_tree_heap(log_probs, 12)
    for name, form in FORMS.items():
        assert_equal(form(log_probs.clone().requires_grad_(), 12), expected, name)
        assert_equal(form(log_probs.transpose(0, 2).contiguous().transpose(0, 2), 12), expected, name)
        with torch.inference_mode():
            assert_equal(form(log_probs.clone(), 12), expected, name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": -3}, "nodes"),
        ({"nodes": 4, "width": 0}, "width"),
        ({"nodes": 4, "depth": 0}, "depth"),
        ({"nodes": 4, "depth": 4}, "depth"),
        ({"nodes": 2, "force_spine": True}, "nodes"),
        ({"nodes": 4, "min_log_prob": 0.5}, "min_log_prob"),
        ({"nodes": 4, "min_log_prob": math.nan}, "min_log_prob"),
    ],
)
def test_what_cannot_be_is_refused(form: str, asked: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FORMS[form](torch.zeros(1, 3, 2), **asked)
    assert refused.value.key == key
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "log_probs",
    [
        torch.zeros(3, 2),
        torch.zeros(0, 3, 2),
        torch.zeros(1, 0, 2),
        torch.zeros(1, 3, 0),
        torch.zeros(1, 3, 2, dtype=torch.int64),
        torch.tensor([[[0.0, math.nan]]]),
        torch.tensor([[[math.nan]]]),
        torch.tensor([[[-2.0, -1.0]]]),
    ],
)
def test_bad_log_probs_are_refused(form: str, log_probs: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="log_probs"):
        FORMS[form](log_probs, 4)


def test_too_large_for_the_batched_form() -> None:
    with pytest.raises(ConfigError, match="32767"):
        build_tree(torch.zeros(1, 2, 2), 2**15)
    with pytest.raises(ConfigError, match="log2"):
        build_tree(torch.zeros(1, 60, 2), 1024)


def test_threads_and_batches_do_not_change_a_tree() -> None:
    log_probs = draft(5, 15, 64, "certain", 9)
    together = build_tree(log_probs, 64)
    for b in range(5):
        alone = build_tree(log_probs[b : b + 1], 64)
        assert_equal(
            alone, Tree(*(getattr(together, part)[b : b + 1] for part in ("scores", "parents", "depths", "ranks")))
        )
