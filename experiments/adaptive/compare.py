"""All fixed arms, the policies and the oracle on the same texts at the same costs: tokens a second, replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ddbench.adaptive import Candidates, Choice, Fixed, MeasuredCosts, Policy, StepCosts, policy_of
from ddbench.adaptive.measured import why_not
from ddbench.cost import CostModel, late_steps
from ddbench.replay import PLAIN, Offers, Steps, Trace, TraceSet, bound_tokens_per_s, replay_policy

BELOW = 0.02  # a policy further below the best single arm than this is listed
ORACLE = "oracle"
UNPRICED = "has no price at this batch or a smaller one, as the end of a run has; a policy may take it where it has"
UNJUDGED = "it took a step that has no price, since it was not measured at its batch"
BLIND = "no tree has a price at this batch or a smaller one"
ALONE = "no single arm has a price at this batch and all smaller ones"


@dataclass(frozen=True)
class Row:
    """One arm on one group of prompts at one batch size: rounds replayed, the speed predicted from a fitted cost.

    ``kind``: autoregressive, chain, tree, policy or oracle. ``nodes``: budget or chain's depth, None where it changes.
    ``tokens_per_s``: of the batch, decoding alone. ``emitted`` tokens in ``rounds`` of one row, ``steps`` of the batch.
    ``mean_verify_width``: of the steps. ``autoregressive_share``, ``chain_share``: of the steps, those without a
    draft and those with a chain.
    """

    group: str
    temperature: float
    batch_size: int
    arm: str
    kind: str
    nodes: int | None
    tokens_per_s: float
    emitted: int
    rounds: int | None
    steps: int | None
    mean_verify_width: float | None
    autoregressive_share: float | None
    chain_share: float | None


@dataclass(frozen=True)
class Verdict:
    """One policy against the best single arm of its group and batch size, which is chosen in hindsight.

    ``ratio``: its tokens a second over the best's; ``of_oracle`` over the oracle's, which nothing exceeds.
    """

    group: str
    temperature: float
    batch_size: int
    policy: str
    tokens_per_s: float
    best: str
    best_tokens_per_s: float
    ratio: float
    of_oracle: float


def groups(traces: Sequence[Trace]) -> dict[str, list[Trace]]:
    """The requests of each dataset, and of each of its categories where it has several."""
    found: dict[str, list[Trace]] = {}
    for trace in traces:
        found.setdefault(trace.key.dataset, []).append(trace)
    for dataset, own in list(found.items()):
        kinds = sorted({trace.key.category for trace in own})
        for category in kinds if len(kinds) > 1 else []:
            found[f"{dataset}/{category}"] = [trace for trace in own if trace.key.category == category]
    return {name: own for name, own in found.items() if any(trace.anchors for trace in own)}


def compare(
    name: str,
    temperature: float,
    traces: Sequence[Trace],
    candidates: Candidates,
    cost: CostModel,
    batch_sizes: Sequence[int],
    policies: Sequence[str],
    fill: int,
    judge: StepCosts | None = None,
    knows: bool = False,
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows of one group, and the batch sizes and arms that had to be left out, with reasons.

    A policy is left out where any of its steps has no price: an infinite time is no speed.

    ``knows``: policies choose by the judge's prices too.

    The cost decides. It prices too, so that a policy knows exactly what its steps cost, which no run does, unless a
    ``judge`` prices all arms. A request's end is seen as late as the engine of the cost sees it.
    """
    offers, costs = Offers.of(TraceSet.of(traces), candidates), MeasuredCosts(cost)
    prices, late = costs if judge is None else judge, late_steps(cost)
    rows: list[Row] = []
    left: list[dict[str, Any]] = []
    for size in batch_sizes:
        here = {"group": name, "temperature": temperature, "batch_size": size}
        reason = why_not(cost, candidates, size)
        if reason is not None:
            left.append({**here, "arm": None, "kind": None, "reason": reason})
            continue
        passes = max(1, -(-fill * size // len(traces)))
        mine: list[Row] = []
        for kind, nodes, policy in _arms(candidates, policies):
            arm = policy.name if kind == "policy" else kind if nodes is None else f"{kind} {nodes}"
            own = {**here, "arm": arm, "kind": kind}
            if isinstance(policy, Fixed):
                lacks = None if _measured(policy.choice, prices, size) else UNPRICED
            else:
                lacks = BLIND if knows and not _some(candidates, prices, size) else None
            if lacks is not None:
                left.append({**own, "reason": lacks})
                continue
            steps = replay_policy(offers, policy, prices if knows else costs, size, passes, late)
            if not np.isfinite(steps.milliseconds(offers, prices)).all():
                left.append({**own, "reason": UNJUDGED})
                continue
            speed = steps.tokens_per_s(offers, prices)
            mine.append(Row(name, temperature, size, arm, kind, nodes, speed, *_told(steps, candidates)))
        if all(row.kind == "policy" for row in mine):
            left.append({**here, "arm": None, "kind": None, "reason": ALONE})
            continue
        rows += mine
        bound = bound_tokens_per_s(offers, prices, size)
        tokens = passes * offers.traces.anchors
        rows.append(Row(name, temperature, size, ORACLE, ORACLE, None, bound, tokens, None, None, None, None, None))
    return rows, left


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Each policy against the best of autoregressive decoding, the chains and the fixed trees."""
    found = []
    for policy in (row for row in rows if row.kind == "policy"):
        where = policy.group, policy.temperature, policy.batch_size
        here = [row for row in rows if (row.group, row.temperature, row.batch_size) == where]
        best = max((row for row in here if row.kind not in ("policy", ORACLE)), key=lambda row: row.tokens_per_s)
        oracle = next(row for row in here if row.kind == ORACLE)
        speed = policy.tokens_per_s
        ratios = speed / best.tokens_per_s, speed / oracle.tokens_per_s
        found.append(Verdict(*where, policy.arm, speed, best.arm, best.tokens_per_s, *ratios))
    return found


def summary(found: Sequence[Verdict], policy: str) -> dict[str, Any]:
    """Of one policy: how many points, where it is more than 2 % below the best single arm, and where above it."""
    mine = [each for each in found if each.policy == policy]
    ratios = [each.ratio for each in mine]
    return {
        "policy": policy,
        "points": len(mine),
        "worst": min(ratios, default=None),
        "median": float(np.median(ratios)) if ratios else None,
        "best": max(ratios, default=None),
        "never_more_than_2_percent_below": bool(ratios) and min(ratios) >= 1 - BELOW,
        "below": [asdict(each) for each in mine if each.ratio < 1 - BELOW],
        "above": [asdict(each) for each in mine if each.ratio > 1],
    }


def _arms(candidates: Candidates, policies: Sequence[str]) -> Iterator[tuple[str, int | None, Policy]]:
    yield "autoregressive", None, Fixed(Choice("autoregressive", 0))
    for choice in candidates.all:
        yield choice.kind, choice.nodes, Fixed(choice)
    for name in policies:
        yield "policy", None, policy_of(name)


def _measured(choice: Choice, costs: StepCosts, size: int) -> bool:
    """Whether a fixed arm has a price at the batch size and at all below it, which the end of a run has."""
    batches = np.arange(1, size + 1)
    if choice.kind == "autoregressive":
        return bool(np.isfinite(costs.autoregressive_ms(batches, 1)).all())
    price = costs.chain_ms if choice.kind == "chain" else costs.round_ms
    return bool(np.isfinite(price(choice.verify_width, batches, 1)).all())


def _some(candidates: Candidates, costs: StepCosts, size: int) -> bool:
    """Whether there is a tree with a price at the batch size, and at each below it."""
    widths = np.array(candidates.trees)[:, None] + 1
    return bool(np.isfinite(costs.round_ms(widths, np.arange(1, size + 1), 1)).any(axis=0).all())


def _told(steps: Steps, candidates: Candidates) -> tuple[int, int, int, float, float, float]:
    """Emitted tokens, rounds of a row, steps, mean verify width, share of plain steps and of chains."""
    widths = np.array([*(choice.verify_width for choice in candidates.all), 1])  # the last is a plain step's
    chain = np.array([*(choice.kind == "chain" for choice in candidates.all), False])
    return (
        int(steps.emitted.sum()),
        int(steps.rows.sum()),
        len(steps.rows),
        float(widths[steps.place].mean()),
        float((steps.place == PLAIN).mean()),
        float(chain[steps.place].mean()),
    )
