from __future__ import annotations

from dataclasses import replace

import pytest
from completions_made import completion, counters

from runners.base import EngineFailure
from runners.counts import SpecCounters
from runners.judge import Expected, judge
from runners.vllm import plugin_log
from runners.vllm.counts import tally

ROUNDS = [[0, 3, 7], [2, 2]]
TRUTH = counters(ROUNDS, 7)
DONE = [completion(each, drafted=7) for each in ROUNDS]
TALLY = tally(DONE, 7, TRUTH)


def test_counts_that_agree_are_ok() -> None:
    assert judge(Expected(7), DONE, TALLY, TRUTH) == ("ok", None)


def test_a_request_that_failed_fails_the_cell() -> None:
    broken = [DONE[0], replace(DONE[1], error="HTTP 500")]
    assert judge(Expected(7), broken, TALLY, TRUTH) == ("failed", "1 of 2 requests failed: HTTP 500")


def test_no_drafts_fail_a_speculative_arm_and_drafts_an_autoregressive_one() -> None:
    plain = [completion([0, 0])]
    assert judge(Expected(7), plain, tally(plain, 7, SpecCounters()), SpecCounters())[0] == "failed"
    assert judge(Expected(0), plain, tally(plain, 0, SpecCounters()), SpecCounters()) == ("ok", None)
    assert judge(Expected(0), DONE, tally(DONE, 0, TRUTH), TRUTH)[0] == "failed"
    single = [completion([])]
    assert judge(Expected(7), single, tally(single, 7, SpecCounters()), SpecCounters()) == ("ok", None)


def test_disagreement_is_suspect_with_the_numbers() -> None:
    status, reason = judge(Expected(7), DONE, TALLY, replace(TRUTH, accepted=99))
    assert status == "suspect"
    assert "accepted 14 by request, 99 counted" in (reason or "")
    status, reason = judge(Expected(9), DONE, TALLY, TRUTH)
    assert (status, reason) == ("suspect", "35 tokens drafted in 5 rounds, not 9 a round")
    assert judge(Expected(9, fewer=True), DONE, TALLY, TRUTH) == ("ok", None)


def test_another_shape_than_the_arms_fails() -> None:
    more = "35 tokens drafted in 5 rounds, not 6 a round: the server runs another shape"
    for fewer in (False, True):
        assert judge(Expected(6, fewer), DONE, TALLY, TRUTH) == ("failed", more)
    assert judge(Expected(11), DONE, TALLY, TRUTH)[0] == "suspect"  # 20 missing: less than a draft of each request
    assert judge(Expected(12), DONE, TALLY, TRUTH)[0] == "failed"  # 25 missing
    assert judge(Expected(12, fewer=True), DONE, TALLY, TRUTH) == ("ok", None)


def test_the_plug_in_must_have_registered() -> None:
    plugin_log.check("(Worker pid=1) ddbench: DDTree plug-in for vLLM 0.32.0 registered: nodes 7\n")
    with pytest.raises(EngineFailure, match="did not register"):
        plugin_log.check("Application startup complete.\n")
    log = "Refused: ddbench: DDTree plug-in refused: pipeline parallel: one stage only\n"
    assert plugin_log.refusal(log) == "the DDTree plug-in refused: pipeline parallel: one stage only"
    assert plugin_log.refusal("all is well") is None
