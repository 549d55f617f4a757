"""A sweep with W&B beside it: broken first, then working. Real processes, no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reports"))

from offline import read_offline

pytest.importorskip("wandb")

GRID = ("sweep.strategy=[autoregressive,dflash]", "sweep.depth=[3]")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package ``wandb`` that starts no run."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "wandb").mkdir()
    (folder / "wandb" / "__init__.py").write_text(
        "class Settings:\n    model_fields = {}\n    def __init__(self, **_): pass\n\n"
        "def init(**_):\n    raise ConnectionError('no route to host')\n\ndef teardown(): pass\n"
    )
    return folder


def test_a_sweep_goes_through_a_broken_wandb_and_catches_up(ddbench: Any, broken: Path) -> None:
    arguments = [each for each in ddbench.arguments if each != "tracking=none"] + ["run_id=night", *GRID]
    folder = ddbench.path("night")

    def run(*more: str, path: str = "") -> tuple[dict[str, Any], str]:
        command = [sys.executable, "-m", "ddbench", *more]
        environment = {**ddbench.environment, "WANDB_API_KEY": ""}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [path, environment["PYTHONPATH"]]))
        done = subprocess.run(
            command, cwd=ddbench.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    unsupported = ("load=open",)  # stored all the same, and no engine has to start
    summary, said = run(*arguments, "sweep.batch_size=[1]", *unsupported, path=str(broken))
    assert summary["cells"] == {"ok": 0, "unsupported": 2, "failed": 0, "suspect": 0}
    assert said.count("W&B") == said.count("no route to host") == 1
    assert not read_offline(folder)
    first = {path.name for path in (folder / "cells").iterdir()}

    summary, said = run(*arguments, "sweep.batch_size=[2]")
    assert summary["cells"] == {"ok": 2, "unsupported": 2, "failed": 0, "suspect": 0}
    assert "W&B" not in said
    runs = read_offline(folder)
    assert [each.job_type for each in runs] == ["cell"] * 4 + ["report"]
    assert {each.id for each in runs[:2]} == {path.name for path in (folder / "cells").iterdir()} - first
    assert {each.id for each in runs[2:4]} == first
    assert {each.group for each in runs} == {"night"}
    assert all(each.exit_code == 0 for each in runs)
    assert not [path for path in ddbench.folder.iterdir() if path.name == "wandb"]
