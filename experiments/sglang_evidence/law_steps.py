"""Draws token by token: have they, after the same text, the same law?

Two bfloat16 kernels that differ in nothing but rounding differ in law wherever a filter's edge lies between them, and
what follows such a place differs as well, so that equality of whole outputs' laws is no longer true of a right
implementation. What stays true: after one and the same text, tokens that every rounding keeps are drawn in the same
proportions, and tokens that none keeps are never drawn. Both are tested here, at every text that autoregressive
sampling gave often enough; draws of tokens that rounding decides are left out and shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import chi2, chi2_contingency, chisquare

from experiments.evidence.chi_square import LEAST
from experiments.sglang_evidence.law_filters import Next
from experiments.sglang_evidence.law_reference import At

Draws = Sequence[Sequence[int]]
Followed = dict[At, Counter[int]]

VISITS = LEAST // 2  # of a text in each sample: with fewer it tells nothing
EXPECTED = 5.0  # least expected count of a cell against the reference's law
SHOWN = 5
ROUND = 16  # a round emits so many at most: token 17, counted from 0, is of the second round or of a later one


def often(draws: Draws, prompts: int) -> set[At]:
    """Texts that begin at least ``LEAST`` draws, without those that end them. Draw i is of prompt ``i % prompts``."""
    counts = Counter(
        (index % prompts, tuple(tokens[:place])) for index, tokens in enumerate(draws) for place in range(len(tokens))
    )
    return {at for at, count in counts.items() if count >= LEAST}


def followed(draws: Draws, prompts: int, texts: Mapping[At, Next]) -> Followed:
    """The tokens that were drawn after each of these texts, but for the first: that is the prefill's own."""
    found: Followed = {at: Counter() for at in texts if at[1]}
    for index, tokens in enumerate(draws):
        for place in range(1, len(tokens)):
            counts = found.get((index % prompts, tuple(tokens[:place])))
            if counts is None:
                break
            counts[tokens[place]] += 1
    return found


def steps(one: Followed, other: Followed, texts: Mapping[At, Next]) -> dict[str, Any]:
    """Pearson's test of homogeneity within each text, summed: of tokens 1 to 16, and of later ones.

    ``p`` is the lesser of the two, times 2; ``worst`` the texts that differ most, and their p-values, each alone.
    ``outside``: draws of either sample that no rounding allows. ``undecided``: where the samples differ most in a token
    that rounding decides, with its mass before and its probability in the reference, and how often it was drawn of how
    many.
    """
    parts = {
        "first": [at for at in one if len(at[1]) <= ROUND],
        "later": [at for at in one if len(at[1]) > ROUND],
    }
    each = {at: _homogeneity(one[at], other[at], texts[at]) for at in one}
    tests = {name: _sum([each[at] for at in part]) for name, part in parts.items()}
    return {
        "p": min(1.0, len(tests) * min(test["p"] for test in tests.values())),
        **tests,
        "worst": _worst(each),
        "outside": [outside(sample, texts) for sample in (one, other)],
        "undecided": _undecided(one, other, texts),
    }


def against(sample: Followed, texts: Mapping[At, Next]) -> dict[str, Any]:
    """Pearson's test of a sample against the reference's own law, within each text over the tokens that are sure."""
    return _sum([_goodness(counts, texts[at]) for at, counts in sample.items()])


def outside(sample: Followed, texts: Mapping[At, Next]) -> int:
    """Draws that the filters forbid however logits are rounded."""
    return sum(
        count for at, counts in sample.items() for token, count in counts.items() if not texts[at].possible[token]
    )


Part = tuple[int, float]  # cells, and the statistic


def _sum(parts: Sequence[Part | None]) -> dict[str, Any]:
    told = [part for part in parts if part is not None]
    cells, statistic = sum(part[0] for part in told), sum(part[1] for part in told)
    p = float(chi2.sf(statistic, cells - len(told))) if told else 1.0
    return {"texts": len(told), "cells": cells, "statistic": round(statistic, 3), "p": p}


def _worst(each: Mapping[At, Part | None]) -> list[dict[str, Any]]:
    told = [
        {"prompt": at[0], "place": len(at[1]), "cells": part[0], "p": float(chi2.sf(part[1], part[0] - 1))}
        for at, part in each.items()
        if part is not None
    ]
    return sorted(told, key=lambda one: (one["p"], one["prompt"], one["place"]))[:SHOWN]


def _homogeneity(one: Counter[int], other: Counter[int], law: Next) -> Part | None:
    """None where there is nothing to compare: a text that one sample hardly has, or tokens of one kind alone."""
    both = {token: count for token, count in (one + other).items() if law.sure[token]}
    cells = [[token] for token, count in both.items() if count >= LEAST]
    rest = [token for token, count in both.items() if count < LEAST]
    if sum(both[token] for token in rest) >= LEAST:
        cells.append(rest)
    rows = [[sum(sample[token] for token in cell) for cell in cells] for sample in (one, other)]
    sizes = [sum(row) for row in rows]
    if len(cells) < 2 or min(sizes) < VISITS:
        return None
    return len(cells), float(chi2_contingency(rows, correction=False).statistic)


def _goodness(counts: Counter[int], law: Next) -> Part | None:
    drawn = {token: count for token, count in counts.items() if law.sure[token]}
    total, mass = sum(drawn.values()), float(law.probability[law.sure].sum())
    if not total:
        return None
    expected = total * law.probability / mass
    alone = (law.sure & (expected >= EXPECTED)).nonzero()[0].tolist()
    cells = [(drawn.get(token, 0), float(expected[token])) for token in alone]
    rest = total - sum(want for _, want in cells)
    if rest >= EXPECTED:
        cells.append((total - sum(have for have, _ in cells), rest))
    if len(cells) < 2:
        return None
    scale = sum(have for have, _ in cells) / sum(want for _, want in cells)  # rarer tokens are left out
    return len(cells), float(chisquare([have for have, _ in cells], [want * scale for _, want in cells]).statistic)


def _undecided(one: Followed, other: Followed, texts: Mapping[At, Next]) -> list[dict[str, Any]]:
    found = []
    for at, law in texts.items():
        if at not in one or min(one[at].total(), other[at].total()) < VISITS:
            continue
        sizes = [sample[at].total() for sample in (one, other)]
        for token in {*one[at], *other[at]}:
            if law.sure[token] or not law.possible[token]:
                continue
            drawn = [sample[at][token] for sample in (one, other)]
            share = sum(drawn) / sum(sizes)
            spread = share * (1 - share) * sum(1 / size for size in sizes)
            apart = abs(drawn[0] / sizes[0] - drawn[1] / sizes[1])
            found.append((apart / spread**0.5 if spread else 0.0, at, token, drawn, sizes))
    found.sort(key=lambda each: (-each[0], each[1], each[2]))
    return [
        {
            "prompt": at[0],
            "place": len(at[1]),
            "token": token,
            "mass_before": round(float(texts[at].before[token]), 5),
            "probability": round(float(texts[at].probability[token]), 5),
            "drawn": drawn,
            "of": sizes,
        }
        for _, at, token, drawn, sizes in found[:SHOWN]
    ]
