"""What a prediction found, kept in the form of ``docs/evidence``: of one card and engine, those that the cost is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddbench.cost import CostModel
from ddbench.storage import write_whole
from experiments.command import command_line
from experiments.evidence.shards import plain


def keep(place: str, cost: CostModel, found: Mapping[str, Any], notes: str) -> None:
    """Writes the file. ``found`` goes under ``measured``, as in every file there, marked as predicted."""
    told = {
        "command": command_line(),
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": cost.fingerprint.get("device"),
        "driver": None,
        "versions": {str(cost.fingerprint.get("engine")): cost.fingerprint.get("engine_version")},
        "measured": {"predicted": True, "cost_measured_on": cost.source.get("date"), **found},
        "notes": notes,
    }
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(plain(told), indent=1, allow_nan=False) + "\n")
