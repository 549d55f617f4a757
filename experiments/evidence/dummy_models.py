"""Checkpoints without weights, of the dimensions of Qwen3-8B, its block-16 DFlash drafter and an EAGLE-3 drafter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runners.sglang.parameters import drafter_weights, target_weights

LAYERS, DRAFT_LAYERS, KV_HEADS, HEAD = 36, 5, 8, 128
TAPS = [1, 9, 17, 25, 33]
MASK = 151_669
BLOCK = 16
EAGLE_WORDS = 32_000  # of the EAGLE-3 drafter's own, smaller vocabulary

SHAPE: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
    "model_type": "qwen3",
}


def write_dummy_pair(folder: Path) -> None:
    """Makes ``folder/target``, ``folder/dflash`` and ``folder/eagle3``, a config.json in each."""
    for name, config in (("target", _target()), ("dflash", _drafter()), ("eagle3", _eagle())):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1))


def target_parameters() -> int:
    """Weights of the target: embeddings, head, and every layer's attention, MLP and norms."""
    return target_weights(_target())


def drafter_parameters() -> int:
    """Weights of the drafter: projection of the taps, layers, norms. Embeddings and head are the target's."""
    return drafter_weights(_drafter())


def _target() -> dict[str, Any]:
    own = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": LAYERS, "max_window_layers": LAYERS}
    return SHAPE | own


def _drafter() -> dict[str, Any]:
    return SHAPE | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": DRAFT_LAYERS,
        "max_window_layers": DRAFT_LAYERS,
        "layer_types": ["full_attention"] * DRAFT_LAYERS,
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS},
    }


def _eagle() -> dict[str, Any]:
    return SHAPE | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "max_window_layers": 1,
        "draft_vocab_size": EAGLE_WORDS,
    }
