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
from ddbench.errors import ConfigError
from ddbench.storage import write_whole
from experiments.evidence.shards import plain
from experiments.validate.record import unwritable


def check_place(key: str, place: str | None) -> None:
    """Before anything is measured for it: raises ConfigError where the file that ``key`` names cannot be written."""
    why = None if place is None else unwritable(Path(place))
    if why is not None:
        raise ConfigError(key, place, f"a file that can be written ({why})")


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
