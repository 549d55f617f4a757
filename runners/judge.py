"""Whether a measured cell is to be trusted: its counts, and its clocks.

Where a server keeps totals of its own (vLLM), what the responses told must add up to them, and the totals tell the
shape that was drafted. Where it keeps none (SGLang), the only counts are those of the responses, whose sums would agree
with themselves: there each request's rounds and accepted tokens must fit its histogram and the tokens that came, and
"drafted" is the verify width that the server counts with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddbench.records import Status
from runners.client import Completion
from runners.counts import SpecCounters, Tally
from runners.joined import find_joined


@dataclass(frozen=True)
class Expected:
    """What an arm drafts a round at most. ``fewer``: it may draft less (a tree pruned by probability)."""

    drafted: int  # 0: autoregressive
    fewer: bool = False


def judge(
    expected: Expected, completions: Sequence[Completion], tally: Tally, counted: SpecCounters | None
) -> tuple[Status, str | None]:
    """Status and reason of a cell: failed, suspect with the numbers, or ok. A request that failed fails the cell.

    ``counted``: the server's own totals, None where it keeps none. Where no counts are known the clocks alone are
    looked at; that there were drafts is then not known, which ``experiments/fallback.py`` says.
    """
    totals = tally.sums if counted is None else counted
    errors = [each.error for each in completions if each.error]
    if errors:
        return "failed", f"{len(errors)} of {len(completions)} requests failed: {errors[0]}"
    if not tally.known:
        late = find_joined(expected.drafted, completions, tally).problem
        return ("ok", None) if late is None else ("suspect", late)
    if not expected.drafted and totals.drafts:
        return "failed", f"the server speculated: {totals.drafts} drafts counted"
    if expected.drafted and totals.drafts == 0 and any(len(each.token_ids) > 1 for each in completions):
        return "failed", "no draft was counted: speculation was not active"
    if expected.drafted and _other_shape(expected, totals, len(completions)):
        return "failed", f"{_drafts(totals)}, not {expected.drafted} a round: the server runs another shape"
    problems = []
    if expected.drafted:
        apart = _misfits(completions, tally) if counted is None else _differences(tally, counted)
        problems = [*apart, *_shape(expected, totals), *_plain(tally)]
    late = find_joined(expected.drafted, completions, tally).problem
    problems += [late] if late is not None else []
    return ("suspect", "; ".join(problems)) if problems else ("ok", None)


def _differences(tally: Tally, totals: SpecCounters) -> list[str]:
    sums = tally.sums
    pairs = (
        ("rounds", sums.drafts, totals.drafts),
        ("drafted", sums.drafted, totals.drafted),
        ("accepted", sums.accepted, totals.accepted),
    )
    apart = [
        f"{name} {ours} by request, {theirs} counted"
        for name, ours, theirs in pairs
        if ours != theirs and ours is not None
    ]
    if not apart:
        return []
    return [f"{', '.join(apart)} by the server (by request: {tally.source})"]


def _misfits(completions: Sequence[Completion], tally: Tally) -> list[str]:
    """What does not fit in what the responses told, where there is nothing else to hold it against.

    Only the last round of a request is cut, and one token of it is kept: the tokens counted beyond those that came are
    at most what one round accepted.
    """
    bars = tokens = 0
    for done, counts in zip(completions, tally.requests, strict=True):
        rounds = sum(counts.histogram)
        accepted = sum(length * number for length, number in enumerate(counts.histogram))
        bars += (rounds, accepted) != (counts.rounds, counts.accepted_raw)
        beyond = counts.rounds + counts.accepted_raw - max(len(done.token_ids) - 1, 0)
        tokens += beyond > max(len(counts.histogram) - 1, 0)
    found = []
    if bars:
        found.append(f"rounds and accepted tokens of {bars} requests are not those of their histograms")
    if tokens:
        found.append(f"{tokens} requests have more accepted tokens than their outputs and one cut round hold")
    return found


def _shape(expected: Expected, totals: SpecCounters) -> list[str]:
    whole = expected.drafted * totals.drafts
    if totals.drafted is None:
        return []
    if totals.drafted == whole or (expected.fewer and totals.drafted < whole):
        return []
    return [f"{_drafts(totals)}, not {expected.drafted} a round"]


def _other_shape(expected: Expected, totals: SpecCounters, requests: int) -> bool:
    """Whether the server drafted more than the arm does, or less by more than one draft of every request.

    The last draft of a request may be cut where its context ends; nothing else makes an unpruned draft shorter.
    """
    if totals.drafted is None:
        return False
    missing = expected.drafted * totals.drafts - totals.drafted
    return missing < 0 or (not expected.fewer and missing > expected.drafted * requests)


def _drafts(totals: SpecCounters) -> str:
    return f"{totals.drafted} tokens drafted in {totals.drafts} rounds"


def _plain(tally: Tally) -> list[str]:
    steps = sum(each.plain_steps for each in tally.requests)
    return [f"{steps} decode steps went without a draft"] if steps else []
