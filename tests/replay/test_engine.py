"""An engine's rounds as traces, and live rounds against their replay: what is equal, what is explained, what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made import slow_round

from ddbench.decoding import Strategy
from ddbench.plugins.sglang.dumps import Layout
from ddbench.replay import Trace, TraceSet, replay
from ddbench.replay.engine import MOST_DRIFT, Incomplete, Live, Spoken, compare, trace_of
from ddbench.replay.trace import Key

DEPTH, WORDS, PROMPT, TOKENS, K = 4, 12, 5, 30, 8
TREE, CHAIN = Strategy("ddtree", width=3, nodes=6), Strategy("dflash")
KEY = Key("p", 0, "made", "a", 0, 0, 0.0)


def offers(rng: np.random.Generator, text: np.ndarray, anchors: list[int]) -> np.ndarray:
    """Rounds at these anchors whose candidates often hold the text's next tokens."""
    rows = np.zeros(len(anchors), dtype=Layout(DEPTH, K).record)
    for row, anchor in zip(rows, anchors, strict=True):
        row["position"], row["root"], row["taken"] = PROMPT + anchor, text[anchor], 1
        for level in range(DEPTH):
            ids = rng.permutation(WORDS)[:K]
            right, place = text[anchor + 1 + level], int(rng.integers(0, 3))
            ids = np.concatenate([ids[ids != right], ids[ids == right]])[: K - 1]
            row["ids"][level] = np.insert(ids, place, right)
            row["log_probs"][level] = -np.sort(rng.exponential(1.0, K).cumsum())
    return rows


@pytest.fixture
def made() -> tuple[Spoken, np.ndarray]:
    rng = np.random.default_rng(4)
    text = rng.integers(0, WORDS, TOKENS + DEPTH + 4)
    output, tail = tuple(text[:TOKENS].tolist()), tuple(text[TOKENS : TOKENS + DEPTH - 1].tolist())
    return Spoken(KEY, PROMPT, "length", output, tail), offers(rng, text, list(range(TOKENS + 2)))


def lived(trace: Trace, rounds: np.ndarray, strategy: Strategy) -> np.ndarray:
    """The rounds that an engine would have had with these scores, and one beyond the end, as overlap has it."""
    at, taken = 0, []
    while at < trace.anchors:
        accepted, _ = slow_round(rounds["log_probs"][at], trace.ranks[at], strategy)
        row = rounds[at].copy()
        row["taken"] = accepted + 1
        taken.append(row)
        at += accepted + 1
    return np.stack([*taken, rounds[TOKENS]])


def test_a_trace_is_made_of_rounds(made: tuple[Spoken, np.ndarray]) -> None:
    spoken, rounds = made
    trace = trace_of(spoken, rounds)
    assert trace.anchors == TOKENS - 1
    assert trace.disagreements is None
    text = [*spoken.output, *spoken.tail]
    for anchor in range(trace.anchors):
        for level in range(DEPTH):
            place = anchor + 1 + level
            rank = int(trace.ranks[anchor, level])
            assert rank == (rounds["ids"][anchor, level].tolist().index(text[place]) if place < len(text) else -1)


@pytest.mark.parametrize("change", ["missing", "another root"])
def test_rounds_that_are_not_the_requests_are_refused(made: tuple[Spoken, np.ndarray], change: str) -> None:
    spoken, rounds = made
    if change == "missing":
        rounds = np.delete(rounds, 7)
    else:
        rounds["root"][3] += 1
    with pytest.raises(Incomplete, match="p: "):
        trace_of(spoken, rounds)


@pytest.mark.parametrize("strategy", [TREE, CHAIN])
def test_the_same_scores_give_the_same_rounds(made: tuple[Spoken, np.ndarray], strategy: Strategy) -> None:
    trace = trace_of(*made)
    traces = TraceSet.of([trace])
    (outcome,) = replay(traces, [strategy])
    bars = tuple(int(each) for each in outcome.histogram[0])
    found = compare(strategy, traces, outcome, [Live(made[0].output, lived(trace, made[1], strategy), bars)])
    assert (found["equal"], found["differences"], found["engine_counts_otherwise"]) == (True, [], 0)
    assert found["rounds"] == found["rounds_by_own_scores"] == int(outcome.rounds[0])
    wrong = (*bars[:-1], bars[-1] + 1)
    found = compare(strategy, traces, outcome, [Live(made[0].output, lived(trace, made[1], strategy), wrong)])
    assert found["engine_counts_otherwise"] == 1


def changed(trace: Trace, rounds: np.ndarray) -> tuple[np.ndarray, int]:
    """Scores moved as rounding would, so far that the request's counts change; and the anchor where."""
    before, rng = lived(trace, rounds, TREE), np.random.default_rng(0)
    for anchor in before["position"][:-1] - PROMPT:
        for _ in range(40):
            other = rounds.copy()
            other["log_probs"][anchor] -= rng.uniform(0, 0.45, (DEPTH, 1)).astype(np.float32)  # they stay sorted
            if sorted(lived(trace, other, TREE)["taken"]) != sorted(before["taken"]):
                return other, int(anchor)
    raise AssertionError("no change of scores changes the counts")


def difference(found: dict[str, Any]) -> dict[str, Any]:
    assert (found["equal"], found["differing"]) == (False, 1)
    (one,) = found["differences"]
    assert one["live"] != one["replayed"]
    return dict(one)


def test_other_scores_explain_another_round(made: tuple[Spoken, np.ndarray]) -> None:
    trace = trace_of(*made)
    traces = TraceSet.of([trace])
    other, anchor = changed(trace, made[1])
    (outcome,) = replay(traces, [TREE])
    found = compare(TREE, traces, outcome, [Live(made[0].output, lived(trace, other, TREE))])
    one = difference(found)
    assert (one["anchor"], one["explained"], found["explained"]) == (anchor, True, 1)
    assert 0 < one["needed_nats"] <= one["drift_nats"] <= MOST_DRIFT["bfloat16"]
    assert found["drift"]["worst"] >= found["drift"]["median"] == 0.0
    assert found["rounds"] == found["rounds_by_own_scores"]
    exact = compare(TREE, traces, outcome, [Live(made[0].output, lived(trace, other, TREE))], "float32")
    assert exact["explained"] == 0  # so far apart are no two roundings of float32


def test_a_round_that_its_own_scores_do_not_give_is_not_explained(made: tuple[Spoken, np.ndarray]) -> None:
    """A planted fault: the engine takes one token fewer than its tree held."""
    trace = trace_of(*made)
    traces = TraceSet.of([trace])
    live = lived(trace, made[1], TREE)
    number = int(np.flatnonzero(live["taken"][:-1] > 1)[0])
    cut = int(live["position"][number]) - PROMPT
    rest = replace_from(trace, made[1], cut, int(live["taken"][number]) - 1)
    (outcome,) = replay(traces, [TREE])
    found = compare(TREE, traces, outcome, [Live(made[0].output, np.concatenate([live[:number], rest]))])
    one = difference(found)
    assert (one["explained"], one["drift_nats"], found["explained"]) == (False, 0.0, 0)
    assert one["needed_nats"] is None or one["needed_nats"] > 0
    assert found["rounds_by_own_scores"] == found["rounds"] - 1
    (odd,) = found["odd"]
    assert (odd["behind_end"], odd["another_text"], odd["by_own_scores"] - odd["live"]) == (False, False, 1)
    assert odd["recorded"] == odd["live_scores"]  # all is told that a reader needs
    assert len(odd["recorded"]) == odd["live"] + 1


def replace_from(trace: Trace, rounds: np.ndarray, anchor: int, taken: int) -> np.ndarray:
    """A round of that length at the anchor, and the right ones after it."""
    first = rounds[anchor].copy()
    first["taken"] = taken
    begin = anchor + taken
    part = replace(trace, log_probs=trace.log_probs[begin:], ranks=trace.ranks[begin:])
    return np.concatenate([first[None], lived(part, rounds[begin:], TREE)[:-1]])


def test_another_text_is_counted_apart_and_a_gap_is_no_round(made: tuple[Spoken, np.ndarray]) -> None:
    trace = trace_of(*made)
    traces = TraceSet.of([trace])
    (outcome,) = replay(traces, [TREE])
    live = lived(trace, made[1], TREE)
    found = compare(TREE, traces, outcome, [Live((*made[0].output[:-1], 99), live)])
    assert (found["equal"], found["other_text"], found["rounds"]) == (False, 1, 0)
    with pytest.raises(Incomplete, match="rounds are missing"):
        compare(TREE, traces, outcome, [Live(made[0].output, np.delete(live, 2))])
    both = TraceSet.of([trace, trace])
    (outcome,) = replay(both, [TREE])
    lives = [Live(made[0].output, live), Live((*made[0].output[:-1], 99), live)]
    found = compare(TREE, both, outcome, lives)  # one of two with the recorded text is not all of them
    assert (found["equal"], found["equal_where_same_text"], found["other_text"]) == (False, True, 1)


@pytest.mark.parametrize("strategy", [TREE, CHAIN])
def test_a_recording_of_the_wrong_anchors_is_not_explained(made: tuple[Spoken, np.ndarray], strategy: Strategy) -> None:
    """A planted fault: each anchor was recorded with the next one's scores. The engine's own give its lengths."""
    trace = trace_of(*made)
    live = lived(trace, made[1], strategy)
    shifted = replace(trace, log_probs=np.roll(trace.log_probs, -1, axis=0), ranks=np.roll(trace.ranks, -1, axis=0))
    traces = TraceSet.of([shifted])
    (outcome,) = replay(traces, [strategy])
    found = compare(strategy, traces, outcome, [Live(made[0].output, live)])
    assert found["rounds"] == found["rounds_by_own_scores"]
    assert found["drift"]["median"] > MOST_DRIFT["bfloat16"]
    assert difference(found)["explained"] is False


def over_the_end() -> tuple[np.ndarray, np.ndarray]:
    """A text and its rounds, of which the last one that `TREE` has accepts a word behind the output."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        text = rng.integers(0, WORDS, TOKENS + DEPTH + 8)
        rounds = offers(rng, text, list(range(TOKENS + DEPTH + 1)))
        last = lived(said(text, rounds), rounds, TREE)[-2]
        if int(last["position"] + last["taken"]) - PROMPT > TOKENS:
            return text, rounds
    raise AssertionError("no round looks behind the end")


def said(text: np.ndarray, rounds: np.ndarray) -> Trace:
    output, tail = text[:TOKENS], text[TOKENS : TOKENS + DEPTH - 1]
    return trace_of(Spoken(KEY, PROMPT, "length", tuple(output.tolist()), tuple(tail.tolist())), rounds)


def with_next(live: np.ndarray, root: int) -> np.ndarray:
    """Live rounds and the one behind the last of them, from that word."""
    after = live[-1].copy()
    after["position"], after["root"] = live[-1]["position"] + live[-1]["taken"], root
    return np.concatenate([live, after[None]])


@pytest.mark.parametrize("further", [True, False])
def test_another_text_behind_the_end_is_told_from_a_fault(further: bool) -> None:
    """The target went another way behind the output: the live round goes further than the replayed one, or less far."""
    text, rounds = over_the_end()
    other = text.copy()
    other[TOKENS:] = WORDS  # which is never a candidate
    trace = said(other if further else text, rounds)
    traces = TraceSet.of([trace])
    live = lived(said(text, rounds), rounds, TREE)[:-1]
    if not further:  # the words that the tree holds behind the end are not those of the live run
        live[-1]["taken"] = TOKENS - (live[-1]["position"] - PROMPT)
    ends_at = int(live[-1]["position"] + live[-1]["taken"]) - PROMPT
    words = {"live": int((text if further else other)[ends_at]), "recorded": int((other if further else text)[ends_at])}
    (outcome,) = replay(traces, [TREE])

    def found(rows: np.ndarray) -> dict[str, Any]:
        return compare(TREE, traces, outcome, [Live(tuple(text[:TOKENS].tolist()), rows)])

    shown = found(with_next(live, words["live"]))
    (odd,) = shown["odd"]
    assert (odd["behind_end"], odd["another_text"], odd["parts_at"] >= TOKENS) == (True, True, True)
    assert (odd["live_word"], odd["recorded_word"]) == (words["live"], words["recorded"])
    assert (odd["live"] > odd["by_own_scores"]) is further
    assert (difference(shown)["by"], shown["explained"], shown["explained_by"]) == (
        "text_behind_end",
        1,
        {"scores": 0, "text_behind_end": 1},
    )
    assert shown["rounds_with_another_text_behind_end"] == 1
    for rows in (live, with_next(live, words["recorded"])):  # nothing shows another text, or it is the same one
        fault = found(rows)
        assert (difference(fault)["by"], fault["explained"], fault["odd"][0]["behind_end"]) == (None, 0, True)


def test_acceptance_live_and_replayed(made: tuple[Spoken, np.ndarray]) -> None:
    trace = trace_of(*made)
    traces = TraceSet.of([trace])
    (outcome,) = replay(traces, [TREE])
    other, _ = changed(trace, made[1])
    live = lived(trace, other, TREE)
    found = compare(TREE, traces, outcome, [Live(made[0].output, live)])
    both = {"live": (TOKENS - 1) / (len(live) - 1), "replayed": (TOKENS - 1) / int(outcome.rounds[0])}
    assert found["acceptance"] == {"same_text": both, "all": both}
    found = compare(TREE, traces, outcome, [Live((*made[0].output[:-1], 99), live)])
    assert found["acceptance"] == {"same_text": {"live": None, "replayed": None}, "all": both}
