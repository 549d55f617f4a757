"""What is said of the GPUs of a server that runs already: whose they are is not known, so all of them are looked at."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from experiments.settings import load_settings
from experiments.sweep import _environment
from tests.conf.test_compose import composed
from tests.experiments.doctor.test_doctor import MAX_Q, SMI


@pytest.mark.parametrize("visible", ["", "GPU-other"])
def test_all_cards_are_looked_at_for_a_running_server(
    visible: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process may see of them is its own matter, and none at all is no error."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(python=sys.executable, card=MAX_Q), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked = ("engine=sglang", "engine.url=http://127.0.0.1:1", "host.power_limit_w=600", "host.sku=Server")
    said = "\n".join(
        _environment(load_settings(composed("model=tiny_untrained", *asked), "id"), [], {})["host_warnings"]
    )
    for words in ("limited to 300 W", "Max-Q edition", "process 4242"):
        assert words in said
