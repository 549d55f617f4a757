"""Which points to show: labels, scenarios, the best shape per batch size, one fixed shape per strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddbench.records import STRATEGIES
from reports.comparable import alike, peculiarities
from reports.frames import flag, records
from reports.names import short_names

RATE = "tokens_per_s_per_user"
RANK = "rank_tokens_per_s_per_user"  # the same on what all contenders measured: see reports.ranking
# Columns of a scenario that its title leaves out, and how it says them where they differ between scenarios of a run.
_TELLING = {
    "engine_version": "engine version {}",
    "host": "host {}",
    "target": "target {}",
    "target_revision": "target at {:.12}",
    "prompts_hash": "{}",
    "max_new_tokens": "limit {}",
    "top_p": "top_p {}",
    "top_k": "top_k {}",
    "seed": "seed {}",
}
# What tells arms of one strategy and shape apart, and how a label says it.
_EXTRA = {"force_spine": "spine", "min_log_prob": "min_log_prob={}", "cost": "cost {:.8}", "drafter": "{}"}
_DESCRIBED = ("model", "engine", "host", "gpu", "dataset", "max_new_tokens", "temperature")


@dataclass(frozen=True)
class Scenario:
    """All points that answer one question: same engine, model, workload, load and sampling; batch size and arm vary.

    ``name`` is short and unique in the run (a file name's prefix); ``title`` is for people.
    """

    name: str
    title: str
    frame: pd.DataFrame

    @property
    def batch_sizes(self) -> list[int]:
        return [int(size) for size in sorted(self.frame["batch_size"].unique())]

    @property
    def rate(self) -> float | None:
        """Requests that arrive a second in an open loop; None in a closed one."""
        return _rate(self.frame)

    @property
    def caveat(self) -> str:
        """What a caption says of an open loop, or of points from a recording; else empty."""
        if self.frame["replayed"].any():
            return " Replayed: computed from a recording, not run."
        if self.rate is None:
            return ""
        return (
            f" Open loop: requests arrived at random, {self.rate:g} a second; the batch size is a cap on requests in "
            "flight."
        )

    @property
    def fixed_length(self) -> bool:
        """Whether answers that may be ranked run past their end of text (``load.ignore_eos``)."""
        ranked = usable(self.frame)
        return any(bool(flag(flags, "ignore_eos")) for flags in (self.frame if ranked.empty else ranked)["flags"])

    def at(self, batch_size: int) -> pd.DataFrame:
        return self.frame[self.frame["batch_size"] == batch_size]


def scenarios(results: pd.DataFrame) -> list[Scenario]:
    """The scenarios of a run, in the order of the results, their points labelled (see :func:`labelled`)."""
    frame = labelled(results)
    groups = [group for _, group in frame.groupby("scenario", sort=False)]
    further = differences(frame)
    return [
        Scenario(_name(group, frame, len(groups)), f"{_title(group)}{further[group['scenario'].iloc[0]]}", group)
        for group in groups
    ]


def differences(frame: pd.DataFrame) -> dict[str, str]:
    """By scenario what tells it from others of the same title, as `` · limit 64 · seed 1``; empty where nothing need.

    ``frame`` holds all points of the run.
    """
    alike: dict[str, list[pd.DataFrame]] = {}
    for _, group in frame.groupby("scenario", sort=False):
        alike.setdefault(_title(group), []).append(group)
    found = {}
    for groups in alike.values():
        telling = [name for name in _TELLING if len({_value(group, name) for group in groups}) > 1]
        for group in groups:
            said = [_TELLING[name].format(_value(group, name)) for name in telling]
            found[str(group["scenario"].iloc[0])] = "".join(f" · {text}" for text in said)
    return found


def why_none(frame: pd.DataFrame) -> str:
    """Why no point of ``frame`` can be named fastest, as the end of a sentence."""
    done = frame[frame["status"] == "ok"]
    if done.empty:
        return "no point finished with status ok"
    if done["replayed"].all():
        return "all points were replayed from a recording, which has counts and no clock: nothing is ranked by speed"
    if (done["output_tokens"] <= done["requests"]).all():
        return "all answers ended with their first token: nothing was decoded, so there is no speed"
    return "no point of status ok has a decode speed"


def labelled(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` with a column ``label``: strategy and shape, and what else tells arms of one strategy apart."""
    frame = results.copy()
    labels = [_shape(row) for row in records(frame)]
    drafters = short_names(sorted(frame["drafter"].dropna().unique())) | results.attrs.get("drafters", {})
    for extra, text in _EXTRA.items():
        own = extra == "cost"  # fixed trees have none: it tells policies from each other alone
        varies = frame.groupby(["scenario", "strategy"], sort=False)[extra].transform(
            lambda values, own=own: values.nunique(dropna=own) > 1
        )
        for i, (value, shown) in enumerate(zip(frame[extra], varies, strict=True)):
            if shown and not pd.isna(value) and value is not False:
                labels[i] += " " + text.format(drafters.get(value, value))
    own = [_own(row) for row in records(frame)]
    frame["label"] = [
        f"{label}{mark}{more}" for label, mark, more in zip(labels, own, peculiarities(frame), strict=True)
    ]
    return frame


def usable(frame: pd.DataFrame) -> pd.DataFrame:
    """Points that may win: status ok, a decode rate, and the settings that the others of the scenario have.

    ``frame`` must hold all points of a scenario and batch size: what most of them share is known from them all.
    """
    return frame[(frame["status"] == "ok") & frame[RATE].notna() & np.array(alike(frame), dtype=bool)]


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The fastest usable point of each strategy at each batch size, chosen in hindsight; fastest first in a batch."""
    candidates = usable(frame)
    keys = pd.DataFrame({"batch_size": candidates["batch_size"], RANK: -ranks(candidates)})
    order = keys.sort_values(["batch_size", RANK], kind="stable").index
    return candidates.loc[order].drop_duplicates(["batch_size", "strategy"])


def ranks(frame: pd.DataFrame) -> pd.Series[float]:
    """The rate that each point is ranked by: on what all contenders measured; its own in a frame that has no such."""
    return frame[RATE] if RANK not in frame else frame[RANK].fillna(frame[RATE])


def fixed(frame: pd.DataFrame) -> pd.DataFrame:
    """All points of one shape per strategy: the one with the highest geometric mean of decode rate over batch sizes.

    Only shapes measured at as many batch sizes as any other of the strategy are candidates. In hindsight too, but one
    choice for all batch sizes.
    """
    candidates = usable(frame)
    chosen = []
    for strategy in ordered_strategies(candidates):
        mine = candidates[candidates["strategy"] == strategy]
        logs = np.log(ranks(mine).to_numpy(dtype=float))
        scores = pd.Series(logs, index=mine["label"]).groupby(level=0, sort=True).agg(["size", "mean"])
        label = scores.sort_values(["size", "mean"], ascending=False, kind="stable").index[0]
        chosen.append(mine[mine["label"] == label].sort_values("batch_size"))
    return pd.concat(chosen) if chosen else candidates


def ordered_strategies(frame: pd.DataFrame) -> list[str]:
    """Strategies present, in the order of the report; unknown ones last."""
    present = [str(name) for name in frame["strategy"].unique()]
    return [name for name in STRATEGIES if name in present] + sorted(set(present) - set(STRATEGIES))


def number(value: object, missing: str = "∞") -> str:
    """An axis value for people: the integer, or for null an infinity sign (width) or what ``missing`` says."""
    return missing if value is None or value is pd.NA else str(value)


def _own(row: dict[str, Any]) -> str:
    """Marks an arm that leaves runner, attention and scheduling to the engine, and one of a server of somebody else.

    These are ``engine.default_arms`` and ``engine.url``. Also one that was computed from a recording, and the trees of
    a branch of the engine (``engine.branch``).
    """
    if row.get("strategy") == "ddtree" and flag(row.get("flags"), "branch"):
        return f" (rival: {flag(row.get('flags'), 'branch')})"
    if flag(row.get("flags"), "replayed"):
        return " (replayed)"
    if flag(row.get("flags"), "attached"):
        return " (attached)"
    return " (engine's defaults)" if flag(row.get("flags"), "model_runner") == "default" else ""


def _rate(group: pd.DataFrame) -> float | None:
    rate = flag(group["flags"].iloc[0], "request_rate")
    return None if rate is None else float(rate)


def _shape(row: dict[str, Any]) -> str:
    strategy = str(row["strategy"])
    if strategy == "autoregressive":
        return strategy
    if strategy == "dflash":
        return f"dflash d{number(row['depth'], 'max')}"
    if row["policy"] is not None:
        return f"{strategy} {row['policy']} d{number(row['depth'], 'max')} n<={number(row['nodes'], '?')}"
    return f"{strategy} w{number(row['width'])} d{number(row['depth'], 'max')} n{number(row['nodes'], '?')}"


def _title(group: pd.DataFrame) -> str:
    row = {name: group[name].dropna().iloc[0] if group[name].notna().any() else None for name in _DESCRIBED}
    where = row["gpu"] or f"{row['host']}, no GPU"
    rate = _rate(group)
    load = "" if rate is None else f" · open loop, {rate:g} requests/s"
    return f"{row['model']} · engine {row['engine']} · {where} · {row['dataset']} · T = {row['temperature']:g}{load}"


def _value(group: pd.DataFrame, name: str) -> str:
    value = group[name].dropna().iloc[0] if group[name].notna().any() else None
    if name != "prompts_hash":
        return f"{value:g}" if isinstance(value, float) else str(value)
    counts = group["prompts"].dropna()
    count = f"{int(counts.max())} prompts " if len(counts) else "prompts "
    return f"{count}with hash {str(value)[:8]}"


def _name(group: pd.DataFrame, frame: pd.DataFrame, count: int) -> str:
    if count == 1:
        return ""
    first = group.iloc[0]
    parts = [str(first[name]) for name in ("engine", "model", "dataset", "host") if frame[name].nunique() > 1]
    parts += [f"t{first['temperature']:g}"] if frame["temperature"].nunique() > 1 else []
    rate = _rate(group)
    parts += [f"r{rate:g}"] if rate is not None else []
    return "-".join([*parts, str(first["scenario"])])
