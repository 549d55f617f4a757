"""What a target calls itself, by the ``config.json`` of a folder."""

from __future__ import annotations

import json
from pathlib import Path


def architectures_of(folder: Path) -> list[str] | None:
    """None where the folder is not one of this machine; empty where the file names none."""
    config = folder / "config.json"
    if not config.is_file():
        return None
    return list(json.loads(config.read_text(encoding="utf-8")).get("architectures") or [])
