"""Greedy identity with autoregressive decoding, and a ledger of first differences: are they ties?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.metrics import lossless_share
from experiments.vllm_evidence.fleet import Engine

# Fixed before any run. The target's logits are bfloat16 numbers of size 8 to 32, whose neighbours lie 1/16 to 1/8
# apart, and another batch shape moves one by a few of these steps. A wrong tree is off by whole logits.
TIE_LOGITS = 0.5


@dataclass(frozen=True)
class Difference:
    """``gap``: by how many logits the autoregressive choice leads at the first differing place of a prompt's output."""

    prompt: int
    place: int
    gap: float


def identity_share(tokens: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> float:
    """Share of prompts whose output equals the reference's, token for token."""
    share = lossless_share(dict(enumerate(tokens)), dict(enumerate(reference)))
    assert share is not None
    return share


def ledger(
    judge: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    reference: Sequence[Sequence[int]],
) -> list[Difference]:
    """Both continuations of every first difference, rescored by one autoregressive prefill of ``judge``."""
    cases = []
    for index, (found, expected) in enumerate(zip(tokens, reference, strict=True)):
        pairs = list(zip(found, expected, strict=False))
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if place is not None:
            cases.append((index, place, found[place], expected[place]))
        elif len(found) != len(expected):
            cases.append((index, len(pairs), -1, -1))
    asked = [[*prompts[i], *reference[i][:place], theirs] for i, place, _, theirs in cases if theirs >= 0]
    asked += [[*prompts[i], *reference[i][:place], ours] for i, place, ours, theirs in cases if theirs >= 0]
    if not asked:
        return [Difference(i, place, float("inf")) for i, place, _, _ in cases]
    params = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 1}
    rows = judge.ask(prompts=asked, params=params, in_flight=8, logprobs=True)["logprobs"]
    half = len(asked) // 2
    gaps = []
    for theirs_rows, ours_rows, theirs, ours in zip(rows[:half], rows[half:], asked[:half], asked[half:], strict=True):
        gaps.append(theirs_rows[-1][str(theirs[-1])] - ours_rows[-1][str(ours[-1])])
    known = iter(gaps)
    return [Difference(i, place, next(known) if theirs >= 0 else float("inf")) for i, place, _, theirs in cases]


def summary(differences: Sequence[Difference]) -> dict[str, Any]:
    """Counts and the widest gap; a gap that is no tie is counted as unexplained."""
    gaps = [abs(difference.gap) for difference in differences]
    return {
        "differences": len(gaps),
        "widest_gap_logits": max(gaps, default=0.0),
        "unexplained": sum(gap > TIE_LOGITS for gap in gaps),
    }
