"""Requests and events of SGLang's ``/generate``, in both ways that its streams give their tokens."""

from __future__ import annotations

from typing import Any

import pytest

from runners.completions import Speculation, TokenRequest
from runners.sglang import wire

COUNTS = {
    "spec_verify_ct": 2,
    "spec_num_correct_drafts": 3,
    "spec_num_proposed_drafts": 14,
    "spec_correct_drafts_histogram": [0, 1, 1],
    "spec_accept_length": 3.0,  # its own ratio, with the prefill's token: not used
}


def event(ids: list[int], total: int, **meta: Any) -> dict[str, Any]:
    told = {"finish_reason": None, "prompt_tokens": 5, "completion_tokens": total, "cached_tokens": 2}
    return {"output_ids": ids, "meta_info": told | meta}


def test_all_sampling_settings_are_sent() -> None:
    request = TokenRequest((1, 2), 9, 0.7, 0.9, 20, seed=3, ignore_eos=True, stop_ids=(4,))
    assert wire.body(request, "m") == {
        "input_ids": [1, 2],
        "sampling_params": {
            "max_new_tokens": 9,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "min_new_tokens": 0,
            "sampling_seed": 3,
            "ignore_eos": True,
            "stop": [],
            "stop_token_ids": [4],
            "n": 1,
        },
        "stream": True,
    }
    assert wire.body(TokenRequest((1,), 1), "m")["sampling_params"]["top_k"] == -1  # no limit
    assert wire.body(TokenRequest((1,), 1, gaps=True), "m")["top_logprobs_num"] == 2


def test_tokens_of_cumulative_and_of_incremental_events() -> None:
    assert wire.read_event(event([7], 1)).token_ids == (7,)
    assert wire.read_event(event([7, 8, 9], 3), have=1).token_ids == (8, 9)
    assert wire.read_event(event([8, 9], 3), have=1).token_ids == (8, 9)
    assert wire.read_event(event([7, 8, 9], 3), have=3).token_ids == ()
    with pytest.raises(ValueError, match="4 tokens are counted, 1 had come, and the event has 2"):
        wire.read_event(event([8, 9], 4), have=1)
    with pytest.raises(ValueError, match="1 tokens are counted, 2 had come"):
        wire.read_event(event([8, 9], 1), have=2)


def test_the_last_event_has_counts_and_reason() -> None:
    last = wire.read_event(event([9], 3, finish_reason={"type": "stop", "matched": 9}, **COUNTS), have=2)
    assert (last.finish_reason, last.prompt_tokens, last.completion_tokens, last.cached_tokens) == ("stop", 5, 3, 2)
    assert last.speculation == Speculation(2, 14, 3, (0, 1, 1))
    assert wire.read_event(event([9], 3), have=2).speculation is None
    aborted = wire.read_event(event([], 0, finish_reason={"type": "abort", "message": "too long"}))
    assert aborted.error == "the server aborted the request: too long"
    assert wire.read_event({"error": {"message": "no", "code": 400}}).error == "no"


def test_gaps_of_the_new_tokens() -> None:
    rows = [[[-0.5, 1, None], [-1.5, 2, None]], [[-0.25, 3, None], [-1.0, 4, None]], [[-1.0, 5, None], [-1.5, 6, None]]]
    told = {"output_token_logprobs": [[-0.5, 1, None], [-1.0, 4, None], [-9.0, 8, None]], "output_top_logprobs": rows}
    assert wire.read_event(event([1, 4, 8], 3, **told)).gaps == (1.0, 0.75, None)
    assert wire.read_event(event([1, 4, 8], 3, **told), have=1).gaps == (0.75, None)
    assert wire.read_event(event([1], 1)).gaps == ()
