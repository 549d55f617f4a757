"""Figures of a comparison of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from reports.figures.predicted import MARK
from reports.figures.style import colour, headline, panels, powers_of_two, shared_legend

LINES = {
    "cost_optimal": ("#D55E00", "o", "-"),
    "cost_optimal_uncalibrated": ("#E69F00", "s", "--"),
    "caddtree": ("#0072B2", "^", "-"),
    "oracle": ("#444444", "", ":"),
}


def against_best(frame: pd.DataFrame, told: Mapping[str, Any], temperature: float) -> Figure:
    """Tokens/s of policies, oracle, chain and autoregressive decoding over the best single arm's, by batch size.

    A panel a group, all in the range of the data. 1 is the best of autoregressive decoding, chains and fixed trees,
    chosen in hindsight.
    """
    here = frame[frame["temperature"] == temperature]
    names = list(dict.fromkeys(here["group"]))
    columns = min(4, len(names))
    figure, axes = panels(columns, -(-len(names) // columns), width=3.4, height=2.9, sharey=True)
    for axis, name in zip(axes, names, strict=False):
        mine = here[here["group"] == name]
        single = mine[~mine["kind"].isin(["policy", "oracle"])].groupby("batch_size")["tokens_per_s"].max()
        for kind, label in (("autoregressive", "autoregressive"), ("chain", "best chain"), ("tree", "best fixed tree")):
            tops = mine[mine["kind"] == kind].groupby("batch_size")["tokens_per_s"].max() / single
            shade = colour({"chain": "dflash", "tree": "ddtree"}.get(kind, kind))
            axis.plot(list(tops.index), list(tops), color=shade, lw=1.2, alpha=0.7, label=label)
        for arm, (shade, mark, dash) in LINES.items():
            rates = mine[mine["arm"] == arm].set_index("batch_size")["tokens_per_s"] / single
            if len(rates):
                axis.plot(list(rates.index), list(rates), dash, marker=mark, ms=4, color=shade, label=arm)
        axis.axhspan(0.98, 1.0, color="#EEEEEE", zorder=0)
        axis.set_title(name)
        powers_of_two(axis, sorted({int(size) for size in mine["batch_size"]}))
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    for index, axis in enumerate(axes[: len(names)]):
        if index % columns == 0:
            axis.set_ylabel(f"{MARK}, of the best single arm")
        if index >= len(names) - columns:
            axis.set_xlabel("requests in flight")
    shared_legend(figure, axes, ncols=4)
    device = told["cost"]["fingerprint"].get("device")
    note = f"{told['model']} · {device} · T = {temperature:g} · rounds replayed, speeds {MARK} · grey: 2 %"
    headline(figure, f"{MARK}: budgets chosen at every step against the best single arm", note)
    return figure
