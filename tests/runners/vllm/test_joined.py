"""Events that stand for several steps spoil the clocks of a cell: few are let pass, many make it suspect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from completions_made import completion, counters

from runners.client import Completion, _Stream
from runners.completions import TokenRequest
from runners.counts import SpecCounters
from runners.joined import Joined, find_joined
from runners.judge import Expected, judge
from runners.vllm.counts import tally

NO_DRAFTS = SpecCounters()
PLAIN = completion([0] * 49)  # 50 tokens, each an event
ROUNDS = [3, 0, 2, 7, 1] * 5
TOLD = completion(ROUNDS, drafted=7)


def one_event(done: Completion, first: int, count: int) -> Completion:
    """The server sent ``count`` events as one, when the last of them came."""
    last = first + count - 1
    times, tokens = done.chunk_times_s, done.chunk_tokens
    return replace(
        done,
        chunk_times_s=(*times[:first], *times[last:]),
        chunk_tokens=(*tokens[:first], sum(tokens[first : last + 1]), *tokens[last + 1 :]),
    )


def one_moment(done: Completion, first: int, count: int) -> Completion:
    """The client read ``count`` events together."""
    times, last = done.chunk_times_s, first + count - 1
    return replace(done, chunk_times_s=(*times[:first], *(times[last],) * count, *times[last + 1 :]))


def plain(found: Sequence[Completion]) -> tuple[str, str | None]:
    return judge(Expected(0), found, tally(found, 0, NO_DRAFTS), NO_DRAFTS)


def speculative(found: Sequence[Completion], rounds: Sequence[Sequence[int]]) -> tuple[str, str | None]:
    totals = counters(rounds, 7)
    return judge(Expected(7), found, tally(found, 7, totals), totals)


def test_autoregressive_steps_up_to_the_limit_are_let_pass() -> None:
    assert plain([PLAIN] * 4) == ("ok", None)
    for join in (one_event, one_moment):
        assert plain([PLAIN, PLAIN, join(PLAIN, 10, 5), PLAIN]) == ("ok", None)  # 4 of 200
        assert plain([PLAIN, PLAIN, join(PLAIN, 10, 6), PLAIN]) == (
            "suspect",
            "joined stream events: 5 of 200 steps, 0 first tokens; clocks of 1 of 4 requests are not to be trusted",
        )


def test_whole_texts_in_one_event() -> None:
    assert plain([one_event(PLAIN, 0, 50)] * 27 + [PLAIN] * 28) == (
        "suspect",
        "joined stream events: 1,323 of 2,750 steps, 27 first tokens; "
        "clocks of 27 of 55 requests are not to be trusted",
    )


def test_first_tokens_have_a_limit_of_their_own() -> None:
    for join in (one_event, one_moment):
        assert plain([join(PLAIN, 0, 2)] + [PLAIN] * 59) == ("ok", None)
        status, reason = plain([join(PLAIN, 0, 2)] * 2 + [PLAIN] * 58)
        assert status == "suspect"
        assert "2 of 3,000 steps, 2 first tokens; clocks of 2 of 60 requests" in (reason or "")


def test_speculative_steps_are_the_rounds_and_the_prefill() -> None:
    assert speculative([TOLD] * 4, [ROUNDS] * 4) == ("ok", None)
    for join in (one_event, one_moment):
        assert speculative([TOLD, TOLD, TOLD, join(TOLD, 4, 3)], [ROUNDS] * 4) == ("ok", None)  # 2 of 104
        assert speculative([TOLD, TOLD, join(TOLD, 4, 2), join(TOLD, 4, 3)], [ROUNDS] * 4) == (
            "suspect",
            "joined stream events: 3 of 104 steps, 0 first tokens; clocks of 2 of 4 requests are not to be trusted",
        )
    status, reason = speculative([one_event(TOLD, 0, 2)] + [TOLD] * 39, [ROUNDS] * 40)
    assert status == "suspect"
    assert "1 of 1,040 steps, 1 first tokens" in (reason or "")


def test_a_step_without_a_draft_is_a_step() -> None:
    longer = replace(
        TOLD,
        token_ids=(*TOLD.token_ids, 0),
        chunk_tokens=(*TOLD.chunk_tokens, 1),
        chunk_times_s=(*TOLD.chunk_times_s, 99.0),
    )
    found = find_joined(7, [longer], tally([longer], 7, NO_DRAFTS))
    assert found == Joined(requests=1, steps=27, joined=0, first=0, spoiled=0)


def test_where_events_are_counted_as_rounds() -> None:
    """Joined by the server, a round is missing; read together by the client, it is counted and its clock is spoiled."""
    counted = completion(ROUNDS)
    assert speculative([counted] * 4, [ROUNDS] * 4) == ("ok", None)
    status, reason = speculative([counted, one_event(counted, 4, 4)], [ROUNDS] * 2)
    assert status == "suspect"
    assert "rounds 47 by request, 50 counted" in (reason or "")
    status, reason = speculative([counted, one_moment(counted, 4, 4)], [ROUNDS] * 2)
    assert (reason or "").startswith("joined stream events: 3 of 52 steps, 0 first tokens; clocks of 1 of 2 requests")


def test_requests_of_one_token_and_failed_ones() -> None:
    alone = completion([])
    assert plain([alone] * 3) == ("ok", None)
    assert find_joined(0, [alone], tally([alone], 0, NO_DRAFTS)) == Joined(1, 1, 0, 0, 0)
    broken = replace(one_event(PLAIN, 0, 50), error="the stream broke")
    assert plain([broken, PLAIN]) == ("failed", "1 of 2 requests failed: the stream broke")
    unsent = replace(PLAIN, token_ids=(), chunk_tokens=(), chunk_times_s=())
    assert find_joined(0, [unsent], tally([unsent], 0, NO_DRAFTS)) == Joined(0, 0, 0, 0, 0)


def test_what_comes_in_one_read_is_one_moment_and_events_without_tokens_are_none() -> None:
    def event(*ids: int, end: str | None = None) -> bytes:
        data = {"choices": [{"text": "", "token_ids": ids, "finish_reason": end}]}
        return f"data: {json.dumps(data)}\n\n".encode()

    stream = _Stream(TokenRequest((1,), 4), 0.0)
    stream.feed(event(), 1.0)
    stream.feed(event(5), 2.0)
    stream.feed(event(6) + event(7), 3.0)
    stream.feed(event(8), 4.0)
    stream.feed(event(end="length") + b"data: [DONE]\n\n", 5.0)
    done = stream.result(stream.problem(), False)
    assert done.error is None
    assert find_joined(0, [done], tally([done], 0, NO_DRAFTS)) == Joined(1, steps=4, joined=1, first=0, spoiled=1)
