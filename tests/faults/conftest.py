"""One undisturbed sweep, which the disturbed ones must equal in the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sweeps import CELLS, Sweeps, forge


def write_prompts(path: Path, count: int, prefix: str) -> None:
    records = [
        {"id": f"{prefix}{i}", "dataset": "made", "category": "ab"[i % 2], "turns": [f"{prefix} {i} " * (i + 1)]}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture(scope="session")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweeps]:
    with forge() as process:
        made = Sweeps(tmp_path_factory.mktemp("faults"), process)
        write_prompts(made.folder / "prompts.jsonl", 4, "p")
        write_prompts(made.folder / "warmup.jsonl", 1, "w")
        code, summary, err = made.run("whole", "report.build=true")
        assert code == 0, err
        assert summary["cells"] == {"ok": CELLS, "unsupported": 0, "failed": 0, "suspect": 0}
        yield made
