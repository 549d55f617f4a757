"""What a prediction found, kept in the form of ``docs/evidence``: of one card and engine, those that the cost is of."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddbench.cost import CostModel
from ddbench.storage import write_whole
from experiments.evidence.shards import plain


def keep(place: str, cost: CostModel, found: Mapping[str, Any], notes: str) -> None:
    """Writes the file. ``found`` goes under ``measured``, as in every file there, marked as predicted."""
    told = {
        "command": shlex.join(["python", "-m", "ddbench", *sys.argv[1:]]),
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
