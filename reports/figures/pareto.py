"""What a user gets against what a GPU gives: decode speed of one request over throughput of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from reports.choose import Scenario, ordered_strategies, usable
from reports.figures.style import Drawing, colour, floats, headline, marker, panels, prompts, shared_legend
from reports.frames import flag, records

FRONT_COLOUR = "#222222"


def per_gpu(frame: pd.DataFrame) -> pd.Series[Any]:
    """Aggregate tokens/s over the GPUs that share the model (``tensor_parallel``); on a CPU that of the machine."""
    gpus = [int(flag(row["flags"], "tensor_parallel") or 1) for row in records(frame)]
    return frame["tokens_per_s"] / pd.Series(gpus, index=frame.index, dtype="Float64")


def front(users: np.ndarray[Any, Any], machines: np.ndarray[Any, Any]) -> list[int]:
    """Indices of the points that no other beats in one number without losing in the other, by falling user speed.

    Of equal points the first counts.
    """
    order = sorted(range(len(users)), key=lambda index: (-users[index], -machines[index], index))
    kept: list[int] = []
    for index in order:
        if not kept or machines[index] > machines[kept[-1]]:
            kept.append(index)
    return kept


def user_against_machine(scenario: Scenario) -> Drawing | None:
    """Every usable point of all batch sizes, the Pareto front as a line, its points labelled by batch size."""
    frame = usable(scenario.frame)
    frame = frame[frame["tokens_per_s"].notna()]
    if len(frame) < 2:
        return None
    users, machines = floats(frame["tokens_per_s_per_user"]), floats(per_gpu(frame))
    best = front(users, machines)
    figure, axes = panels(1, width=7.2, height=4.8)
    axis = axes[0]
    for strategy in ordered_strategies(frame):
        mine = (frame["strategy"] == strategy).to_numpy(dtype=bool)
        axis.scatter(
            users[mine],
            machines[mine],
            s=34,
            color=colour(strategy),
            marker=marker(strategy),
            alpha=0.7,
            label=strategy,
        )
    axis.plot(
        users[best],
        machines[best],
        color=FRONT_COLOUR,
        linewidth=1.2,
        drawstyle="steps-post",
        zorder=1,
        label="Pareto front",
    )
    rows = records(frame)
    for index in best:
        text = f"{rows[index]['label']}, batch {int(rows[index]['batch_size'])}"
        axis.annotate(text, (users[index], machines[index]), (5, 5), textcoords="offset points", fontsize=7.5)
    axis.set_xlabel("decode speed of one request (tokens/s per user)")
    axis.set_ylabel(f"throughput (tokens/s per {'GPU' if frame['gpu'].notna().any() else 'machine, no GPU'})")
    axis.set_xlim(0, float(users.max()) * 1.25)
    axis.set_ylim(0, float(machines.max()) * 1.12)
    shared_legend(figure, axes, ncols=5)
    title = "Throughput per user against throughput per GPU"
    headline(figure, title, f"{scenario.title} · {prompts(frame)} · every shape and batch size that finished ok")
    caption = (
        "Up is more tokens from the machine, right is a faster answer for each user. The line steps along the points "
        "that no other beats in both (chosen in hindsight, without intervals). A strategy that is not on the line is "
        "worth running at no batch size that was measured."
    )
    return Drawing("pareto", "speedup", title, caption, figure)
