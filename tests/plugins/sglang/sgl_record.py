"""Records what an installed SGLang has at the places that the plug-in's tables name: `recorded/<version>.json`.

    python tests/plugins/sglang/sgl_record.py

Needs an environment with that SGLang. The tables are written by hand and the recordings by inspection, so a test that
compares the two finds a table that was mistyped, without SGLang.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddbench.plugins.sglang import gate
from ddbench.plugins.sglang.signatures import NAMES, SIGNATURES

FOLDER = Path(__file__).parent / "recorded"


def recording(version: str) -> dict[str, Any]:
    return {
        "parameters": {place: gate.parameters(place) for place in SIGNATURES[version]},
        "present": {place: gate.look_up(place) is not None for place in NAMES[version]},
    }


if __name__ == "__main__":
    found = gate.check_version()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{found}.json").write_text(json.dumps(recording(found), indent=1) + "\n")
