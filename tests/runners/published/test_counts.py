"""Its counts in our words; the numbers are worked out by hand."""

from __future__ import annotations

import pytest

from ddbench.decoding import Request, Sampling
from runners.published.counts import rounds_of, trouble


@pytest.mark.parametrize(
    ("lengths", "tokens", "kept", "surplus"),
    [
        # prefill's token and rounds of 3 + bonus and 0 + bonus: six tokens, none cut
        ([4, 1], 6, [(3, 3, 4), (0, 0, 1)], 0),
        # the last round emitted 4 of which 2 fit: its 3 accepted are cut to 2, and 3 stay as accepted before the cut
        ([1, 4], 4, [(0, 0, 1), (2, 3, 2)], 0),
        # one token asked for: prefill gave it, and the round that was run all the same counts for nothing
        ([2], 1, [], 1),
        # the answer was full after the first round
        ([3, 5], 4, [(2, 2, 3)], 1),
    ],
)
def test_rounds(lengths: list[int], tokens: int, kept: list[tuple[int, int, int]], surplus: int) -> None:
    rounds, more = rounds_of(lengths, tokens, 16, None, 17)
    assert [(each.accepted, each.accepted_raw, each.emitted) for each in rounds] == kept
    assert more == surplus
    assert sum(each.emitted for each in rounds) == tokens - 1
    assert {(each.drafted, each.verify_width, each.in_flight) for each in rounds} <= {(16, 17, 1)}


@pytest.mark.parametrize(
    ("output", "lengths", "told"),
    [
        ((5, 6, 7, 8), [2, 1], None),
        ((5, 6, 7, 8, 5, 6), [9], None),  # cut at six tokens
        ((5, 6, 7), [2, 1], "3 tokens, and its rounds emitted 4: it drops tokens that equal the mask token"),
        ((5, 9), [3], None),  # 9 ends an answer
        ((5, 6, 7, 9), [1], "4 tokens, and its rounds emitted 2"),
        ((), [1], "the answer is empty"),
    ],
)
def test_answers_that_do_not_fit_their_rounds(output: tuple[int, ...], lengths: list[int], told: str | None) -> None:
    request = Request("a", (1, 2), 6, Sampling(), frozenset({9}))
    assert trouble(request, output, lengths) == told
