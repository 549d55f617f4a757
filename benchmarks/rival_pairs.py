"""Model pairs for ``rival_speed.py``: from checkpoints, or random ones of a published pair's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ddbench.decoding import ModelPair, load_pair
from ddbench.drafters import DFlashConfig, DFlashDrafter, load_dflash, resolve_checkpoint, save_drafter
from ddbench.errors import ConfigError

# Sizes of Qwen3 targets from their config.json; drafters as published for them: five layers, five taps, blocks of 16.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_4b": {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "qwen3_8b": {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    "small": {"hidden_size": 128, "intermediate_size": 256, "tie_word_embeddings": True},
}
LARGE = {"vocab_size": 151936, "layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
SMALL = {"vocab_size": 512, "layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
TAPS = {36: [1, 9, 17, 25, 33], 8: [1, 2, 4, 5, 6]}


def checkpoint_pair(target: str, dflash: str, device: str, dtype: str) -> tuple[ModelPair, Path]:
    """A pair, and the folder of its drafter."""
    folder = resolve_checkpoint("--dflash", dflash)
    return load_pair(target, folder, None, device, dtype), folder


def untrained_pair(shape: str, scratch: Path, device: str, dtype: str) -> tuple[ModelPair, Path]:
    """The same with random weights and without a tokenizer; the drafter is written into ``scratch``.

    Raises:
        ConfigError: a shape that is not there.
    """
    from transformers import AutoModelForCausalLM, Qwen3Config

    if shape not in SHAPES:
        raise ConfigError("--untrained", shape, f"one of {', '.join(SHAPES)}")
    sizes = SMALL if shape == "small" else LARGE
    layers, vocab = int(sizes["layers"]), int(sizes["vocab_size"])
    dims = {key: value for key, value in sizes.items() if key != "layers"}
    common = {**dims, **SHAPES[shape], "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
    where, precision = torch.device(device), getattr(torch, dtype)
    torch.manual_seed(0)
    config = Qwen3Config(
        **{key: value for key, value in common.items() if key != "rope_theta"},
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        num_hidden_layers=layers,
    )
    with where:
        target = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=precision).eval()
        block = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": 16,
            "num_target_layers": layers,
            "num_hidden_layers": 5,
            "dflash_config": {"mask_token_id": vocab - 1, "target_layer_ids": TAPS[layers]},
        }
        drafter = DFlashDrafter(DFlashConfig.from_json({**common, **block}))
    save_drafter(drafter.to(precision), scratch)
    del drafter
    shared = load_dflash(scratch, target_config=target.config, device=where, dtype=precision)
    return ModelPair(target, None, shared, None, where, precision), scratch
