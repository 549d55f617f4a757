"""At temperature > 0 the emitted tokens have the target's own distribution; a wrong rule is caught by the same test.

What is fixed beforehand: 40000 texts of two tokens, seeds 0 to 39999, and a chi-square test of the pairs (first token,
second token) that passes at a p-value of at least 0.001. Cells of fewer than 5 expected pairs are pooled; a pair that
the target's filter rules out must not occur at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from trees import paths

from ddbench.tree import Tree, ancestor_mask, build_tree, filtered_probs, keyed_uniforms, sample_and_match

TEXTS, LEAST_P, POOLED_BELOW = 40_000, 1e-3, 5.0
VOCABULARY, DEPTH, TOP, NODES = 12, 3, 5, 14
SETTINGS = [(1.0, 1.0, 0), (0.7, 0.9, 0), (1.4, 0.95, 6)]  # temperature, top-p, top-k

Array = np.ndarray[Any, Any]
Path = tuple[int, ...]
Verify = Callable[[Tree, Tensor, Tensor, Tensor, tuple[float, float, int], int], tuple[Tensor, Tensor]]


def target_logits(path: Path) -> Tensor:
    """The target after the tokens ``path``: a different distribution for every path."""
    seed = 1 + sum((token + 1) * 31**n for n, token in enumerate(path))
    return 1.6 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))


def proposal(path: Path) -> tuple[Tensor, Tensor]:
    """A block drafter after ``path``: marginals near the target's along its likeliest continuation, with noise.

    Top-k log-probabilities and ids, ``[1, depth, k]``.
    """
    rows, along = [], path
    for d in range(DEPTH):
        generator = torch.Generator().manual_seed(10_000 + 100 * d + len(path) + sum(path))
        logits = target_logits(along)
        rows.append((logits + torch.randn(VOCABULARY, generator=generator)).log_softmax(0))
        along = (*along, int(logits.argmax()))
    best = torch.stack(rows)[None].topk(TOP)
    return best.values, best.indices


def sample_and_match_rule(
    tree: Tree, tokens: Tensor, logits: Tensor, seeds: Tensor, sampling: tuple[float, float, int], start: int
) -> tuple[Tensor, Tensor]:
    """The rule under test: first and second emitted token of each text, -1 where the round emits only one."""
    copies = seeds.shape[0]
    depths = torch.cat([torch.zeros(1, dtype=torch.int64), tree.depths[0]])
    uniforms = keyed_uniforms(seeds, (start + 1 + depths).expand(copies, -1))
    parents, drafted = tree.parents.expand(copies, -1), tokens.expand(copies, -1)
    kept = sample_and_match(parents, drafted, logits.expand(copies, -1, -1), *sampling, uniforms, max_depth=DEPTH)
    rows = torch.cat([kept.indices, torch.full((copies, 1), -1)], dim=1)
    emitted = torch.where(rows > 0, drafted.gather(1, (rows - 1).clamp(min=0)), -1)[:, 1:]
    emitted = emitted.scatter(1, kept.accepted[:, None], kept.bonus[:, None])  # the bonus follows the path
    second = torch.where(kept.accepted >= 1, emitted[:, 1], -1)
    return emitted[:, 0], second


def speculative_rule(
    tree: Tree, tokens: Tensor, logits: Tensor, seeds: Tensor, sampling: tuple[float, float, int], start: int
) -> tuple[Tensor, Tensor]:
    """The planted wrong rule: accept a child with min(1, p / q), else go on with the residual max(0, p - q).

    That is right for children drawn from q; these are put into the tree with certainty.
    """
    random = np.random.default_rng(start)
    log_probs = torch.where(
        tree.parents >= 0, tree.scores - tree.scores.gather(1, tree.parents.clamp(min=0)), tree.scores
    )
    q = log_probs.exp()[0].numpy()
    p_of = filtered_probs(logits[0], *sampling).double().numpy()
    children: dict[int, list[int]] = {row: [] for row in range(len(q) + 1)}
    for node, parent in enumerate(tree.parents[0].tolist()):
        children[parent + 1].append(node)
    found = np.full((seeds.shape[0], 2), -1)
    for text in range(seeds.shape[0]):
        row, emitted = 0, 0
        while emitted < 2:
            p, accepted = p_of[row] / p_of[row].sum(), -1
            for node in children[row]:
                token = int(tokens[0, node])
                if random.random() < min(1.0, p[token] / q[node]):
                    accepted = node
                    break
                p[token] = max(0.0, p[token] - q[node])
                p /= p.sum()
            if accepted < 0:
                found[text, emitted] = random.choice(VOCABULARY, p=p)
                break
            found[text, emitted] = int(tokens[0, accepted])
            row, emitted = accepted + 1, emitted + 1
    return torch.tensor(found[:, 0]), torch.tensor(found[:, 1])


def emit_pairs(verify: Verify, sampling: tuple[float, float, int], texts: int, force_spine: bool) -> Array:
    """Counts ``[first token, second token]`` of texts that a speculative loop emits, round after round."""

    def one_round(path: Path, seeds: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, ids = proposal(path)
        tree = build_tree(log_probs, NODES, force_spine=force_spine)
        tokens = tree.token_ids(ids)
        rows = [path, *((*path, *(int(ids[0, d, rank]) for d, rank in enumerate(ranks))) for ranks in paths(tree, 0))]
        assert ancestor_mask(tree.parents)[0].sum(1).tolist() == [len(row) - len(path) + 1 for row in rows]
        logits = torch.stack([target_logits(row) for row in rows])[None]
        return verify(tree, tokens, logits, seeds, sampling, len(path))

    seeds = torch.arange(texts)
    first, second = one_round((), seeds)
    for token in range(VOCABULARY):
        waiting = (first == token) & (second < 0)  # the bonus came first: the second token is the next round's first
        if waiting.any():
            second[waiting] = one_round((token,), seeds[waiting])[0]
    return np.bincount((first * VOCABULARY + second).numpy(), minlength=VOCABULARY**2).reshape(VOCABULARY, VOCABULARY)


def p_value(counts: Array, sampling: tuple[float, float, int]) -> float:
    """Chi-square p-value of the pairs; 0 if a pair occurs that the target rules out."""
    first = filtered_probs(target_logits(()), *sampling).double().numpy()
    second = np.stack(
        [filtered_probs(target_logits((token,)), *sampling).double().numpy() for token in range(VOCABULARY)]
    )
    expected = counts.sum() * (first[:, None] * second)
    if counts[expected == 0].any():
        return 0.0
    rare = expected < POOLED_BELOW
    observed = np.append(counts[~rare], counts[rare].sum())
    predicted = np.append(expected[~rare], expected[rare].sum())
    if predicted[-1] < POOLED_BELOW:  # too few to be a cell of their own
        observed, predicted = (
            np.append(observed[:-2], observed[-2:].sum()),
            np.append(predicted[:-2], predicted[-2:].sum()),
        )
    return float(stats.chisquare(observed, predicted * observed.sum() / predicted.sum()).pvalue)


@pytest.mark.parametrize("force_spine", [False, True])
@pytest.mark.parametrize("sampling", SETTINGS)
def test_emitted_tokens_have_the_targets_distribution(sampling: tuple[float, float, int], force_spine: bool) -> None:
    counts = emit_pairs(sample_and_match_rule, sampling, TEXTS, force_spine)
    assert counts.sum() == TEXTS
    assert p_value(counts, sampling) >= LEAST_P


@pytest.mark.parametrize("sampling", SETTINGS)
def test_the_planted_wrong_rule_is_caught(sampling: tuple[float, float, int]) -> None:
    # A tenth of the texts is more than enough.
    counts = emit_pairs(speculative_rule, sampling, TEXTS // 10, force_spine=False)
    assert p_value(counts, sampling) < LEAST_P


def test_the_text_does_not_depend_on_the_tree() -> None:
    # Draws are keyed by seed and position: with another tree, or none, the same texts come out, one by one.
    sampling, seeds = (1.0, 1.0, 0), torch.arange(2000)
    log_probs, ids = proposal(())
    firsts = []
    for nodes, width in ((14, None), (3, 1), (1, 1)):
        tree = build_tree(log_probs, nodes, width=width)
        tokens = tree.token_ids(ids)
        rows = [(), *(tuple(int(ids[0, d, rank]) for d, rank in enumerate(ranks)) for ranks in paths(tree, 0))]
        logits = torch.stack([target_logits(row) for row in rows])[None]
        firsts.append(sample_and_match_rule(tree, tokens, logits, seeds, sampling, 0)[0])
    assert torch.equal(firsts[0], firsts[1])
    assert torch.equal(firsts[0], firsts[2])
