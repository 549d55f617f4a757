"""Silent fallback: an arm whose stored counts are not those of its strategy and shape measured something else.

An engine may switch speculation off without a word (a batch too large, a feature it cannot combine), or run another
shape than it was told; its answers are right and its speed is somebody else's. The counts of every measured cell are
held against its arm here, whatever the engine. What an engine's own totals say is its runner's to check.

Every rule is a bound that no faithful run can break:

- autoregressive decoding has no verify rounds;
- a speculative arm has some, if any request decoded beyond the prefill's token;
- no round drafts more than the shape holds, nor accepts more in a row than its depth;
- without a pruning threshold every round drafts the whole shape, on the reference engine exactly; a server may cut the
  last draft of a request where its context ends;
- a decode step adds at most its accepted tokens and one more: tokens beyond that came from steps without a draft.

Of any arm: where every answer ended with the prefill's token nothing was decoded, hence nothing measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from ddbench.records import Arm, Cell, Status
from experiments.shapes import capacity
from runners.base import CellOutcome

COLUMNS = ["output_tokens", "rounds", "drafted", "accepted", "accept_histogram", "error"]
EXACT = ("reference", "published")  # engines that never cut a draft
MOST_PLAIN = 0.5  # share of a speculative arm's decode steps without a draft from which it is no longer that arm

NOT_DECODED = "every answer ended with its first token: nothing was decoded"

Row = dict[str, object]


def checked(outcome: CellOutcome, cell: Cell, folder: Path) -> CellOutcome:
    """The outcome of a measured cell, failed or suspect where its requests.parquet shows that it fell back."""
    table = folder / "requests.parquet"
    if outcome.status not in ("ok", "suspect") or not table.is_file():
        return outcome
    rows = [row for row in pq.read_table(table, columns=COLUMNS).to_pylist() if row["error"] is None]
    status, reason = fallback(cell.arm, rows, trusted=outcome.status == "ok")
    if status == "failed" or (status == "suspect" and outcome.status == "ok"):
        return replace(outcome, status=status, reason="; ".join(filter(None, (reason, outcome.reason))))
    return outcome


def fallback(arm: Arm, rows: list[Row], trusted: bool = True) -> tuple[Status, str | None]:
    """Status and reason of an arm by the counts of its requests.

    ``trusted`` False: the runner itself doubts the rounds that it counted (events of a stream that joined several, say)
    and has said so; then only what was drafted a round is looked at.
    """
    status, reason = _by_rounds(arm, rows, trusted)
    if status != "failed" and rows and all(_int(row, "output_tokens") <= 1 for row in rows):
        return "suspect", NOT_DECODED
    return status, reason


def _by_rounds(arm: Arm, rows: list[Row], trusted: bool) -> tuple[Status, str | None]:
    """What verify rounds and drafted tokens say."""
    if any(row["rounds"] is None for row in rows):
        if arm.strategy == "autoregressive":
            return "ok", None
        return "suspect", "the engine does not tell its verify rounds: that it speculated is not known"
    told_drafted = all(row["drafted"] is not None for row in rows)  # else: no engine's word on what a tree had
    rounds, drafted = _sum(rows, "rounds"), _sum(rows, "drafted") if told_drafted else None
    if arm.strategy == "autoregressive":
        told = f"{rounds} verify rounds and {drafted} drafted tokens of an autoregressive arm: the engine speculated"
        return ("failed", told) if rounds or drafted else ("ok", None)
    other = _other_shape(arm, rows, rounds, drafted) if drafted is not None else None
    if other is not None:
        return "failed", other
    if not trusted:
        return "ok", None
    if not rounds:
        longer = sum(_int(row, "output_tokens") > 1 for row in rows)
        told = f"no verify round in {longer} requests of more than one token: speculation was not active"
        return ("failed", told) if longer else ("ok", None)
    deep = _too_deep(arm, rows)
    return ("failed", deep) if deep is not None else _plain_steps(rows, rounds)


def drafts(arm: Arm) -> tuple[int, int] | None:
    """(least, most) tokens that a round of an arm drafts; None where its shape does not say."""
    if arm.strategy == "dflash":
        return None if arm.depth is None else (arm.depth, arm.depth)
    if arm.nodes is None or arm.depth is None:
        return None
    whole = min(arm.nodes, capacity(arm.strategy, arm.width, arm.depth, arm.nodes))
    if arm.policy is not None:  # a chain may be deeper than the trees have nodes; an autoregressive step drafts nothing
        return 0, max(whole, arm.depth)
    if arm.min_log_prob is None:
        return whole, whole
    return (min(arm.depth, whole) if arm.force_spine else 0), whole


def _other_shape(arm: Arm, rows: list[Row], rounds: int, drafted: int) -> str | None:
    bounds = drafts(arm)
    if bounds is None:
        return None
    least, most = bounds
    cut = 0 if arm.engine in EXACT else least * len(rows)
    if least * rounds - cut <= drafted <= most * rounds:
        return None
    shape = f"{most}" if least == most else f"{least} to {most}"
    return f"{drafted} tokens drafted in {rounds} rounds, not {shape} a round: the engine ran another shape"


def _too_deep(arm: Arm, rows: list[Row]) -> str | None:
    """A round that accepted more tokens in a row than the arm can draft."""
    depth = arm.depth
    if depth is None:
        return None
    deepest = max((index for row in rows for index, count in enumerate(_histogram(row)) if count), default=0)
    return f"a round accepted {deepest} tokens, deeper than {depth}" if deepest > depth else None


def _plain_steps(rows: list[Row], rounds: int) -> tuple[Status, str | None]:
    known = [row for row in rows if row["accepted"] is not None]
    plain = sum(max(_int(row, "output_tokens") - 1 - _int(row, "rounds") - _int(row, "accepted"), 0) for row in known)
    if not plain:
        return "ok", None
    steps = rounds + plain
    told = f"at least {plain} of {steps} decode steps went without a draft"
    return ("failed" if plain > MOST_PLAIN * steps else "suspect"), told


def _histogram(row: Row) -> list[int]:
    counts = row["accept_histogram"]
    return counts if isinstance(counts, list) else []


def _sum(rows: list[Row], name: str) -> int:
    return sum(_int(row, name) for row in rows)


def _int(row: Row, name: str) -> int:
    value = row[name]
    return value if isinstance(value, int) else 0
