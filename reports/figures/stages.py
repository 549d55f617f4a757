"""Where the time of a round goes: draft, build, verify, commit, and what no stage clock covers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from reports.choose import Scenario, fixed
from reports.columns import STAGES
from reports.figures.style import Drawing, floats, headline, panels, prompts, shared_legend

# Okabe-Ito again, in an order that stays apart in grey print; hatches for the two lightest.
PARTS = {
    "draft": ("#E69F00", ""),
    "build": ("#CC79A7", ""),
    "verify": ("#0072B2", ""),
    "commit": ("#56B4E9", "//"),
    "other": ("#D0D0D0", ".."),
}


def split(frame: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds a round by part, one row a point; ``other`` is round time less the stages, at least 0."""
    parts = pd.DataFrame({stage: floats(frame[f"{stage}_ms"]) for stage in STAGES}, index=frame.index).fillna(0.0)
    parts["other"] = np.maximum(floats(frame["step_ms"]) - parts.sum(axis=1).to_numpy(), 0.0)
    return parts


def round_time_split(scenario: Scenario) -> Drawing | None:
    """A panel a batch size, a stacked bar a strategy (its fixed shape)."""
    frame = fixed(scenario.frame)
    frame = frame[frame["step_ms"].notna()]
    if frame.empty or frame[[f"{stage}_ms" for stage in STAGES]].isna().all().all():
        return None
    sizes = [size for size in scenario.batch_sizes if (frame["batch_size"] == size).any()]
    columns = min(len(sizes), 2)
    figure, axes = panels(columns, -(-len(sizes) // columns), width=5.6, height=2.3)
    for index, (axis, size) in enumerate(zip(axes, sizes, strict=False)):
        here = frame[frame["batch_size"] == size][::-1]
        parts = split(here)
        left = np.zeros(len(here))
        for part, (shade, hatch) in PARTS.items():
            values = parts[part].to_numpy()
            axis.barh(range(len(here)), values, left=left, color=shade, hatch=hatch, edgecolor="white", label=part)
            left = left + values
        for row, (end, acceptance) in enumerate(zip(left, here["acceptance_length"], strict=True)):
            tokens = 1.0 if pd.isna(acceptance) else float(acceptance)
            axis.text(end, row, f" {end:.3g} ms / {tokens:.2f} tokens", va="center", fontsize=8)
        axis.set_yticks(range(len(here)), [str(label) for label in here["label"]])
        axis.set_title(f"Batch size {size}")
        axis.grid(axis="y", visible=False)
        if index >= len(sizes) - columns:
            axis.set_xlabel("decode time per round (ms)")
    limit = float(frame["step_ms"].max()) * 1.45
    for axis in axes:
        axis.set_xlim(0, limit)
    for axis in axes[len(sizes) :]:
        axis.set_visible(False)
    shared_legend(figure, axes[:1], ncols=len(PARTS))
    title = "Round time by stage"
    notes = "mean over rounds · other: round time that no stage clock covers"
    headline(figure, title, f"{scenario.title} · {prompts(frame)} · {notes}")
    caption = (
        "Mean wall time of a round by stage, for the one shape per strategy of the speed-up figure. `other` is what "
        "the stage clocks leave of (latency - ttft) / rounds: waiting for other requests' prefill, scheduling, the "
        "client. Autoregressive decoding has one step a token; where an engine gives it no stages, all of it is "
        "`other`. The text at each bar is round time over tokens emitted per round."
    )
    return Drawing("round_time_split", "product", title, caption, figure)
