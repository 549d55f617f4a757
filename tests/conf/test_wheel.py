"""An installed wheel has its configuration with it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_configuration_works_from_a_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("ddbench-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    script = "import ddbench.__main__ as m; print(m.conf_folder())"
    for arguments in (["-c", script], ["-m", "ddbench", "experiment=smoke", "model=qwen3_8b", "--cfg", "job"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=empty, env=environment, capture_output=True, text=True, check=True
        )
        assert str(site / "ddbench" / "conf") in done.stdout or "name: qwen3_8b" in done.stdout
    unknown = subprocess.run(
        [sys.executable, "-m", "ddbench", "model=nope"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert unknown.returncode == 2
    assert "qwen3_8b" in unknown.stderr
