"""Degenerate output: an arm that loops, stops early or never stops drafts easily and looks fast.

An arm stuck on one token has the highest acceptance of all and every request ends well, so neither counts nor errors
show it; its text does. Small models loop by themselves on some prompts, hence an arm is judged by the prompts on which
it is worse than autoregressive decoding was on the same ones, and only an arm that loops nearly everywhere is judged
by itself. Without an autoregressive arm the others stand in for it; and where most speculative arms agree with one
another against it, the fault is its own. Nothing is said where there is too little text, nor of random weights: those
loop under every arm, and what such a run is for is the time of a round.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from reports import baselines
from reports.guards.random_weights import has_random_weights

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
LEAST_OTHERS = 2  # arms that stand for a baseline where there is none, or against it
LEAST_PROMPTS = 3  # all of which must be worse where they are too few for the test


@dataclass(frozen=True)
class Reference:
    """What an arm's text is held against: ``text`` has a row a prompt. ``name`` and ``whose`` are words for people.

    ``autoregressive``: the same of the autoregressive arm, where the point has one.
    """

    name: str
    whose: str
    text: pd.DataFrame
    autoregressive: pd.DataFrame | None = None


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
    """The points with the columns of :func:`verdict`; one whose text is degenerate is suspect, and says why."""
    texts = {str(point.row["point_id"]): features(point.requests) for point in points if point.measured}
    beside = references(points, {name: _by_prompt(text) for name, text in texts.items()})
    return [
        _judged(point, texts[name], beside.get(name)) if (name := str(point.row["point_id"])) in texts else point
        for point in points
    ]


def _judged(point: Point, own: pd.DataFrame, beside: Reference | None) -> Point:
    row = point.row | verdict(own, beside)
    if has_random_weights(row["flags"]):
        row["degenerate_reason"] = None
    if row["degenerate_reason"] is not None:
        told = f"degenerate output: {row['degenerate_reason']}"
        row["reason"] = "; ".join(filter(None, (row["reason"], told)))
        row["status"] = "suspect" if row["status"] == "ok" else row["status"]
    return replace(point, row=row)


def degeneracy(point: Point, baseline: Point | None) -> dict[str, Any]:
    """:func:`verdict` of a measured point beside an autoregressive arm; beside itself there is nothing to compare."""
    if not point.measured:
        return {}
    theirs = None if baseline is None or baseline is point else _by_prompt(features(baseline.requests))
    beside = None if theirs is None else Reference("autoregressive", "the autoregressive arm's", theirs, theirs)
    return verdict(features(point.requests), beside)


def verdict(own: pd.DataFrame, beside: Reference | None) -> dict[str, Any]:
    """The columns of ``results.parquet`` about an arm's text; ``degenerate_reason`` None where nothing is wrong.

    ``own``: its :func:`features`. ``beside``: what it is held against, None where there is nothing.

    ``distinct_4gram_share``: distinct 4-grams of token ids over all, within a request, summed over requests.
    ``compression_ratio``: bytes of the token ids over the same compressed by zlib, requests apart.
    ``length_ratio_vs_autoregressive``: output tokens over the baseline's, each the mean a prompt, on shared prompts.
    ``finish_stop_share``: requests that ended by themselves rather than at the token limit.
    ``degeneracy_baseline``: in words, what the arm was held against; null where by itself alone.
    """
    row: dict[str, Any] = {
        "distinct_4gram_share": _over(own["distinct"], own["ngrams"]),
        "compression_ratio": _over(own["raw_bytes"], own["packed_bytes"]),
        "length_ratio_vs_autoregressive": None,
        "finish_stop_share": _mean(own["stopped"]),
        "degeneracy_baseline": None if beside is None else beside.name,
    }
    reasons = _everywhere(own["loops"])
    if beside is not None:
        if beside.autoregressive is not None:
            ours, theirs = _by_prompt(own).align(beside.autoregressive, join="inner", axis=0)
            row["length_ratio_vs_autoregressive"] = _over(ours["tokens"], theirs["tokens"])
        reasons += _against(_by_prompt(own), beside.text, beside.whose)
    return row | {"degenerate_reason": "; ".join(reasons) or None}


def references(points: list[Point], texts: Mapping[str, pd.DataFrame]) -> dict[str, Reference]:
    """By point, what its text is held against; ``texts`` are means a prompt of the features of all measured points.

    The autoregressive arm of the point. Without one, the other arms of equal settings, if there are two or more. The
    autoregressive arm itself is held against the speculative ones only where it stands alone, see :func:`_outvoted`;
    then so are they.
    """
    found: dict[str, Reference] = {}
    followers: dict[str, list[str]] = {}
    alone: dict[tuple[Any, ...], list[str]] = {}
    for point in points:
        name = str(point.row["point_id"])
        if name not in texts:
            continue
        baseline = baselines.find(point, points, "autoregressive")[0]
        if baseline is None:
            alone.setdefault(tuple(point.row[key] for key in ("scenario", "batch_size", "fingerprint")), []).append(
                name
            )
        elif baseline is not point:
            plain = str(baseline.row["point_id"])
            followers.setdefault(plain, []).append(name)
            found[name] = Reference("autoregressive", "the autoregressive arm's", texts[plain], texts[plain])
    for group in alone.values():
        others = {name: [texts[other] for other in group if other != name] for name in group}
        found |= {
            name: Reference(f"{len(rest)} other arms", "the other arms'", together(rest))
            for name, rest in others.items()
            if len(rest) >= LEAST_OTHERS
        }
    for plain, group in followers.items():
        agreeing = _outvoted(texts[plain], {name: texts[name] for name in group})
        if agreeing:
            text = together([texts[name] for name in agreeing])
            name = f"{len(agreeing)} speculative arms that agree"
            found[plain] = Reference(name, "the speculative arms'", text)
            found |= {each: Reference(name, "the other arms'", text, texts[plain]) for each in group}
    return found


def _outvoted(plain: pd.DataFrame, group: Mapping[str, pd.DataFrame]) -> list[str]:
    """The speculative arms that agree with one another against the autoregressive arm; empty where it is not the fault.

    An arm that differs from it in more than its length, or loops, or differs from the others, is no witness; more than
    half of the arms, and two at least, must be.
    """
    if len(group) < LEAST_OTHERS or not _against(plain, together(list(group.values())), ""):
        return []
    witnesses = [name for name in group if _is_witness(name, plain, group)]
    if len(witnesses) < LEAST_OTHERS or 2 * len(witnesses) <= len(group):
        return []
    return witnesses if _against(plain, together([group[name] for name in witnesses]), "") else []


def _is_witness(name: str, plain: pd.DataFrame, group: Mapping[str, pd.DataFrame]) -> bool:
    mine, others = group[name], together([text for other, text in group.items() if other != name])
    length = _length(*mine.align(plain, join="inner", axis=0), "")
    beyond = [reason for reason in _against(mine, plain, "") if reason != length]
    return not beyond and not _everywhere(mine["loops"]) and not _against(mine, others, "")


def together(texts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several arms as one: by prompt the median of lengths and sizes, the mean of the shares (loops, stopped)."""
    grouped = pd.concat(texts).groupby(level=0, sort=True)
    shares = ["loops", "stopped"]
    return grouped.median().assign(**{name: grouped[name].mean() for name in shares})


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


def _against(mine: pd.DataFrame, its: pd.DataFrame, whose: str) -> list[str]:
    """What is wrong with an arm beside another, both by prompt, on the prompts of both; ``whose`` names the other."""
    ours, theirs = mine.align(its, join="inner", axis=0)
    judged = ours["loops"].notna() & theirs["loops"].notna()
    text, base = ours[judged], theirs[judged]
    found = (
        _loops(text, base, whose),
        _compresses(text, base, whose),
        _length(ours, theirs, whose),
        _stops(ours, theirs, whose),
    )
    return [reason for reason in found if reason is not None]


def _loops(ours: pd.DataFrame, theirs: pd.DataFrame, whose: str) -> str | None:
    share, base = ours["loops"].mean(), theirs["loops"].mean()
    if not share - base >= MORE_LOOPS or not _more(ours["loops"] - theirs["loops"]):
        return None
    return f"{share:.0%} of requests repeat themselves, {base:.0%} of {whose}"


def _compresses(ours: pd.DataFrame, theirs: pd.DataFrame, whose: str) -> str | None:
    ratio, base = (_over(frame["raw_bytes"], frame["packed_bytes"]) for frame in (ours, theirs))
    if ratio is None or base is None or ratio < MORE_COMPRESSION * base:
        return None
    change = np.log(_compression(ours) / _compression(theirs))
    if not _more(change, float(np.log(MORE_COMPRESSION))):
        return None
    return f"its text compresses to 1/{ratio:.1f}, {whose} to 1/{base:.1f}"


def _length(ours: pd.DataFrame, theirs: pd.DataFrame, whose: str) -> str | None:
    ratio = _over(ours["tokens"], theirs["tokens"])
    if ratio is None or LENGTH_RANGE[0] <= ratio <= LENGTH_RANGE[1]:
        return None
    change = np.log(ours["tokens"].clip(lower=1) / theirs["tokens"].clip(lower=1))
    margin = float(np.log(LENGTH_RANGE[1]))
    if not _more(change if ratio > 1 else -change, margin):
        return None
    return f"its outputs are {ratio:.2f} times as long as {whose}"


def _stops(ours: pd.DataFrame, theirs: pd.DataFrame, whose: str) -> str | None:
    share, base = ours["stopped"].mean(), theirs["stopped"].mean()
    if not base - share >= FEWER_STOPS or not _more(theirs["stopped"] - ours["stopped"]):
        return None
    return f"{share:.0%} of requests end by themselves, {base:.0%} of {whose}"


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
    packed = len(zlib.compress(raw, 6)) if raw else 0  # no token ids, or none stored: there is no ratio
    return Text(len(grams), len(set(grams)), len(raw), packed)
