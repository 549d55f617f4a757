"""Bytes of weights and of bandwidth, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.roofline import Roofline, read_bytes, roofline
from experiments.settings import Settings, load_settings

CONF = Path(__file__).resolve().parents[2] / "conf"
HEADER = {
    "__metadata__": {"format": "pt"},
    "model.embed_tokens.weight": {"dtype": "BF16", "shape": [100, 8]},
    "model.layers.0.mlp.weight": {"dtype": "F32", "shape": [8, 16]},
    "model.layers.0.q.weight": {"dtype": "F8_E4M3", "shape": [8, 8]},
    "model.layers.0.q.scale": {"dtype": "F32", "shape": []},
    "lm_head.weight": {"dtype": "BF16", "shape": [100, 8]},
    "visual.patch.weight": {"dtype": "BF16", "shape": [1000]},
}


def settings(*overrides: str) -> Settings:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)
    return load_settings(config, "id")


def test_bytes_by_hand() -> None:
    # 128 + 1 + 800 elements of 2 bytes, 64 of one; the embeddings are read a row a token, and images by nobody.
    assert read_bytes(HEADER, tied=False, itemsize=2) == 2 * (128 + 1 + 800) + 64
    head = {name: tensor for name, tensor in HEADER.items() if name != "lm_head.weight"}
    assert read_bytes(head, tied=True, itemsize=4) == 4 * (128 + 1 + 800) + 64


def test_the_tiny_target_in_float32() -> None:
    """Tied embeddings: every parameter is read, four bytes each."""
    model = settings("model=tiny").model
    assert roofline(settings("model=tiny"), None) == Roofline(4 * model.target.params, None)


def test_bandwidth_as_the_host_says() -> None:
    said = "host.memory_bytes_per_s=1_000_000"
    assert roofline(settings(said, "engine.device=cuda"), None).gpu_bytes_per_s == 1_000_000
    assert roofline(settings(said), None).gpu_bytes_per_s is None  # no GPU is used
    assert settings("host=pro6000").host.memory_bytes_per_s == 1_792_000_000_000


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=tiny_untrained",),
        ("model=qwen3_coder_30b_a3b",),  # a mixture of experts
        ("model=tiny", "engine=vllm", "engine.flags.quantization=fp8"),
        ("model=tiny", "engine=vllm", "engine.url=http://somewhere:1"),
        ("model=qwen3_8b", "model.target.source=nobody/has-this", "model.target.revision=null"),
    ],
)
def test_what_is_not_known_is_none(overrides: tuple[str, ...]) -> None:
    assert roofline(settings(*overrides), None).target_weight_bytes is None


@pytest.mark.gpu
def test_a_gpu_says_its_bandwidth() -> None:
    found = roofline(settings("engine.device=cuda"), None).gpu_bytes_per_s
    assert found is not None
    assert 1e11 < found < 2e13
