"""The target's choices: greedy and drawn, against a statement of SGLang's filters that shares no code with ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from ddbench.plugins.sglang import choose as chosen
from ddbench.plugins.sglang.choose import choose

SEED, DRAWS, LEVEL = 20261130, 20_000, 1e-3
LOGITS = torch.tensor([2.0, 1.7, 1.1, 1.0, 0.4, -0.3, -0.9, -1.6, -4.0])
FILTERS: dict[str, dict[str, float]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.25},
    "joint": {"temperature": 1.3, "top_k": 5, "top_p": 0.72, "min_p": 0.1},
}


def sampling(rows: int, **asked: float) -> Any:
    """As SGLang's SamplingBatchInfo, ``rows`` requests alike."""
    return SimpleNamespace(
        is_all_greedy=False,
        temperatures=torch.full((rows, 1), asked.get("temperature", 1.0)),
        top_ks=torch.full((rows,), int(asked.get("top_k", 1 << 30)), dtype=torch.int32),
        top_ps=torch.full((rows,), asked.get("top_p", 1.0)),
        min_ps=torch.full((rows,), asked.get("min_p", 0.0)),
        need_top_k_sampling="top_k" in asked,
        need_top_p_sampling="top_p" in asked,
        need_min_p_sampling="min_p" in asked,
    )


def law(logits: torch.Tensor, in_turn: bool = False, **asked: float) -> np.ndarray[Any, Any]:
    """What is documented, in numpy: keep a token of rank below ``top_k``, with at most ``top_p`` of the mass before it,
    at least ``min_p`` times as probable as the best; all of the unfiltered distribution, unless ``in_turn``."""
    scaled = logits.double().numpy() / asked.get("temperature", 1.0)
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    kept = probs[order].copy()
    kept[int(asked.get("top_k", len(kept))) :] = 0
    basis = kept / kept.sum() if in_turn else probs[order]
    kept[np.cumsum(basis) - basis > asked.get("top_p", 1.0)] = 0
    kept[kept < kept[0] * asked.get("min_p", 0.0)] = 0
    found = np.zeros_like(probs)
    found[order] = kept / kept.sum()
    return found


def p_value(expected: np.ndarray[Any, Any], **asked: float) -> float:
    """Of `DRAWS` choices against a law; 0 where one has no probability."""
    torch.manual_seed(SEED)
    drawn = choose(LOGITS.repeat(DRAWS, 1), sampling(DRAWS // 8, **asked), 8).flatten()
    counts = np.bincount(drawn.numpy(), minlength=len(LOGITS))
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    return float(chisquare(counts[possible], expected[possible] * DRAWS).pvalue)


@pytest.mark.parametrize("name", FILTERS)
def test_draws_have_the_documented_law(name: str) -> None:
    assert p_value(law(LOGITS, **FILTERS[name]), **FILTERS[name]) > LEVEL


def test_filters_one_after_the_other_would_be_another_law() -> None:
    """The mass of top_p counts tokens that top_k drops: the rule that renormalises in between is rejected."""
    asked = {"top_k": 4, "top_p": 0.8}
    assert p_value(law(LOGITS, **asked), **asked) > LEVEL
    assert p_value(law(LOGITS, in_turn=True, **asked), **asked) < 1e-9


def test_greedy_is_the_best_and_the_first_of_equals() -> None:
    logits = torch.randn(6, 50)
    logits[2, [7, 30]] = 9.0
    expected = logits.argmax(-1).view(2, 3)
    assert expected[0, 2] == 7
    assert torch.equal(choose(logits, None, 3), expected)
    assert torch.equal(choose(logits, SimpleNamespace(is_all_greedy=True), 3), expected)


def test_a_greedy_request_beside_sampled_ones() -> None:
    logits = torch.randn(40, 30)
    asked = sampling(4, top_k=30)
    asked.top_ks[1] = asked.top_ks[3] = 1
    found = choose(logits, asked, 10)
    best = logits.argmax(-1).view(4, 10)
    assert torch.equal(found[[1, 3]], best[[1, 3]])
    assert not torch.equal(found[[0, 2]], best[[0, 2]])


@pytest.mark.parametrize("filtered", [False, True])
def test_every_entry_has_its_own_requests_settings(filtered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests colder and colder, in parts of 7 entries: the cold ones are greedy in effect, the hot one is not."""
    monkeypatch.setattr(chosen, "ROWS", 7)
    logits = torch.randn(60, 64)
    asked = sampling(3, **({"top_p": 1.0} if filtered else {}))
    asked.temperatures = torch.tensor([[1e-4], [5.0], [1e-4]])
    found, best = choose(logits, asked, 20), logits.argmax(-1).view(3, 20)
    assert torch.equal(found[[0, 2]], best[[0, 2]])
    assert (found[1] != best[1]).sum() > 10


def test_entries_are_drawn_independently() -> None:
    found = choose(torch.zeros(64, 1000), sampling(1), 64)
    assert len(set(found.flatten().tolist())) > 50
