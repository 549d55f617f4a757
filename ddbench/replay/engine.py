"""Traces from the rounds that an engine wrote, and an engine's live rounds against their replay.

Rounds are rows with the fields ``position``, ``root``, ``taken``, ``log_probs`` and ``ids``, ascending by position, as
`ddbench.plugins.sglang.dumps` has them. Round of anchor i (output token i) has the position prompt + i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.decoding import Strategy
from ddbench.replay.odd import odd_round
from ddbench.replay.outcome import Outcome
from ddbench.replay.parting import least_drift
from ddbench.replay.shapes import tables
from ddbench.replay.trace import Key, Trace, TraceSet, ranks_of

Rows = NDArray[Any]
Ints = NDArray[np.integer[Any]]

COMMON = 8  # best candidates of a position whose log-probabilities are compared
# Nats, by dtype: a wider drift is no rounding. A logit between 16 and 32 is a multiple of 1/8 in bfloat16, and what the
# layers before it add comes to as much again and more; the widths of TIES in experiments.evidence.identity.
MOST_DRIFT = {"bfloat16": 0.5, "float32": 0.05}
SCORES, BEHIND = "scores", "text_behind_end"  # what explains a difference


class Incomplete(ValueError):
    """Rounds that do not make up the request that they are said to be of."""


@dataclass(frozen=True)
class Spoken:
    """What is known of a request beside its rounds; ``tail``: what the target says behind the output."""

    key: Key
    prompt_tokens: int
    finish_reason: str
    output: tuple[int, ...]
    tail: tuple[int, ...]


def trace_of(spoken: Spoken, rounds: Rows) -> Trace:
    """The trace of a request whose every token but the last was the root of a round. Raises Incomplete."""
    anchors = _anchored(spoken, rounds)
    n = len(spoken.output)
    if not np.array_equal(anchors["position"] - spoken.prompt_tokens, np.arange(n - 1)):
        raise Incomplete(f"{spoken.key.prompt_id}: {len(anchors)} rounds were written of {n - 1}")
    if anchors["root"].tolist() != list(spoken.output[:-1]):
        raise Incomplete(f"{spoken.key.prompt_id}: the rounds' roots are not the output")
    return Trace(
        key=spoken.key,
        prompt_tokens=spoken.prompt_tokens,
        finish_reason=spoken.finish_reason,
        disagreements=None,
        log_probs=anchors["log_probs"].astype(np.float32),
        ranks=ranks_of(anchors["ids"], (*spoken.output, *spoken.tail)),
        output=np.asarray(spoken.output, dtype=np.int32),
        tail=np.asarray(spoken.tail, dtype=np.int32),
    )


@dataclass(frozen=True)
class Live:
    """A live request. ``bars``: the engine's own histogram of accepted tokens, None where it gave none."""

    output: tuple[int, ...]
    rounds: Rows
    bars: tuple[int, ...] | None = None


def compare(
    strategy: Strategy, traces: TraceSet, outcome: Outcome, lives: Sequence[Live], dtype: str = "bfloat16"
) -> dict[str, Any]:
    """One shape as an engine ran it, against its replay, request by request in the order of the traces.

    A request with another text than the recorded one has other rounds and is counted apart (``other_text``). Of the
    others, ``differing`` have other counts than the replay's, and ``differences`` say of each where it parts and why
    (``by``). By ``scores``: the drafter's were computed there with other rounding. The very scores that the engine had
    give the length that it accepted; they lie no more than ``MOST_DRIFT`` of the ``dtype`` from the recorded ones
    (``drift_nats``); and the recorded path lies as near to an edge of the tree as that drift reaches (``needed_nats``,
    see `least_drift`). By ``text_behind_end``: they do not give it, but the last round looked behind the output's end,
    where the live run is shown to have another word than the recording (`odd_round`); scores must explain the rest.
    ``explained``: one of the two.
    ``rounds_by_own_scores``: of all ``rounds``, those whose length follows so from the engine's own scores; ``odd``:
    the others; ``drift``: of all rounds, differing or not, so that a recording of something else shows where no length
    tells. ``acceptance``: tokens per round, live and replayed, of the requests with the recorded text and of all.
    ``equal``: every request has the recorded text and counts; ``equal_where_same_text``: those with that text have.
    """
    accepted = _accepted(traces, strategy)
    same = [place for place, live in enumerate(lives) if list(live.output) == traces.traces[place].output.tolist()]
    kept = [_chain(traces.traces[place], lives[place]) for place in same]
    owns = _own_lengths(strategy, [traces.traces[place] for place in same], kept)
    differences, drifts, odd, miscounted, rounds = [], [], list[dict[str, Any]](), 0, 0
    for place, mine, own in zip(same, kept, owns, strict=True):
        live, trace = lives[place], traces.traces[place]
        anchors, lengths = mine["position"] - trace.prompt_tokens, mine["taken"] - 1
        bars = np.bincount(lengths, minlength=traces.depth + 1)
        rounds += len(mine)
        drifts += [_drift(row["log_probs"], trace.log_probs[at]) for row, at in zip(mine, anchors, strict=True)]
        strange = {int(n): odd_round(trace, live.rounds, mine[n], int(own[n])) for n in np.flatnonzero(own != lengths)}
        odd += strange.values()
        miscounted += live.bars is not None and _trimmed(bars) != _trimmed(live.bars)
        if not np.array_equal(bars, outcome.histogram[place]) or len(mine) != int(outcome.rounds[place]):
            here = accepted[int(traces.starts[place]) : int(traces.ends[place])]
            found = _explained(strategy, trace, mine, anchors, lengths, own, here, strange)
            told = found["by"] is not None and found["drift_nats"] <= MOST_DRIFT[dtype]
            differences.append(found | {"explained": told, "by": found["by"] if told else None})
    return {
        "strategy": strategy.name,
        **{name: getattr(strategy, name) for name in ("width", "depth", "nodes", "force_spine")},
        "equal": len(same) == len(lives) > 0 and not differences,
        "equal_where_same_text": bool(same) and not differences,
        "requests": len(lives),
        "other_text": len(lives) - len(same),
        "differing": len(differences),
        "explained": sum(bool(each["explained"]) for each in differences),
        "explained_by": {why: sum(each["by"] == why for each in differences) for why in (SCORES, BEHIND)},
        "rounds": rounds,
        "rounds_by_own_scores": rounds - len(odd),
        "rounds_with_another_text_behind_end": sum(each["another_text"] for each in odd),
        "acceptance": _acceptance(traces, same, lives, outcome),
        "drift": _spread(drifts),
        "engine_counts_otherwise": miscounted,
        "differences": differences,
        "odd": odd,
    }


def _acceptance(traces: TraceSet, same: Sequence[int], lives: Sequence[Live], outcome: Outcome) -> dict[str, Any]:
    """Tokens per round, the last one cut at the output's end: live and replayed, of all requests, and of those with the
    recorded text. None where there is no round."""
    live, replayed = [], []
    for trace, each, rounds in zip(traces.traces, lives, outcome.rounds, strict=True):
        words = Spoken(trace.key, trace.prompt_tokens, "", each.output, ())
        live.append((max(len(each.output) - 1, 0), len(_anchored(words, each.rounds))))
        replayed.append((trace.anchors, int(rounds)))
    every = range(len(live))
    return {
        "same_text": {"live": _ratio(live, same), "replayed": _ratio(replayed, same)},
        "all": {"live": _ratio(live, every), "replayed": _ratio(replayed, every)},
    }


def _ratio(counts: Sequence[tuple[int, int]], places: Sequence[int]) -> float | None:
    tokens, rounds = (sum(counts[place][part] for place in places) for part in (0, 1))
    return tokens / rounds if rounds else None


def _anchored(spoken: Spoken, rounds: Rows) -> Rows:
    """The rounds that begin before the output's last token; an engine may have run others behind it."""
    anchor = rounds["position"] - spoken.prompt_tokens
    found: Rows = rounds[(anchor >= 0) & (anchor < len(spoken.output) - 1)]
    return found


def _chain(trace: Trace, live: Live) -> Rows:
    """The rounds of a live request, of which each must begin where the one before it ended. Raises Incomplete."""
    mine = _anchored(Spoken(trace.key, trace.prompt_tokens, "", live.output, ()), live.rounds)
    if trace.anchors == 0:
        return mine
    anchors, taken = mine["position"] - trace.prompt_tokens, mine["taken"]
    begins = np.concatenate([[0], (anchors + taken)[:-1]])
    if len(mine) == 0 or not np.array_equal(anchors, begins) or anchors[-1] + taken[-1] < trace.anchors:
        raise Incomplete(f"{trace.key.prompt_id}: rounds are missing")
    return mine


def _accepted(traces: TraceSet, strategy: Strategy) -> Ints:
    """Accepted tokens at every anchor, before clipping."""
    (_, accepted, _), *_ = tables(traces, [strategy])
    found: Ints = accepted[0].astype(np.int64)
    return found


def _own_lengths(strategy: Strategy, traces: Sequence[Trace], rounds: Sequence[Rows]) -> list[Ints]:
    """What each round accepts by the scores that the engine had in it, request by request."""
    if not any(map(len, rounds)):
        return [np.zeros(0, dtype=np.int64) for _ in rounds]
    found = TraceSet.of(map(_as_trace, traces, rounds))
    accepted = _accepted(found, strategy)
    return [accepted[start:end] for start, end in zip(found.starts, found.ends, strict=True)]


def _as_trace(trace: Trace, rounds: Rows) -> Trace:
    """Rounds as anchors that follow each other, with the text that comes after each of them; its own text is none."""
    anchors, (_, depth, _) = rounds["position"] - trace.prompt_tokens, rounds["ids"].shape
    text = np.concatenate([trace.output, trace.tail])
    known = np.full(max(len(text), int(anchors.max(initial=0)) + 1) + depth, -1, dtype=np.int64)
    known[: len(text)] = text
    matches = rounds["ids"] == known[anchors[:, None] + np.arange(1, depth + 1)][:, :, None]
    return replace(
        trace,
        log_probs=rounds["log_probs"].astype(np.float32),
        ranks=np.where(matches.any(2), matches.argmax(2), -1),
        output=np.zeros(len(rounds) + 1, dtype=np.int32),
    )


def _explained(
    strategy: Strategy,
    trace: Trace,
    rounds: Rows,
    anchors: Ints,
    lengths: Ints,
    own: Ints,
    replayed: Ints,
    odd: Mapping[int, dict[str, Any]],
) -> dict[str, Any]:
    """The first round of a request whose length is not the replayed one, and why; ``odd`` by place in ``rounds``."""
    found: dict[str, Any] = {"prompt_id": trace.key.prompt_id, "by": None, "drift_nats": 0.0}
    parts = np.flatnonzero(lengths != replayed[anchors])
    if not len(parts):
        return found | {"round": None}
    number = int(parts[0])
    anchor = int(anchors[number])
    live, recorded = rounds["log_probs"][number], trace.log_probs[anchor]
    path = _path_drift(trace, anchor, rounds[number])
    drift = max(_drift(live, recorded), path)
    behind = number in odd and odd[number]["another_text"]
    goal = int(own[number] if behind else lengths[number])  # what scores must explain
    needed = least_drift(strategy, recorded, trace.ranks[anchor], goal, int(replayed[anchor]))
    by_scores = goal == int(own[number]) and drift > 0 and needed <= drift
    rest = goal == int(replayed[anchor]) or by_scores
    return found | {
        "round": number,
        "anchor": anchor,
        "live": int(lengths[number]),
        "replayed": int(replayed[anchor]),
        "by_own_scores": int(own[number]),
        "drift_nats": drift,
        "needed_nats": needed if np.isfinite(needed) else None,
        "by": (BEHIND if rest else None) if behind else SCORES if by_scores else None,
    }


def _drift(live: Rows, recorded: Rows) -> float:
    """By how much the sorted log-probabilities of the best candidates differ at most, over all depths."""
    best = min(COMMON, live.shape[1], recorded.shape[1])
    return float(np.abs(live[:, :best].astype(np.float64) - recorded[:, :best].astype(np.float64)).max())


def _path_drift(trace: Trace, anchor: int, live: Rows) -> float:
    """By how much the log-probabilities of the text's own next tokens differ at most, where both have them."""
    text = np.concatenate([trace.output, trace.tail])[anchor + 1 :]
    found = 0.0
    for level, (token, rank) in enumerate(zip(text[: len(live["ids"])], trace.ranks[anchor], strict=False)):
        here = np.flatnonzero(live["ids"][level] == token)
        if rank >= 0 and len(here):
            moved = float(live["log_probs"][level, here[0]]) - float(trace.log_probs[anchor, level, rank])
            found = max(found, abs(moved))
    return found


def _spread(drifts: Sequence[float]) -> dict[str, float] | None:
    """Median and largest, in nats."""
    return {"median": float(np.median(drifts)), "worst": max(drifts)} if drifts else None


def _trimmed(bars: Any) -> list[int]:
    values = [int(each) for each in bars]
    while values and values[-1] == 0:
        values.pop()
    return values
