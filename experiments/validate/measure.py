"""What a validation run measured, from the folders of its two sweeps: one value a key, or why there is none.

| key | value |
|---|---|
| ``cells.<sweep>.failed`` | failed cells of a sweep, ``tiny`` or ``rounds``; 0 only where every planned cell was run |
| ``backend.<strategy>`` | attention backends that the server's log names, or that our plug-in registered or brought |
| ``lossless_share.<arm>.batch_<n>`` | as in results.parquet, of the tiny pair |
| ``largest_gap`` | most by which the autoregressive choice led where an output differs, in nats; 0 if none does |
| ``acceptance_length.<arm>.batch_<n>`` | ``acceptance_length_unclipped`` of the tiny pair |
| ``program_gib.<arm>.batch_<n>`` | peak memory less what the dry run's formula gives |
| ``weights_gib.<arm>``, ``kv_tokens.<arm>`` | as the server says when it has loaded the models and made its cache |
| ``beyond_plan_gib.<arm>`` | most of peak memory less what was computed before the server's start (``engine.json``) |
| ``round_ms.<arm>.batch_<n>`` | ``step_ms``: decode time a round, random weights |
| ``round_ratio.<tree>.batch_<n>`` | its ``round_ms`` over that of the chain of equal verify width |

An ``<arm>`` is strategy and verify width, ``ddtree_64``; autoregressive decoding has no width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ddbench import load
from ddbench.records import Cell
from experiments.estimate import GIB, memory_gib
from experiments.evidence.dummy_models import drafter_parameters, target_parameters
from experiments.settings import ModelSettings
from experiments.store import RunFolder
from experiments.validate.arithmetic import BYTES
from experiments.validate.verdict import Missing, Value

BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+)(?: attention)? backend|attention_backend='(\w+)'"
    r"|DDTREE plugin registered: .* attention=(\w+)"
)
WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB|Load weight end\..* mem usage=([\d.]+) GB")  # SGLang means GiB
CACHE = re.compile(r"KV cache size: ([\d,]+) tokens|max_total_num_tokens=(\d+)")
WORDS = {"backend": "its backend", "weights_gib": "what the weights took", "kv_tokens": "the size of its cache"}


def arm_of(row: Any) -> str:
    """``ddtree_64`` of a row of results or cells: strategy and verify width."""
    drafted = row.depth if pd.isna(row.nodes) else row.nodes
    return str(row.strategy) if pd.isna(drafted) else f"{row.strategy}_{int(drafted) + 1}"


def of_tiny(folder: Path, model: ModelSettings) -> dict[str, Value]:
    """What the sweep of the tiny pair says."""
    frames = load(folder)
    found: dict[str, Value] = {"cells.tiny.failed": _failed(folder, plans=2)}
    for row in frames.results.itertuples():
        name = f"{arm_of(row)}.batch_{row.batch_size}"
        state = _unmeasured(row)
        apart = "nothing to compare it with was measured"
        apart = apart if pd.isna(row.baseline_note) else f"{apart}: {row.baseline_note}"
        found[f"lossless_share.{name}"] = state or _number(row.lossless_share, apart)
        lengths = _number(row.acceptance_length_unclipped, "no round was counted")
        found[f"acceptance_length.{name}"] = state or lengths
    found["largest_gap"] = _largest_gap(frames.ledger)
    return found | _program(folder, frames.cells, model) | _logs(folder, frames.cells, ("backend",))


def of_rounds(folder: Path) -> dict[str, Value]:
    """What the sweep with random weights says."""
    frames = load(folder)
    found: dict[str, Value] = {"cells.rounds.failed": _failed(folder, plans=1)}
    for row in frames.results.itertuples():
        state = _unmeasured(row)
        if state is None and row.status == "suspect":
            state = Missing(f"the cell is suspect: {row.reason}")
        found[f"round_ms.{arm_of(row)}.batch_{row.batch_size}"] = state or _number(row.step_ms, "no round was timed")
    for key in [key for key in found if key.startswith("round_ms.ddtree_")]:
        tree, chain = found[key], found.get(key.replace("ddtree", "dflash"), Missing("its chain was not measured"))
        absent = next((each for each in (tree, chain) if isinstance(each, Missing)), None)
        ratio = absent if absent is not None else float(tree) / float(chain)  # type: ignore[arg-type]
        found[key.replace("round_ms", "round_ratio")] = ratio
    return found | _beyond_plan(folder, frames.cells) | _logs(folder, frames.cells, ("weights_gib", "kv_tokens"))


def of_host(facts: dict[str, Any], gpu: int) -> dict[str, Value]:
    """What the machine says of itself. ``facts`` as a host gives them; ``gpu``: the number of the one that is used."""
    cards = facts.get("gpus") or []
    card = next((each for each in cards if each.get("index", 0) == gpu), None)
    if card is None:
        return {key: Missing("the host shows no such GPU") for key in ("host.gpu", "host.power_limit_w")}
    return {
        "host.gpu": str(card["name"]),
        "host.power_limit_w": _number(card.get("power_limit_w"), "the driver does not tell its power limit"),
    }


def _failed(folder: Path, plans: int) -> Value:
    """``plans``: how many the sweep has (:mod:`experiments.validate.sweeps`). None failed only where all were run.

    As in a report, a cell with a status and a damaged file is failed, one with a damaged status is not finished.
    """
    run = RunFolder(folder)
    failed = float(run.counts()["failed"])
    if failed:
        return failed
    planned: set[str] = set()
    stored = sorted((folder / "planned").glob("*.json"))
    for path in stored:
        try:
            planned |= {row["cell_id"] for row in json.loads(path.read_text(encoding="utf-8"))}
        except (OSError, ValueError, TypeError, KeyError):
            return Missing(f"planned/{path.name} cannot be read")
    if len(stored) < plans:
        return Missing(f"{len(stored)} of its {plans} plans were begun")
    left = planned - run.ids()
    unread = sorted(name for name in left if (folder / "cells" / name).is_dir())
    if unread:
        return Missing(f"cells/{unread[0]}/status.json cannot be read")
    return Missing(f"{len(left)} of {len(planned)} planned cells were not run") if left else failed


def _unmeasured(row: Any) -> Missing | None:
    if pd.isna(row.status):
        return Missing(f"cells/{row.cell_id}/status.json cannot be read")
    return None if row.status in ("ok", "suspect") else Missing(f"{row.status}: {row.reason}")


def _number(value: Any, otherwise: str) -> Value:
    return Missing(otherwise) if value is None or pd.isna(value) else float(value)


def _largest_gap(ledger: pd.DataFrame) -> Value:
    apart = ledger[ledger["divergence"].notna()]
    if not len(ledger):
        return Missing("no outputs were compared")
    if not len(apart):
        return 0.0
    unknown = int(apart["gap"].isna().sum())
    if unknown:
        return Missing(f"{unknown} of {len(apart)} differences have no gap: the engine told none")
    return float(apart["gap"].max())


def _program(folder: Path, cells: pd.DataFrame, model: ModelSettings) -> dict[str, Value]:
    """By arm and batch size: peak memory less the formula's, where an engine's memory is its process's own."""
    found: dict[str, Value] = {}
    for row in cells.itertuples():
        key = f"program_gib.{arm_of(row)}.batch_{row.batch_size}"
        peak = _number(row.peak_memory_gib, "no peak of memory was stored")
        if isinstance(peak, float):
            peak -= memory_gib(_cell(folder / "cells" / str(row.cell_id)), model)
        found[key] = _unmeasured(row) or peak
    return found


def _beyond_plan(folder: Path, cells: pd.DataFrame) -> dict[str, Value]:
    """By arm, the most of its cells; of those that were measured and whose memory was computed beforehand.

    A plan without any weights is one of a ddbench that knew them from files alone: what the random ones take is added.
    """
    found: dict[str, Value] = {}
    for row in cells.itertuples():
        notes = folder / "cells" / str(row.cell_id) / "engine.json"
        key = f"beyond_plan_gib.{arm_of(row)}"
        before, peak = found.get(key), _number(row.peak_memory_gib, "no peak of memory was stored")
        try:
            planned = _planned_gib(notes) if notes.is_file() else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            found[key] = Missing(f"cells/{row.cell_id}/engine.json cannot be read")
            continue
        if planned is None or isinstance(peak, Missing) or isinstance(before, Missing):
            continue
        beyond = float(peak) - planned
        found[key] = max(beyond, before) if isinstance(before, float) else beyond
    return found


def _planned_gib(notes: Path) -> float | None:
    """What was computed before a server's start, None where nothing was."""
    plan = json.loads(notes.read_text(encoding="utf-8")).get("memory_predicted_gib")
    if plan is None:
        return None
    weights = 0.0 if plan["weights"] else BYTES * (target_parameters() + drafter_parameters()) / GIB
    return float(plan["total"]) + weights


def _cell(folder: Path) -> Cell:
    return Cell.from_dict(yaml.safe_load((folder / "cell.yaml").read_text(encoding="utf-8")))


def _logs(folder: Path, cells: pd.DataFrame, kinds: Iterable[str]) -> dict[str, Value]:
    """What servers wrote when they started: in the log of the first cell of an arm that was measured on them."""
    texts: dict[tuple[str, str], str] = {}
    for row in cells.itertuples():
        log = folder / "cells" / str(row.cell_id) / "server.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        key = (str(row.strategy), arm_of(row))
        texts[key] = texts.get(key, "") + text
    found: dict[str, Value] = {}
    for (strategy, arm), text in texts.items():
        for kind in kinds:
            name = strategy if kind == "backend" else arm
            value = READERS[kind](text)
            found[f"{kind}.{name}"] = (
                Missing(f"the server's log does not say {WORDS[kind]}") if value is None else value
            )
    return found


def backends(log: str) -> str | None:
    """The attention backends named in a log, each once, in the order of their first mention."""
    named = ["".join(each) for each in BACKEND.findall(log)]
    return ", ".join(dict.fromkeys(named)) or None


def weights_gib(log: str) -> float | None:
    """Of target and drafter together, at the first start that a log tells of: its cache is made after it has both."""
    cache = CACHE.search(log)
    parts = WEIGHTS.findall(log if cache is None else log[: cache.start()])
    return sum(float(both or one) for both, one in parts) if parts else None


def kv_tokens(log: str) -> float | None:
    found = CACHE.search(log)
    return float((found[1] or found[2]).replace(",", "")) if found else None


READERS: dict[str, Callable[[str], str | float | None]] = {
    "backend": backends,
    "weights_gib": weights_gib,
    "kv_tokens": kv_tokens,
}
