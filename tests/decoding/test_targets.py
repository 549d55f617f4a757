"""Which Hugging Face models the engine drives, exactly, and which it refuses by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from ddbench.decoding import ModelPair, Strategy, decode
from ddbench.decoding.target import check_target
from ddbench.errors import ConfigError

NO_TOKENS = {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
BASE = {
    **NO_TOKENS,
    "vocab_size": 24,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_hidden_layers": 4,
    "tie_word_embeddings": False,
}
GPT2 = {**NO_TOKENS, "vocab_size": 24, "n_embd": 48, "n_layer": 4, "n_head": 4, "n_positions": 256}
NEOX = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
OPT = {**NEOX, "ffn_dim": 64, "word_embed_proj_dim": 48}
MOE = {**BASE, "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

LATENT = {**BASE, "num_key_value_heads": 4, "n_routed_experts": 8, "moe_intermediate_size": 32, "q_lora_rank": 16}

DRIVEN = {
    "GPT2Config": GPT2,  # learned positions, layers under another name
    "OPTConfig": OPT,  # positions with an offset, the decoder one level deeper
    "MistralConfig": {**BASE, "sliding_window": None},
    "GemmaConfig": {**BASE, "head_dim": 12},  # scaled embeddings
    "CohereConfig": BASE,  # scaled logits, interleaved rotary halves
    "Phi3Config": BASE,  # fused projections
    "GPTNeoXConfig": NEOX,  # rotary on a part of the head
    "Qwen3MoeConfig": MOE,
}
ROPE = {"rope_theta": 1e4}
REFUSED = {
    "Gemma2Config": ({**BASE, "head_dim": 12}, "sliding_attention layers"),
    "MistralConfig": ({**BASE, "sliding_window": 64}, "a window of 64"),
    "Llama4TextConfig": ({**BASE, "head_dim": 12}, "chunked_attention layers"),
    "MambaConfig": ({"vocab_size": 24, "hidden_size": 48, "num_hidden_layers": 2}, "recurrent state"),
    "DeepseekV3Config": (LATENT, "latent attention"),
    "FalconConfig": ({**NEOX, "alibi": True}, "ALiBi"),
    "LlamaConfig": ({**BASE, "rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 2.0}}, "(dynamic) change"),
}


def build(config: str, settings: dict[str, Any], attention: str | None = "sdpa") -> Any:
    torch.manual_seed(0)
    options = {} if attention is None else {"attn_implementation": attention}
    model = AutoModelForCausalLM.from_config(getattr(transformers, config)(**settings), **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.parametrize("config", DRIVEN)
def test_driven_exactly(pair: ModelPair, toys: SimpleNamespace, config: str) -> None:
    """Same dimensions as the toy target, so its drafters draft for this one too: badly, and still losslessly."""
    model = build(config, DRIVEN[config])
    other = replace(pair, target=model)
    requests = toys.requests(6, 16)
    expected = [toys.reference(model, request) for request in requests]
    for strategy in (
        Strategy("autoregressive"),
        Strategy("ddtree", nodes=40),
        Strategy("eagle", width=3, depth=3, nodes=20),
    ):
        assert [each.output_token_ids for each in decode(other, strategy, requests, 4)] == expected


@pytest.mark.parametrize("config", REFUSED)
def test_refused_by_name(config: str) -> None:
    settings, said = REFUSED[config]
    with pytest.raises(ConfigError, match=r"^target=") as caught:
        check_target(build(config, settings, attention=None))
    assert said in str(caught.value)


def test_refuses_an_encoder_decoder() -> None:
    config = transformers.T5Config(
        vocab_size=24, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(ConfigError, match="encoder-decoder"):
        check_target(transformers.T5ForConditionalGeneration(config))


def test_refuses_attention_without_masks(toys: SimpleNamespace) -> None:
    with pytest.raises(ConfigError, match="attn_implementation='sdpa'"):
        check_target(build("Qwen3Config", {**BASE, "head_dim": 12}, attention="eager"))


def test_hooks_are_removed(pair: ModelPair, toys: SimpleNamespace) -> None:
    before = count_hooks(pair.target)
    decode(pair, Strategy("dflash"), toys.requests(2, 4), 2)
    assert count_hooks(pair.target) == before


def count_hooks(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_request_may_fill_the_context(toys: SimpleNamespace) -> None:
    """Drafted positions then reach beyond it; what they compute is discarded, and learned positions do not fail."""
    pair = toys.pair()
    model = build("GPT2Config", {**GPT2, "n_positions": 40})
    other = replace(pair, target=model)
    request = replace(toys.requests(4)[3], max_new_tokens=29)
    assert len(request.token_ids) + request.max_new_tokens == 40
    expected = toys.reference(model, request)
    for strategy in (Strategy("autoregressive"), Strategy("dflash"), Strategy("ddtree", nodes=24)):
        assert decode(other, strategy, [request], 1)[0].output_token_ids == expected
