"""The gate's table of signatures against the sources of other versions, read and not imported.

DDBENCH_VLLM_SOURCES names folders that hold a ``vllm`` package each, separated as in PATH.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vllm_sources import look_up, parameters

from ddbench.plugins.vllm import gate
from ddbench.plugins.vllm.refusals import Refused

SOURCES = [Path(folder) for folder in os.environ.get("DDBENCH_VLLM_SOURCES", "").split(os.pathsep) if folder]


@pytest.mark.skipif(not SOURCES, reason="DDBENCH_VLLM_SOURCES names no folder with a vllm package")
@pytest.mark.parametrize("root", SOURCES, ids=str)
def test_the_table_holds_for_other_sources(root: Path) -> None:
    assert (root / "vllm" / "v1").is_dir()
    for place, expected in gate.SIGNATURES.items():
        found = parameters(root, place)
        assert found is not None, place
        assert found[: len(expected)] == expected, place
    assert [place for place in gate.NAMES if look_up(root, place) is None] == []


def test_the_reader_of_sources(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "base.py").write_text("class Base:\n    KEY = 1\n    def run(self, a, *b, c=1, **d): ...\n")
    (package / "own.py").write_text(
        "from pack.base import Base\nclass Own(Base):\n    def go(self, x, y=2): ...\ndef free(u, /, v): ...\n"
    )
    assert parameters(tmp_path, "pack.own:Own.go") == ("x", "y")
    assert parameters(tmp_path, "pack.own:Own.run") == ("a", "b", "c", "d")
    assert parameters(tmp_path, "pack.own:free") == ("u", "v")
    assert parameters(tmp_path, "pack.own:Own.stop") is None
    assert parameters(tmp_path, "pack.none:Own.go") is None
    assert look_up(tmp_path, "pack.own:Own.KEY") is not None
    assert look_up(tmp_path, "pack.own:Own.LOCK") is None


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", None])
def test_unknown_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(gate, "engine_version", lambda: version)
    with pytest.raises(Refused, match=rf"vLLM {version}: known versions are 0\.26\.0, 0\.32\.0, 0\.33\.0"):
        gate.check_engine()
