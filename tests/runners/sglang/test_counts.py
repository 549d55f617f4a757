"""Rounds by request from SGLang's counts and the lengths of its events: against rounds that are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from engines import cell
from hypothesis import given
from hypothesis import strategies as st
from sglang_arms import arm

from experiments.fallback import fallback
from runners.base import Prompt
from runners.client import Completion
from runners.completions import Speculation, TokenRequest
from runners.counts import SpecCounters
from runners.judge import Expected, judge
from runners.load import LoadResult
from runners.prompts import Tokenized
from runners.rows import Sent, request_rows, round_rows
from runners.sglang.counts import tally

DRAFTED = 7


def completion(accepted: list[int], cut: int = 0, joined: bool = False, drafted: int = DRAFTED) -> Completion:
    """A request whose rounds accepted so many tokens, and whose last one lost ``cut`` at the token limit."""
    chunks = [1, *(each + 1 for each in accepted)]
    chunks[-1] -= cut
    tokens = sum(chunks)
    if joined and len(chunks) > 2:
        chunks[1:3] = [chunks[1] + chunks[2]]
    counts = Counter(accepted)
    said = Speculation(
        len(accepted), drafted * len(accepted), sum(accepted), tuple(counts[a] for a in range(max(accepted) + 1))
    )
    times = tuple(float(index) for index in range(len(chunks)))
    request = TokenRequest((1, 2), tokens)
    ids = tuple(range(tokens))
    return Completion(request, ids, times, tuple(chunks), -1.0, 0.0, times[-1], "length", 2, 0, said, None)


@given(st.lists(st.integers(0, DRAFTED), min_size=1, max_size=6), st.integers(0, DRAFTED))
def test_rounds_are_those_of_the_request(accepted: list[int], cut: int) -> None:
    cut = min(cut, accepted[-1])
    (counts,) = tally([completion(accepted, cut)], DRAFTED).requests
    kept = [*accepted[:-1], min(accepted[-1], accepted[-1] + 1 - cut)]
    assert (counts.rounds, counts.drafted) == (len(accepted), DRAFTED * len(accepted))
    assert (counts.accepted, counts.accepted_raw) == (sum(kept), sum(accepted))
    assert counts.histogram == tuple(Counter(accepted)[a] for a in range(max(accepted) + 1))
    assert counts.by_round is not None
    assert [each.accepted_raw for each in counts.by_round] == accepted
    assert [each.accepted for each in counts.by_round] == kept


@given(st.lists(st.integers(0, DRAFTED), min_size=2, max_size=6))
def test_joined_events_leave_sums_and_no_rounds(accepted: list[int]) -> None:
    (counts,) = tally([completion(accepted, joined=True)], DRAFTED).requests
    assert counts.by_round is None
    assert (counts.rounds, counts.accepted_raw) == (len(accepted), sum(accepted))


def test_acceptance_length_is_not_the_servers_ratio() -> None:
    sums = tally([completion([3, 1], cut=1), completion([0])], DRAFTED).sums
    assert 1 + sums.accepted / sums.drafts == 1 + 4 / 3


def test_a_server_that_speculates_in_an_autoregressive_arm_is_seen() -> None:
    done = completion([2, 0])
    assert tally([done], 0).sums.drafts == 2
    assert tally([replace(done, speculation=None)], 0).sums.drafts == 0
    assert tally([replace(done, speculation=None)], DRAFTED).sums.drafts == 0  # judged as no speculation at all


def test_counts_are_held_against_the_streams_where_a_server_has_no_totals() -> None:
    made = [completion([3, 1], cut=1), completion([0, 2])]
    good = tally(made, DRAFTED)
    expected = Expected(DRAFTED)
    assert judge(expected, made, good, None) == ("ok", None)
    first, second = good.requests
    for changes, told in (
        ({"rounds": 3}, "rounds and accepted tokens of 1 requests are not those of their histograms"),
        ({"histogram": (1, 1)}, "rounds and accepted tokens of 1 requests are not those of their histograms"),
    ):
        broken = replace(good, requests=(replace(first, **changes), second))
        status, reason = judge(expected, made, broken, None)
        assert status == "suspect"
        assert told in (reason or "")
    shorter = [replace(made[0], token_ids=made[0].token_ids[:1]), made[1]]
    assert judge(expected, shorter, good, None) == (
        "suspect",
        "1 requests have more accepted tokens than their outputs and one cut round hold",
    )


def test_the_verify_width_that_a_server_counts_with_must_be_the_arm_s() -> None:
    made = [completion([3, 1], drafted=5)]
    status, reason = judge(Expected(DRAFTED), made, tally(made, DRAFTED), None)
    assert (status, reason) == ("suspect", "10 tokens drafted in 2 rounds, not 7 a round")


def test_trees_of_unknown_size_have_no_count_of_drafted_tokens() -> None:
    made = [completion([3, 1]), completion([0])]
    found = tally(made, DRAFTED).without_drafted()
    assert [each.drafted for each in found.requests] == [None, None]
    assert found.sums == SpecCounters(3, None, 4)
    assert [each.drafted for counts in found.requests for each in counts.by_round or ()] == [None] * 3
    assert judge(Expected(DRAFTED, fewer=True), made, found, None) == ("ok", None)
    assert SpecCounters(3, None).since(SpecCounters(1, 2)) == SpecCounters(2, None)


def test_what_other_peoples_sources_do_not_count_is_null() -> None:
    """Of a stock server it is a failure: it did not speculate."""
    silent = [replace(completion([2, 1]), speculation=None), replace(completion([0]), speculation=None)]
    unknown = tally(silent, DRAFTED, others=True)
    assert judge(Expected(DRAFTED), silent, unknown, None) == ("ok", None)
    status, reason = judge(Expected(DRAFTED), silent, tally(silent, DRAFTED), None)
    assert (status, reason) == ("failed", "no draft was counted: speculation was not active")
    asked = [Sent(Tokenized(Prompt("p", "d", "c", ("t",)), (1, 2)), 0, each.request) for each in silent]
    load = LoadResult(tuple(silent), (0.0, 0.0), 0.0, 9.0, 1)
    measured = cell(arm("ddtree"))
    rows = request_rows(measured, asked, load, unknown)
    counts = ("rounds", "drafted", "accepted", "accepted_raw", "accept_histogram")
    assert {tuple(row[name] for name in counts) for row in rows} == {(None,) * 5}
    assert [row["output_tokens"] for row in rows] == [6, 2]
    assert round_rows(measured, asked, unknown) is None
    assert fallback(measured.arm, rows) == (
        "suspect",
        "the engine does not tell its verify rounds: that it speculated is not known",
    )
    told = [replace(completion([2, 1]), speculation=None), completion([0])]
    assert tally(told, DRAFTED, others=True).known  # one that counts does, and the other had no round
