"""Rounds by request from SGLang's counts and the lengths of its events: against rounds that are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from runners.client import Completion
from runners.completions import Speculation, TokenRequest
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
