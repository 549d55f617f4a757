"""Which checkpoints are used at all: those with safetensors, and no code of their own unless asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddbench.errors import ConfigError
from experiments.models import resolve
from experiments.settings import ModelSettings, TargetSettings


def model(source: Path | str) -> ModelSettings:
    target = TargetSettings(str(source), None, "none", 1, 1, 1, 1, 1)
    return ModelSettings("m", "checkpoint", "raw", None, 64, 1.0, target, None, None)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_folder_with_pickled_weights_alone_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConfigError) as refused:
        resolve(model(tmp_path), ["target"])
    line = str(refused.value)
    assert line.startswith(f"model.target.source={str(tmp_path)!r}: a checkpoint with safetensors")
    assert "\n" not in line


def test_code_of_a_checkpoint_is_off_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    asked = model(tmp_path)
    assert resolve(asked, ["target"])[0].trust_remote_code is False
    assert resolve(replace(asked, trust_remote_code=True), ["target"])[0].trust_remote_code is True


def test_a_hub_model_with_pickled_weights_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it lies in the hub's cache, which is all that is looked at without a network."""
    from huggingface_hub import constants

    from experiments import models

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commit = "0" * 40
    for name, file in (("bad", "pytorch_model.bin"), ("good", "model.safetensors")):
        folder = tmp_path / f"models--made--{name}" / "snapshots" / commit
        folder.mkdir(parents=True)
        for each in ("config.json", file):
            (folder / each).write_text("{}")
    models.pickled.cache_clear()
    assert models.pickled("made/good", commit) is None
    assert (models.pickled("made/bad", commit) or "").startswith("made/bad is not a checkpoint with safetensors")
    asked = model("made/bad")
    with pytest.raises(ConfigError, match=r"model.target.source='made/bad': a checkpoint with safetensors"):
        resolve(replace(asked, target=replace(asked.target, revision=commit)), ["target"])
