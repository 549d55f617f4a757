"""Counting with and without the server's help: both against rounds that are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from completions_made import completion, counters
from hypothesis import given
from hypothesis import strategies as st

from runners.counts import SpecCounters
from runners.vllm.counts import deal, tally

DRAFTED = 7
rounds_of_a_request = st.lists(st.integers(0, DRAFTED), min_size=1, max_size=6)
cuts = st.integers(0, DRAFTED)


def the_cut(rounds: list[int], cut: int) -> int:
    """A cut that leaves the last round at least one token."""
    return min(cut, rounds[-1])


@given(st.lists(st.tuples(rounds_of_a_request, cuts), min_size=1, max_size=6))
def test_told_counts_are_those_of_the_rounds(made: list[tuple[list[int], int]]) -> None:
    found = tally([completion(rounds, the_cut(rounds, cut), DRAFTED) for rounds, cut in made], DRAFTED, SpecCounters())
    for (rounds, cut), counts in zip(made, found.requests, strict=True):
        cut = the_cut(rounds, cut)
        kept = [*rounds[:-1], min(rounds[-1], rounds[-1] + 1 - cut)]
        assert (counts.rounds, counts.drafted) == (len(rounds), DRAFTED * len(rounds))
        assert (counts.accepted, counts.accepted_raw) == (sum(kept), sum(rounds))
        assert counts.histogram == tuple(Counter(rounds)[a] for a in range(max(rounds) + 1))
        assert counts.plain_steps == 0
        assert counts.by_round is not None
        assert [each.accepted for each in counts.by_round] == kept
        assert sum(each.emitted for each in counts.by_round) == sum(rounds) + len(rounds) - cut


@given(st.lists(st.tuples(rounds_of_a_request, cuts), min_size=1, max_size=6))
def test_chunks_and_totals_give_the_same_sums_and_histogram(made: list[tuple[list[int], int]]) -> None:
    completions = [completion(rounds, the_cut(rounds, cut)) for rounds, cut in made]
    truth = counters([rounds for rounds, _ in made], DRAFTED)
    found = tally(completions, DRAFTED, truth)
    assert found.sums == replace(truth, by_position=())
    histogram: Counter[int] = Counter()
    for counts, done in zip(found.requests, completions, strict=True):
        histogram.update(dict(enumerate(counts.histogram)))
        assert counts.by_round is not None
        assert tuple(each.emitted for each in counts.by_round) == done.chunk_tokens[1:]
        assert all(each.accepted == min(each.accepted_raw, each.emitted) for each in counts.by_round)
        assert counts.accepted <= len(done.token_ids) - 1
    assert +histogram == +Counter(accepted for rounds, _ in made for accepted in rounds)


def test_without_a_cut_chunks_tell_all() -> None:
    made = [[0, 3, 7], [2], [5, 5]]
    found = tally([completion(rounds) for rounds in made], DRAFTED, counters(made, DRAFTED))
    assert found.guessed == 0
    assert [counts.accepted_raw for counts in found.requests] == [10, 2, 10]


def test_chunks_that_joined_two_rounds_do_not_add_up() -> None:
    made = [[1, 2, 3]]
    joined = replace(completion(made[0]), chunk_tokens=(1, 5, 4))
    found = tally([joined], DRAFTED, counters(made, DRAFTED))
    assert found.sums.drafts != 3


def test_steps_without_a_draft_are_seen() -> None:
    told = completion([2, 1], drafted=DRAFTED)
    longer = replace(told, token_ids=(*told.token_ids, 0), chunk_tokens=(*told.chunk_tokens, 1))
    (counts,) = tally([longer], DRAFTED, SpecCounters()).requests
    assert (counts.plain_steps, counts.by_round, counts.accepted) == (1, None, 3)


def test_one_token_and_no_speculation() -> None:
    alone = completion([])
    assert alone.chunk_tokens == (1,)
    assert tally([alone], DRAFTED, SpecCounters()).requests[0].rounds == 0
    assert tally([completion([0, 0])], 0, SpecCounters()).requests[0].rounds == 0


def test_dealing() -> None:
    assert deal([1, 2, 0], [0, 1, 1, 1]) == [2, 3, 1]
    assert deal([2, 2], [0, 1, 1]) is None  # somebody would have less than was kept
    assert deal([1], [0, 1, 1]) is None
    assert deal([], []) == []
