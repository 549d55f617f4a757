"""A disk that is full: on a small file system of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeps import CELLS, Sweeps, cell_content, wait_for

SIZE_KIB = 1200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of about a megabyte, which root may mount, as in CI."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() != 0:
        pytest.skip("a file system of its own is mounted, which only root may")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leaves no block free."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"\0" * 4096)
        except OSError:
            return ballast


def test_a_sweep_ends_in_one_line_and_goes_on_when_there_is_room(sweeps: Sweeps, small_disk: Path) -> None:
    run = small_disk / "smoke" / "full"
    process = sweeps.start("full", f"output_dir={small_disk}")
    wait_for(lambda: len(list((run / "cells").glob("*/status.json"))) >= 2)
    ballast = fill(small_disk)
    code, summary, err = process.end()
    assert code == 1, err
    assert "no space left on device" in summary["error"].lower()
    assert f"run_id={run.name} does the rest" in err
    assert "Traceback" not in err
    assert 2 <= summary["cells"]["ok"] < CELLS
    assert summary["cells"]["failed"] == 0
    whole = {path.name for path in (run / "cells").iterdir()}
    assert all(cell_content(run / "cells" / name) == sweeps.content("whole")[name] for name in whole)
    ballast.unlink()
    code, summary, err = sweeps.run("full", f"output_dir={small_disk}")
    assert code == 0, err
    assert {path.name: cell_content(path) for path in (run / "cells").iterdir()} == sweeps.content("whole")
    assert json.loads((run / "environment.json").read_text())
    assert not (run / ".claims").exists()
    assert not (run / ".running").exists()
