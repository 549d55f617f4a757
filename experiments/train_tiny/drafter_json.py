"""What the ``config.json`` of every drafter takes from its target."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


def shared_json(target: PreTrainedModel, intermediate_size: int, layers: int) -> dict[str, Any]:
    """Dimensions, positions and vocabulary of a drafter that fits ``target``."""
    base = target.config
    return {
        "hidden_size": base.hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": base.num_attention_heads,
        "num_key_value_heads": base.num_key_value_heads,
        "head_dim": getattr(base, "head_dim", None) or base.hidden_size // base.num_attention_heads,
        "hidden_act": "silu",
        "rms_norm_eps": base.rms_norm_eps,
        "rope_theta": base.rope_parameters["rope_theta"],
        "max_position_embeddings": base.max_position_embeddings,
        "vocab_size": base.vocab_size,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
