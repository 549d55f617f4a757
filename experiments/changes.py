"""Which settings a run that goes on was given otherwise than before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

# What defines no cell: where things go, what is done with failures, what is waited for or reckoned with.
BESIDE = ("run_id", "output_dir", "tracking", "report", "strict", "dry_run", "retry_failed")
BESIDE_PARTS = ("engine.cost", "engine.timeout_s", "engine.start_timeout_s", "engine.port")


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Dotted keys whose values differ in two configurations, of those that may define a cell, sorted."""
    old, new = dict(_flat(before)), dict(_flat(now))
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def of_strategies(cells: Path, ids: Collection[str], strategies: Collection[str]) -> set[str]:
    """Those of the stored cells ``ids`` that are of one of ``strategies``; one that says of none is among them."""
    return {name for name in ids if (found := _strategy(cells / name / "cell.yaml")) is None or found in strategies}


def _strategy(path: Path) -> str | None:
    try:
        return str(yaml.safe_load(path.read_text(encoding="utf-8"))["arm"]["strategy"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by dotted key; a list is one value."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if key in BESIDE or key in BESIDE_PARTS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value
