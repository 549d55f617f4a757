"""Do two samples of token tuples come from one law?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scipy.stats import chi2_contingency

LEAST = 10  # of both samples together in a cell; rarer tuples share one


def two_samples(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Pearson's test of homogeneity over the tuples that occur: cells, statistic and p-value."""
    first, second = Counter(one), Counter(other)
    cells = [key for key, count in (first + second).items() if count >= LEAST]
    table = [[counts[key] for key in cells] for counts in (first, second)]
    for row, sample in zip(table, (one, other), strict=True):
        row.append(len(sample) - sum(row))
    if table[0][-1] + table[1][-1] == 0:
        table = [row[:-1] for row in table]
    if len(table[0]) < 2:
        return {"cells": len(table[0]), "statistic": 0.0, "p": 1.0}
    result = chi2_contingency(table, correction=False)
    return {"cells": len(table[0]), "statistic": round(float(result.statistic), 3), "p": float(result.pvalue)}
