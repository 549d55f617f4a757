"""Where a run may keep what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddbench.errors import ConfigError
from experiments.writable import check_place


def test_files_of_another_kind_are_not_written_over(tmp_path: Path) -> None:
    mine, page, other = (tmp_path / name for name in ("mine.json", "README.md", "sglang.json"))
    mine.write_text(json.dumps({"command": "python -m ddbench experiment=adaptive run=x"}))
    page.write_text("# A page")
    other.write_text(json.dumps({"command": "python -m ddbench experiment=sglang_evidence shard=merge"}))
    for place in (None, str(mine), str(tmp_path / "new" / "file.json")):
        check_place("adaptive.evidence", place, "experiment=adaptive")
    for taken in (page, other):
        before = taken.read_text()
        with pytest.raises(ConfigError, match=r"adaptive\.evidence=.*would be written over"):
            check_place("adaptive.evidence", str(taken), "experiment=adaptive")
        assert taken.read_text() == before
    assert not (tmp_path / "new").exists()
