"""A target with its drafters, loaded and checked against each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from ddbench.decoding.recurrent import check_against_own
from ddbench.decoding.target import check_target, delta_layers, text_config
from ddbench.drafters import DFlashDrafter, Eagle3Drafter, load_dflash, load_eagle3, resolve_checkpoint
from ddbench.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ModelPair:
    """A Hugging Face causal LM (``attn_implementation="sdpa"``), its tokenizer, and the drafters that belong to it."""

    target: Any
    tokenizer: Any
    dflash: DFlashDrafter | None
    eagle: Eagle3Drafter | None
    device: torch.device
    dtype: torch.dtype

    @property
    def max_length(self) -> int | None:
        """Tokens of the target's context, or None if its config names none."""
        length = getattr(text_config(self.target), "max_position_embeddings", None)
        return int(length) if length else None


def load_pair(
    target: str | Path,
    dflash: str | Path | None = None,
    eagle: str | Path | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    revision: str | None = None,
    dflash_revision: str | None = None,
    eagle_revision: str | None = None,
    trust_remote_code: bool = False,
) -> ModelPair:
    """Loads a target and its drafters, each from a folder or a Hugging Face id with a revision.

    A hybrid's gated delta net is tried against what the layer computes itself.

    Raises:
        ConfigError: a checkpoint that is missing or unreadable, an unknown dtype or device, or a target that the
            reference engine cannot run (see :func:`ddbench.decoding.target.check_target`).
        DrafterMismatch: a drafter that does not belong to the target.
    """
    where, precision = _device(device), _dtype(dtype)
    folder = resolve_checkpoint("target", target, revision)
    model, tokenizer = _load_target(target, folder, where, precision, trust_remote_code)
    check_target(model)
    config = text_config(model)
    if recurrent := delta_layers(model):
        check_against_own(type(model).__name__, recurrent, config.hidden_size)
    settings: dict[str, Any] = {"target_config": config, "device": where, "dtype": precision}
    block_drafter = None if dflash is None else load_dflash(dflash, dflash_revision, **settings)
    step_drafter = None if eagle is None else load_eagle3(eagle, eagle_revision, **settings)
    if step_drafter is not None:
        _share_embedding(step_drafter, model.get_input_embeddings())
    return ModelPair(model, tokenizer, block_drafter, step_drafter, where, precision)


def _load_target(
    name: str | Path, folder: Path, device: torch.device, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if "scaled_dot_product_attention" in str(error):  # a recurrent model has no such attention: name what it has
            with torch.device("meta"):
                config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
                delta_layers(AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code))
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            "target", str(name), f"a causal LM with its tokenizer that transformers loads ({reason})"
        ) from error
    return model.to(device).eval(), tokenizer


def _share_embedding(drafter: Eagle3Drafter, embedding: Any) -> None:
    """Drops a drafter's own token embeddings when they are the target's: half of a large drafter's memory."""
    own, shared = getattr(drafter, "embed_tokens", None), embedding.weight
    if isinstance(own, nn.Embedding) and own.weight.shape == shared.shape and torch.equal(own.weight, shared):
        del drafter.embed_tokens


def _device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ConfigError("device", str(device), "a torch device such as cpu or cuda") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", str(device), "cpu, since torch sees no CUDA device here")
    return where


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    return DTYPES[dtype]
