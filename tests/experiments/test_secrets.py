"""Secrets planted in the environment and in the configuration of a real run: none is in any file that it leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

TOKEN, PASSWORD, CONFIGURED = "hf_plantedTOKEN0123", "planted-PASSWORD-4567", "planted-CONFIGURED-89"


def files_with(folder: Path, secret: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_no_file_of_a_run_has_a_secret(ddbench: Any) -> None:
    overrides = [
        *("run_id=planted", "sweep.strategy=[autoregressive]", "sweep.batch_size=[1]", "load.gaps=false"),
        *("tracking=wandb", "tracking.mode=offline"),
    ]
    done = door(ddbench, *overrides)
    assert done.returncode == 0, done.stderr
    folder = ddbench.path("planted")
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    for secret in (TOKEN, PASSWORD):
        assert files_with(folder, secret) == []
        assert secret not in done.stdout + done.stderr
    (planted := folder / "planted.txt").write_text(f"x{TOKEN}y")  # this test would see one
    assert files_with(folder, TOKEN) == [planted]
    kept = yaml.safe_load((folder / "config.yaml").read_text())["tracking"]["tags"]
    refused = door(ddbench, *overrides, "tracking.tags=['${oc.env:MY_PASSWORD}',fine]")  # nor is one let in later
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines()[0].startswith("error: tracking.tags='(not shown)': no secret")
    assert PASSWORD not in refused.stderr
    assert yaml.safe_load((folder / "config.yaml").read_text())["tracking"]["tags"] == kept


def door(ddbench: Any, *overrides: str) -> subprocess.CompletedProcess[str]:
    """A command line with two secrets in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "ddbench", *ddbench.arguments, *overrides],
        cwd=ddbench.folder,
        env={**ddbench.environment, "HF_TOKEN": TOKEN, "MY_PASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_refusal_does_not_repeat_a_secret(ddbench: Any) -> None:
    ended = ddbench.run(f"+hub_token={CONFIGURED}")
    assert ended.code == 2
    assert ended.errors[0].startswith("error: hub_token='<hub_token hidden>': unknown key")
    assert CONFIGURED not in ended.out + ended.err
