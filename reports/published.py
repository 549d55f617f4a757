"""Published acceptance lengths of the same models and data, and the range in which a run should find its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("published_acceptance.yaml")
WHOLE_BLOCK = 15  # tokens that a DFlash block of 16 drafts
LEAST_NODES = 15  # of a tree that is at least the chain of a whole block: the papers' smallest budget is 16
TEMPLATE = "chat"
COMBINED = {"aime": ("aime_2024", "aime_2025")}  # workloads that hold several published sets


@dataclass(frozen=True)
class Expected:
    """``low`` to ``high`` is the published range; ``tolerance`` widens it by that share at either end."""

    low: float
    high: float
    tolerance: float
    sources: tuple[str, ...]

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low * (1 - self.tolerance), self.high * (1 + self.tolerance)

    def verdict(self, measured: float) -> str:
        low, high = self.bounds
        return "inside" if low <= measured <= high else "outside, below" if measured < low else "outside, above"


def expected(row: Mapping[str, Any]) -> Expected | None:
    """The range for one point of ``results.parquet``; None unless target, drafter, template, data and shape match.

    A chain of the whole block is expected at what was published for the chain. A tree without limits of width, depth
    or probability lies between the chain and the best published tree: tau does not fall as nodes are added. An EAGLE
    tree must have the published shape.
    """
    table = _table()
    entries = [
        entry
        for entry in table["entries"]
        if entry["temperature"] == row["temperature"] and _same_model(row, table["models"][entry["model"]])
    ]
    found = [
        (length, table["sources"][entry["source"]])
        for entry in entries
        if _same_shape(row, entry)
        for name in COMBINED.get(row["dataset"], (row["dataset"],))
        if (length := entry["lengths"].get(name)) is not None
    ]
    if not found:
        return None
    lengths = [length for length, _ in found]
    return Expected(min(lengths), max(lengths), table["tolerance"], tuple(sorted({source for _, source in found})))


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return table


def _same_model(row: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Target and drafter by name, and prompts in the same dress, to their natural end."""
    drafter = model["eagle" if row["strategy"] == "eagle" else "dflash"]
    flags = json.loads(row["flags"] or "{}")
    asked = flags.get("template") == TEMPLATE and flags.get("thinking") == model["thinking"]
    return asked and not flags.get("ignore_eos") and (row["target"], row["drafter"]) == (model["target"], drafter)


def _same_shape(row: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    whole = row["depth"] is None or row["depth"] == WHOLE_BLOCK
    if row["strategy"] == "dflash":
        return bool(entry["strategy"] == "dflash" and whole)
    if row["strategy"] == "ddtree":
        free = whole and row.get("policy") is None and row["width"] is None and row["min_log_prob"] is None
        return bool(free and (row["nodes"] or 0) >= LEAST_NODES and entry["strategy"] in ("dflash", "ddtree"))
    shape = [row[axis] == entry.get(axis) for axis in ("width", "depth", "nodes")]
    return bool(row["strategy"] == entry["strategy"] and all(shape))
