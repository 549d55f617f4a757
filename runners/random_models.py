"""Random models of the tiny pair's kind, made from a seed: for tests of the machinery, without any file shipped."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runners.base import ModelFiles

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 320, 64, 4, 2, 1, 64, 128
END_TOKEN, MASK_TOKEN = 256, 257
BLOCK_SIZE = 8


@dataclass(frozen=True)
class RandomPair:
    """Folders in the formats of the real checkpoints."""

    target: Path
    dflash: Path
    eagle: Path


def with_random(model: ModelFiles, scratch: Path, context_length: int) -> ModelFiles:
    """The files of a model; those of a random one are written into ``scratch``."""
    if model.random_seed is None:
        return model
    made = write_random_pair(scratch, model.random_seed, context_length)
    dflash, eagle = model.dflash and str(made.dflash), model.eagle and str(made.eagle)
    return replace(model, target=str(made.target), dflash=dflash, eagle=eagle)


def write_random_pair(folder: Path, seed: int, context_length: int) -> RandomPair:
    """Writes a Qwen3 target with a byte tokenizer, a DFlash drafter and an EAGLE-3 drafter, all untrained.

    The target's logits are sharpened, so that greedy text has no near-ties that another batch shape could turn over.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from ddbench.drafters import DFlashConfig, DFlashDrafter, Eagle3Config, Eagle3Drafter, save_drafter

    pair = RandomPair(folder / "target", folder / "dflash", folder / "eagle3")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        common = _common(context_length)
        config = Qwen3Config(**common, num_hidden_layers=LAYERS, eos_token_id=END_TOKEN, tie_word_embeddings=False)
        target = Qwen3ForCausalLM(config)
        torch.nn.init.normal_(target.lm_head.weight, std=8.0 / math.sqrt(HIDDEN))
        target.save_pretrained(pair.target)
        _byte_tokenizer().save_pretrained(pair.target)
        block = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": BLOCK_SIZE,
            "num_target_layers": LAYERS,
            "dflash_config": {"mask_token_id": MASK_TOKEN, "target_layer_ids": [0, LAYERS - 1]},
        }
        save_drafter(DFlashDrafter(DFlashConfig.from_json({**common, **block, "num_hidden_layers": 1})), pair.dflash)
        step = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "draft_vocab_size": VOCAB,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        }
        save_drafter(Eagle3Drafter(Eagle3Config.from_json({**common, **step, "num_hidden_layers": 1})), pair.eagle)
    return pair


def _common(context_length: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": context_length,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    }


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|mask|>"])  # END_TOKEN and MASK_TOKEN, the first after the bytes
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", mask_token="<|mask|>")
