"""Gaps of the target's best two tokens: what a server's answer says of them, and which fit a measured output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runners.completions import TokenRequest, body, read_event
from runners.gaps import of_another_run


def event(tokens: list[int], offered: list[dict[int, float]]) -> dict[str, object]:
    logprobs = {
        "tokens": [f"token_id:{token}" for token in tokens],
        "top_logprobs": [{f"token_id:{token}": value for token, value in each.items()} for each in offered],
    }
    return {"choices": [{"token_ids": tokens, "finish_reason": None, "logprobs": logprobs}]}


def test_only_a_request_that_wants_gaps_asks_for_them() -> None:
    asked = body(TokenRequest((1,), 4, gaps=True), "m")
    assert (asked["logprobs"], asked["return_tokens_as_token_ids"]) == (2, True)
    assert "logprobs" not in body(TokenRequest((1,), 4), "m")


def test_a_gap_is_of_the_two_best_whatever_their_order() -> None:
    told = read_event(event([3, 4, 5], [{3: -0.5, 9: -2.0}, {9: -0.25, 4: -0.5}, {5: -1.0, 9: -1.0}]))
    assert told.gaps == (1.5, 0.25, 0.0)


def test_a_token_that_is_neither_of_the_two_best_has_no_gap() -> None:
    assert read_event(event([3], [{8: -0.5, 9: -1.0, 3: -4.0}])).gaps == (None,)
    assert read_event(event([3], [{3: -0.5}])).gaps == (None,)
    assert read_event({"choices": [{"token_ids": [3], "finish_reason": None}]}).gaps == ()


TOKENS = st.lists(st.integers(0, 2), max_size=6)


@given(TOKENS, TOKENS)
def test_a_gap_fits_where_all_before_it_is_equal(output: list[int], again: list[int]) -> None:
    gaps = [10.0 + index for index in range(len(again))]
    found = of_another_run(output, again, gaps)
    if not output:
        assert found is None
        return
    fits = [index < len(again) and output[:index] == again[:index] for index in range(len(output))]
    assert found == [gaps[index] if good else None for index, good in enumerate(fits)]


def test_gaps_that_are_not_one_a_token_fit_nothing() -> None:
    assert of_another_run([1, 2], [1, 2], [0.5]) is None
    assert of_another_run([1, 2], [1, 2], []) is None
