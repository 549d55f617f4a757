"""Acceptance from the counts that SGLang gives with each request, before anything is cut off."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Counts = Mapping[str, Any]  # of one request: spec_verify_ct, spec_num_correct_drafts, spec_correct_drafts_histogram


def acceptance_length(requests: Iterable[Counts]) -> float | None:
    """1 + accepted / rounds over all requests; None without a round. SGLang's own ratio counts the prefill's token."""
    rows = list(requests)
    rounds = sum(int(row.get("spec_verify_ct", 0)) for row in rows)
    accepted = sum(int(row.get("spec_num_correct_drafts", 0)) for row in rows)
    return 1 + accepted / rounds if rounds else None


def histogram(requests: Iterable[Counts]) -> list[int]:
    """[a] = rounds that accepted a drafted tokens, over all requests."""
    total: list[int] = []
    for row in requests:
        counts = list(row.get("spec_correct_drafts_histogram") or [])
        total += [0] * (len(counts) - len(total))
        for accepted, count in enumerate(counts):
            total[accepted] += int(count)
    return total


def by_prompt(tokens: Sequence[Sequence[int]], rounds: Sequence[int]) -> list[list[int]]:
    """Of each prompt a checksum of its output, and its rounds: to be compared with those of another engine."""
    return [[checksum(ids), count] for ids, count in zip(tokens, rounds, strict=True)]


def checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(array("q", ids).tobytes())


def against(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> dict[str, float | None]:
    """Shares of two lists of :func:`by_prompt`: of equal outputs, and among these of equally many rounds."""
    same = [one for one, other in zip(ours, theirs, strict=True) if one[0] == other[0]]
    rounds = sum(one == other for one, other in zip(ours, theirs, strict=True))
    return {
        "same_output": round(len(same) / len(ours), 4),
        "same_rounds_where_same_output": round(rounds / len(same), 4) if same else None,
    }
