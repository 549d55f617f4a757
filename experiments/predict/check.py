"""A prediction against the measured cells of a sweep: relative errors of the speed, by point.

Three predictions of each point: the formula (acceptance over round time), the closed loop of the replayed rounds, and
the closed loop of the rounds that were measured, which leaves the step cost alone to blame.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from ddbench.cost import CostModel, inside, late_steps, prefill_of
from ddbench.cost.loop import Requests, closed_loop
from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.metrics import Counts, step_ms, tokens_per_s, tokens_per_s_per_user, verify_width
from ddbench.records import Cell
from ddbench.replay import Outcome, TraceSet, refuse, replay
from experiments.predict.surface import Shape
from experiments.progress import counted, warn
from experiments.replay.points import strategy_of
from experiments.settings import ModelSettings
from experiments.step_cost.fingerprint import fingerprint
from experiments.typed import build

Key = tuple[str, int, int]  # prompt, turn, repeat
ERRORS = ("formula_error", "loop_error", "measured_rounds_error", "aggregate_error")


@dataclass(frozen=True)
class Checked:
    """One measured point. Speeds in tokens/s per user, errors relative, predicted / measured - 1.

    ``formula_error``: of 1000 x acceptance / round time. ``loop_error``: of the closed loop of the replayed rounds.
    ``measured_rounds_error``: of the closed loop of the measured rounds. ``aggregate_error``: of the closed loop's
    tokens/s over the whole span. ``same_rounds``: share of the requests whose rounds were replayed exactly.
    """

    shape: Shape
    batch_size: int
    temperature: float
    requests: int
    blocks: int
    same_rounds: float
    measured: float
    measured_step_ms: float
    predicted: float
    predicted_step_ms: float
    formula_error: float
    loop_error: float
    measured_rounds_error: float
    aggregate_error: float
    extrapolated: bool


@dataclass(frozen=True)
class _Measured:
    cell: Cell
    keys: tuple[Key, ...]
    counts: Counts
    prompt_tokens: Any


def check(run: Path, cost: CostModel, sets: Mapping[float, TraceSet]) -> list[Checked]:
    """Every point of the sweep that can be predicted, blocks pooled.

    Raises:
        ConfigError: a sweep of another setup than the cost's, of other prompts than the recording's, or of none.
    """
    points: dict[str, list[_Measured]] = {}
    read = _read(run, cost)
    chosen = sum(each.cell.arm.policy is not None for each in read)
    if chosen:
        warn(f"{counted(chosen, 'measured cell')} left out: what a policy chooses is no shape that is predicted")
    for each in read:
        fixed = each.cell.arm.policy is None
        if fixed and each.cell.arm.strategy in cost.fits and each.cell.temperature in sets:
            points.setdefault(each.cell.point_id, []).append(each)
    found = [_checked(blocks, cost, sets[blocks[0].cell.temperature]) for blocks in points.values()]
    made = [each for each in found if each is not None]
    if not made:
        raise ConfigError("check", str(run), "a sweep with at least one point that can be predicted")
    return made


def summary(found: Sequence[Checked]) -> dict[str, Any]:
    """Errors without sign: median, quartiles and worst, of all points and of those inside the measured ranges."""
    return {
        "points": len(found),
        **{name: _spread([abs(getattr(each, name)) for each in found]) for name in ERRORS},
        "inside": _spread([abs(each.loop_error) for each in found if not each.extrapolated]),
    }


def to_rows(found: Sequence[Checked]) -> list[dict[str, Any]]:
    return [{**asdict(each.shape), **{k: v for k, v in asdict(each).items() if k != "shape"}} for each in found]


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    q1, median, q3 = np.percentile(values, (25, 50, 75)).tolist()
    return {"median": median, "q1": q1, "q3": q3, "worst": max(values), "n": len(values)}


def _read(run: Path, cost: CostModel) -> list[_Measured]:
    """The finished cells of a run, each of the cost's own setup."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    model = build(ModelSettings, config["model"], "model")
    cpu = json.loads((run / "environment.json").read_text(encoding="utf-8")).get("cpu") or ""
    found = []
    for folder in sorted((run / "cells").iterdir()):
        if not (folder / "status.json").exists():
            continue
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        if status["status"] != "ok":
            continue
        cell = Cell.from_dict(yaml.safe_load((folder / "cell.yaml").read_text(encoding="utf-8")))
        arm = cell.arm
        mine = fingerprint(arm.engine, arm.engine_version, status.get("build"), status["gpu"], cpu, model, arm.flags)
        if arm.strategy in cost.fits:
            cost.check(mine, "check")
        found.append(_table(cell, folder / "requests.parquet"))
    return found


def _table(cell: Cell, place: Path) -> _Measured:
    """The requests in the order of their admission."""
    table = pq.read_table(place).to_pandas().sort_values("start_s", kind="stable")
    table = table[table["error"].isna()]
    keys = tuple(zip(table["prompt_id"], table["turn"], table["repeat"], strict=True))
    return _Measured(cell, keys, Counts.from_columns(table), table["prompt_tokens"].to_numpy())


def _checked(blocks: Sequence[_Measured], cost: CostModel, traces: TraceSet) -> Checked | None:
    cell = blocks[0].cell
    strategy = strategy_of(cell.arm)
    if refuse(strategy, traces.depth, traces.k) is not None:
        return None
    joined = Counts.joined([block.counts for block in blocks])
    measured, aggregate = tokens_per_s_per_user(joined), tokens_per_s([block.counts for block in blocks])
    taken = step_ms(joined)
    if measured is None or aggregate is None or taken is None:
        return None
    shape, fit = Shape.of(cell.arm), cost.fit(cell.arm.strategy)
    width = verify_width(shape.strategy, shape.depth, shape.nodes)
    assert width is not None
    replayed = [_replayed(block, traces, strategy) for block in blocks]
    own = [Requests(block.prompt_tokens, *_ints(block.counts)) for block in blocks]
    loop = cell.batch_size, fit, width, prefill_of(cost), late_steps(cost)
    told = [closed_loop(each, *loop) for each in replayed]
    apart = [closed_loop(each, *loop) for each in own]
    context = replayed[0].mean_context()
    steps = sum(int(each.steps.sum()) for each in replayed)
    if context is None or steps == 0:
        return None
    emitted = sum(int((each.output_tokens - 1).sum()) for each in replayed)
    ms = float(fit(width, cell.batch_size, context, extrapolate=True))
    per_user = _mean([clocks.tokens_per_s_per_user(each) for clocks, each in zip(told, replayed, strict=True)])
    of_measured = _mean([clocks.tokens_per_s_per_user(each) for clocks, each in zip(apart, own, strict=True)])
    span = _mean([clocks.tokens_per_s(each) for clocks, each in zip(told, replayed, strict=True)])
    same = [np.mean(a.steps == b.steps) for a, b in zip(replayed, own, strict=True)]
    return Checked(
        shape=shape,
        batch_size=cell.batch_size,
        temperature=cell.temperature,
        requests=len(joined),
        blocks=len(blocks),
        same_rounds=float(np.mean(same)),
        measured=measured,
        measured_step_ms=taken,
        predicted=per_user,
        predicted_step_ms=ms,
        formula_error=1e3 * emitted / steps / ms / measured - 1,
        loop_error=per_user / measured - 1,
        measured_rounds_error=of_measured / measured - 1,
        aggregate_error=span / aggregate - 1,
        extrapolated=not inside(fit, width, cell.batch_size, context),
    )


def _ints(counts: Counts) -> tuple[Any, Any]:
    return counts.output_tokens.astype(np.int64), counts.steps.astype(np.int64)


def _replayed(block: _Measured, traces: TraceSet, strategy: Strategy) -> Requests:
    """The recorded requests in the order of the measured ones."""
    places = {(t.key.prompt_id, t.key.turn, t.key.repeat): place for place, t in enumerate(traces.traces)}
    unknown = [key for key in block.keys if key not in places]
    if unknown:
        raise ConfigError("check", unknown[0][0], "a sweep of the recording's prompts, turns and repeats")
    order = np.array([places[key] for key in block.keys])
    outcome: Outcome = replay(traces, [strategy])[0]
    output = np.array([len(trace.output) for trace in traces.traces])
    steps = output - 1 if strategy.name == "autoregressive" else np.asarray(outcome.rounds)
    prompts = np.array([trace.prompt_tokens for trace in traces.traces])
    return Requests(prompts[order], output[order], steps[order])


def _mean(values: Sequence[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))
