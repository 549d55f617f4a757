"""Degenerate output: an arm that loops, stops early or never stops drafts easily and looks fast.

An arm stuck on one token has the highest acceptance of all and every request ends well, so neither counts nor errors
show it; its text does. Small models loop by themselves on some prompts, hence an arm is judged by the prompts on which
it is worse than autoregressive decoding was on the same ones, and only an arm that loops nearly everywhere is judged
by itself. Nothing is said where there is too little text.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from reports import baselines

if TYPE_CHECKING:
    from reports.points import Point

NGRAM = 4
LEAST_TOKENS = 8  # of a request whose repetition is judged
LOOP_SHARE = 0.5  # a request loops if at most this share of its 4-grams are distinct
LOOPS_EVERYWHERE = 0.9  # share of looping requests at which an arm is suspect whatever the baseline does
MORE_LOOPS = 0.25  # looping requests beyond the baseline's share
MORE_COMPRESSION = 1.5  # compression ratio against the baseline's
LENGTH_RANGE = (0.5, 2.0)  # total output tokens against the baseline's
FEWER_STOPS = 0.5  # share of natural stops below the baseline's
SIGN_P = 0.01  # one-sided sign test over prompts
LEAST_PROMPTS = 3  # all of which must be worse where they are too few for the test


@dataclass(frozen=True)
class Text:
    """Repetition in one output. ``raw_bytes`` are its token ids as 32-bit integers, ``packed_bytes`` those by zlib."""

    ngrams: int
    distinct: int
    raw_bytes: int
    packed_bytes: int

    @property
    def loops(self) -> bool | None:
        """Whether it repeats itself; None where it is too short to tell."""
        if self.ngrams < LEAST_TOKENS - NGRAM + 1:
            return None
        return self.distinct <= LOOP_SHARE * self.ngrams


def judged(points: list[Point]) -> list[Point]:
    """The points with the columns of :func:`degeneracy`; one whose text is degenerate is suspect, and says why."""
    return [_judged(point, points) if point.measured else point for point in points]


def _judged(point: Point, points: list[Point]) -> Point:
    row = point.row | degeneracy(point, baselines.find(point, points, "autoregressive")[0])
    if row["degenerate_reason"] is not None:
        told = f"degenerate output: {row['degenerate_reason']}"
        row["reason"] = "; ".join(filter(None, (row["reason"], told)))
        row["status"] = "suspect" if row["status"] == "ok" else row["status"]
    return replace(point, row=row)


def degeneracy(point: Point, baseline: Point | None) -> dict[str, Any]:
    """The columns of ``results.parquet`` about an arm's text; ``degenerate_reason`` None where nothing is wrong.

    ``distinct_4gram_share``: distinct 4-grams of token ids over all, within a request, summed over requests.
    ``compression_ratio``: bytes of the token ids over the same compressed by zlib, requests apart.
    ``length_ratio_vs_autoregressive``: output tokens over the baseline's, each the mean a prompt, on shared prompts.
    ``finish_stop_share``: requests that ended by themselves rather than at the token limit.
    """
    if not point.measured:
        return {}
    own = features(point.requests)
    row: dict[str, Any] = {
        "distinct_4gram_share": _over(own["distinct"], own["ngrams"]),
        "compression_ratio": _over(own["raw_bytes"], own["packed_bytes"]),
        "length_ratio_vs_autoregressive": None,
        "finish_stop_share": _mean(own["stopped"]),
    }
    reasons = _everywhere(own["loops"])
    if baseline is not None and baseline is not point:
        ours, theirs = _by_prompt(own).align(_by_prompt(features(baseline.requests)), join="inner", axis=0)
        row["length_ratio_vs_autoregressive"] = _over(ours["tokens"], theirs["tokens"])
        reasons += _against(ours, theirs)
    return row | {"degenerate_reason": "; ".join(reasons) or None}


def features(requests: pd.DataFrame) -> pd.DataFrame:
    """One row a request: prompt_id, tokens, stopped (0 or 1), loops (1, 0 or NaN), and the sums of :class:`Text`."""
    texts = [_text(_packed(ids)) for ids in requests["output_token_ids"]]
    columns = {name: [getattr(text, name) for text in texts] for name in Text.__dataclass_fields__}
    return pd.DataFrame(
        {
            "prompt_id": requests["prompt_id"].to_numpy(),
            "tokens": requests["output_tokens"].to_numpy(dtype=np.float64),
            "stopped": (requests["finish_reason"] == "stop").to_numpy(dtype=np.float64, na_value=np.nan),
            "loops": [np.nan if text.loops is None else float(text.loops) for text in texts],
            **columns,
        }
    )


def systematic(worse: int, better: int, prompts: int) -> bool:
    """Whether prompts got worse too often for chance: one-sided sign test, or all of a few."""
    if worse == prompts:
        return prompts >= LEAST_PROMPTS
    changed = worse + better
    return changed > 0 and float(binomtest(worse, changed, 0.5, alternative="greater").pvalue) <= SIGN_P


def _everywhere(loops: pd.Series[float]) -> list[str]:
    judged = loops.dropna()
    if len(judged) < LEAST_PROMPTS or judged.mean() < LOOPS_EVERYWHERE:
        return []
    return [f"{int(judged.sum())} of {len(judged)} requests repeat themselves"]


def _against(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[str]:
    """What is wrong with an arm beside the baseline, both by prompt and on the same prompts."""
    judged = ours["loops"].notna() & theirs["loops"].notna()
    text, base = ours[judged], theirs[judged]
    found = (_loops(text, base), _compresses(text, base), _length(ours, theirs), _stops(ours, theirs))
    return [reason for reason in found if reason is not None]


def _loops(ours: pd.DataFrame, theirs: pd.DataFrame) -> str | None:
    share, base = ours["loops"].mean(), theirs["loops"].mean()
    if not share - base >= MORE_LOOPS or not _more(ours["loops"] - theirs["loops"]):
        return None
    return f"{share:.0%} of requests repeat themselves, {base:.0%} of the autoregressive arm's"


def _compresses(ours: pd.DataFrame, theirs: pd.DataFrame) -> str | None:
    ratio, base = (_over(frame["raw_bytes"], frame["packed_bytes"]) for frame in (ours, theirs))
    if ratio is None or base is None or ratio < MORE_COMPRESSION * base:
        return None
    change = np.log(_compression(ours) / _compression(theirs))
    if not _more(change, float(np.log(MORE_COMPRESSION))):
        return None
    return f"its text compresses to 1/{ratio:.1f}, the autoregressive arm's to 1/{base:.1f}"


def _length(ours: pd.DataFrame, theirs: pd.DataFrame) -> str | None:
    ratio = _over(ours["tokens"], theirs["tokens"])
    if ratio is None or LENGTH_RANGE[0] <= ratio <= LENGTH_RANGE[1]:
        return None
    change = np.log(ours["tokens"].clip(lower=1) / theirs["tokens"].clip(lower=1))
    margin = float(np.log(LENGTH_RANGE[1]))
    if not _more(change if ratio > 1 else -change, margin):
        return None
    return f"its outputs are {ratio:.2f} times as long as the autoregressive arm's"


def _stops(ours: pd.DataFrame, theirs: pd.DataFrame) -> str | None:
    share, base = ours["stopped"].mean(), theirs["stopped"].mean()
    if not base - share >= FEWER_STOPS or not _more(theirs["stopped"] - ours["stopped"]):
        return None
    return f"{share:.0%} of requests end by themselves, {base:.0%} of the autoregressive arm's"


def _more(change: Any, margin: float = 0.0) -> bool:
    """Whether ``change`` exceeds ``margin`` on systematically more prompts than it falls below its negative."""
    return systematic(int((change > margin).sum()), int((change < -margin).sum()), len(change))


def _compression(frame: pd.DataFrame) -> pd.Series[float]:
    return frame["raw_bytes"] / frame["packed_bytes"]


def _by_prompt(frame: pd.DataFrame) -> pd.DataFrame:
    """Means a prompt over its turns, repeats and blocks."""
    return frame.groupby("prompt_id", sort=True).mean()


def _mean(values: pd.Series[float]) -> float | None:
    """Mean of the values that are known."""
    return float(values.mean()) if values.notna().any() else None


def _over(top: pd.Series[Any], bottom: pd.Series[Any]) -> float | None:
    total = float(bottom.sum())
    return float(top.sum()) / total if total > 0 else None


def _packed(ids: Any) -> bytes:
    return np.asarray([] if ids is None else ids, dtype="<i4").tobytes()


@lru_cache(maxsize=4096)  # arms that are lossless repeat one another's outputs
def _text(raw: bytes) -> Text:
    ids = np.frombuffer(raw, dtype="<i4").tolist()
    grams = list(zip(*(ids[start:] for start in range(NGRAM)), strict=False))
    return Text(len(grams), len(set(grams)), len(raw), len(zlib.compress(raw, 6)))
