"""What the replay shard makes of differences, and what the evidence file says of them; an engine that only scores."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from ddbench.plugins.sglang.dumps import Layout
from ddbench.replay import Trace, TraceSet
from ddbench.replay.engine import Live
from ddbench.replay.trace import Key
from experiments.sglang_evidence.fleet import Engine
from experiments.sglang_evidence.identity import Judge
from experiments.sglang_evidence.merge_checks import replayed
from experiments.sglang_evidence.replay import ties

PROMPTS = [[1, 2], [3, 4]]
NONE = np.empty(0, dtype=Layout(2, 4).record)


class Scorer:
    """Gives the second token of each pair a log-probability that is lower by ``gap``, and keeps what it was asked."""

    def __init__(self, gap: float) -> None:
        self.gap, self.asked = gap, list[tuple[list[int], list[int]]]()

    def ask(self, *, verb: str, prefixes: list[list[int]], pairs: list[list[int]]) -> dict[str, Any]:
        assert verb == "gaps"
        self.asked += zip(prefixes, pairs, strict=True)
        return {"logprobs": [[-1.0, -1.0 - self.gap] for _ in pairs]}


def traces() -> TraceSet:
    outputs, tail = ([5, 6, 7], [5, 6, 8]), np.array([11, 12], dtype=np.int32)
    scores, ranks = np.zeros((2, 2, 4), dtype=np.float32), np.zeros((2, 2), dtype=np.int64)
    return TraceSet.of(
        Trace(Key(str(place), 0, "", "", 0, 0, 0.0), 2, "length", None, scores, ranks, np.array(output), tail)
        for place, output in enumerate(outputs)
    )


@pytest.mark.parametrize(("gap", "beyond"), [(0.25, 0), (1.5, 1)])
def test_other_texts_are_ties_or_not_in_outputs_and_behind_them(gap: float, beyond: int) -> None:
    """The second request parts in its output; the first one behind it, where the recording has 12 after 5 6 7 11."""
    engine = Scorer(gap)
    odd = {"prompt_id": "0", "another_text": True, "parts_at": 4, "live_word": 9, "recorded_word": 12}
    rounds = [
        {**odd, "live": 2, "by_own_scores": 3},
        {**odd, "live": 4, "by_own_scores": 3},  # went further: where it parted is not known
        {**odd, "live": 2, "by_own_scores": 3, "another_text": False},
    ]
    lives = [Live((5, 6, 7), NONE), Live((5, 9, 8), NONE)]
    found = ties(Judge(cast(Engine, engine), "bfloat16"), PROMPTS, traces(), lives, rounds)
    ledger = {"differences": 1, "widest_gap_logits": gap, "unexplained": beyond}
    assert found == {"other_texts": {"share": 0.5, **ledger}, "behind_end": {"share": 0.0, **ledger}}
    assert engine.asked == [([3, 4, 5], [6, 9]), ([1, 2, 5, 6, 7, 11], [12, 9])]
    assert ties(None, PROMPTS, traces(), lives, rounds) == {}


def shard(**changed: Any) -> dict[str, Any]:
    ledger = {"share": 0.9, "differences": 3, "widest_gap_logits": 0.25, "unexplained": 0}
    row = {"nodes": 15, "rounds": 40, "differing": 2, "explained": 2, "other_texts": ledger, "differences": [{}]}
    counts = {"unexplained": 0, "rounds_compared": 40, "rounds_by_own_scores": 39}
    return {"failed": {}, "skipped": [], "text": ledger, "shapes": [row], **counts} | changed


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rounds_with_another_text_behind_end": 1}, True),
        ({"rounds_with_another_text_behind_end": 0}, False),  # a round that nothing explains, in no difference
        ({"rounds_with_another_text_behind_end": 1, "unexplained": 2}, False),
        ({"rounds_with_another_text_behind_end": 1, "text": {"unexplained": 1}}, False),
        ({"rounds_with_another_text_behind_end": 1, "text": None}, None),
        ({"rounds_with_another_text_behind_end": 1, "skipped": ["a shape"]}, None),
        ({"rounds_with_another_text_behind_end": 1, "failed": {"a shape": "rounds are missing"}}, None),
        ({"rounds_with_another_text_behind_end": 1, "shapes": [{"rounds": 40}]}, None),  # nobody judged its texts
        ({}, None),  # of earlier code, which does not tell
        ({"unexplained": 2}, False),
    ],
)
def test_the_evidence_claims_an_explanation_only_where_all_is_explained(changed: dict[str, Any], says: Any) -> None:
    told = replayed({"replay": shard(**changed), "stress": {}})
    assert told is not None
    assert told["replay"]["all_explained"] is says
    assert "shapes" not in told["replay"]
    assert told["replay"]["by_shape"][0]["rounds"] == 40
    assert "differences" not in told["replay"]["by_shape"][0]
