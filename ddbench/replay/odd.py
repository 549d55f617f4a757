"""Rounds whose length does not follow from the drafter's scores that the engine had in them: was it the words?

A round accepts what its tree holds of the text that the target says. The output is the recorded one, word for word, but
a request's last round looks beyond it, at up to depth - 1 words that no output has. The recording asked for them in
another request; where the target's two best words are as good as equal there, as they often are in bfloat16, the live
round may have gone another way. Engines run a round behind the end, whose root is the live run's own word: if it is
another than the recorded one, that is shown. Nothing else makes a length that the scores do not give, so that an odd
round without it is a fault of the tree, of the walk or of what was written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.replay.trace import Trace

Rows = NDArray[Any]


def odd_round(trace: Trace, rounds: Rows, row: Rows, own: int) -> dict[str, Any]:
    """What is known of a round that accepted another length than ``own``, what the engine's scores in it give.

    ``parts_at``: place in the text of the word that decided, counted from the output's first token. ``behind_end``: it
    lies behind the output's end. ``live_word``: the word that the live round ended with, by the round after it, and
    ``recorded_word`` at the same place; null where not known. ``another_text``: both are known and differ, behind the
    end: the target went another way there. ``ranks``, ``recorded`` and ``live_scores``: of the recorded text's words up
    to the one that decided, their places among the recorded candidates (-1: none), and both log-probabilities (null:
    not among the candidates).

    Args:
        rounds: all that were written of the request, those behind its end with them.
        row: one of them.
    """
    anchor, length = int(row["position"]) - trace.prompt_tokens, int(row["taken"]) - 1
    text = [int(word) for word in (*trace.output, *trace.tail)]
    parts_at, ends_at = anchor + min(own, length) + 1, anchor + length + 1
    after = rounds["root"][rounds["position"] == trace.prompt_tokens + ends_at]
    live_word = int(after[0]) if len(after) else None
    recorded_word = text[ends_at] if ends_at < len(text) else None
    behind = parts_at >= len(trace.output)
    levels = min(parts_at, len(text) - 1) - anchor
    ranks = [int(rank) for rank in trace.ranks[anchor, :levels]]
    return {
        "prompt_id": trace.key.prompt_id,
        "output_tokens": len(trace.output),
        "finish_reason": trace.finish_reason,
        "anchor": anchor,
        "live": length,
        "by_own_scores": own,
        "parts_at": parts_at,
        "behind_end": behind,
        "live_word": live_word,
        "recorded_word": recorded_word,
        "another_text": behind and None not in (live_word, recorded_word) and live_word != recorded_word,
        "ranks": ranks,
        "recorded": [
            float(trace.log_probs[anchor, level, rank]) if rank >= 0 else None for level, rank in enumerate(ranks)
        ],
        "live_scores": [
            _score(row, level, word) for level, word in enumerate(text[anchor + 1 : anchor + 1 + len(ranks)])
        ],
    }


def _score(row: Rows, level: int, word: int) -> float | None:
    found = np.flatnonzero(row["ids"][level] == word)
    return float(row["log_probs"][level, found[0]]) if len(found) else None
