"""How many weights a model has by its ``config.json``, where no files say: those of a server with random weights.

Dense decoders as Llama and Qwen have them: of every layer queries, keys, values and output projection (with biases
where the configuration has them), a gated MLP of three matrices, and two norms; Qwen3 norms queries and keys too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BIASED = ("qwen2",)  # queries, keys and values have biases without being told
NORMED = ("qwen3",)  # queries and keys have norms
DENSE = ("llama", "mistral", *BIASED, *NORMED)


def target_weights(config: Mapping[str, Any]) -> int:
    """Of a target: embeddings, the output head unless both are one, layers, last norm.

    Raises:
        ValueError: another architecture.
        KeyError: a dimension that is not told.
    """
    hidden, tables = int(config["hidden_size"]), 1 if config.get("tie_word_embeddings") else 2
    return tables * int(config["vocab_size"]) * hidden + _layers(config) + hidden


def drafter_weights(config: Mapping[str, Any]) -> int:
    """Of a DFlash drafter: the projection of the target's layers, layers, two norms. Embeddings and head are the
    target's. Raises as :func:`target_weights`."""
    hidden, taps = int(config["hidden_size"]), len(config["dflash_config"]["target_layer_ids"])
    return taps * hidden * hidden + _layers(config) + 2 * hidden


def _layers(config: Mapping[str, Any]) -> int:
    kind = config.get("model_type")
    if kind not in DENSE:
        raise ValueError(f"there are no weight files, and how many weights model type {kind} has is not known")
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or hidden // heads)
    queries, keys = heads * head, int(config.get("num_key_value_heads") or heads) * head
    attention = 2 * hidden * queries + 2 * hidden * keys
    biases = (queries + 2 * keys) if kind in BIASED or config.get("attention_bias") else 0
    biases += hidden if config.get("attention_bias") else 0
    norms = 2 * hidden + (2 * head if kind in NORMED else 0)
    return int(config["num_hidden_layers"]) * (
        attention + biases + 3 * hidden * int(config["intermediate_size"]) + norms
    )
