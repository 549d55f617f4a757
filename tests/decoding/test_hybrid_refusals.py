"""Which models of recurrent layers are targets, and which are refused by name; what a layer must have and compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

from ddbench.decoding import ModelPair, Strategy, decode, load_pair
from ddbench.decoding.recurrent import _convolve, check_against_own
from ddbench.decoding.states import Dims, Links, Pass
from ddbench.decoding.target import check_target, delta_layers
from ddbench.errors import ConfigError
from ddbench.tree import ancestor_mask
from tests.decoding.conftest import make_dflash
from tests.decoding.hybrids import CONFIGS, HIDDEN, greedy, make_prompts

TINY = {"vocab_size": 24, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "MambaConfig": (TINY, "MambaMixer"),
    "Mamba2Config": ({**TINY, "num_heads": 4, "head_dim": 16, "n_groups": 1}, "Mamba2Mixer"),
    "FalconMambaConfig": (TINY, "FalconMambaMixer"),
    "RwkvConfig": ({**TINY, "attention_hidden_size": 32}, "Rwkv"),
    "RecurrentGemmaConfig": ({**TINY, "num_attention_heads": 2, "intermediate_size": 64}, "RecurrentGemma"),
    "KimiLinearConfig": ({**TINY, "num_attention_heads": 2, "num_key_value_heads": 2}, "KimiLinearDeltaAttention"),
    "MiniMaxConfig": (
        {
            **TINY,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 32,
            "num_local_experts": 2,
            "layer_types": ["linear_attention", "full_attention"],
        },
        "MiniMaxLightningAttention",
    ),
    "FalconH1Config": (
        {**TINY, "num_attention_heads": 2, "num_key_value_heads": 2, "mamba_d_ssm": 32, "mamba_n_heads": 2}
        | {"intermediate_size": 64, "mamba_d_head": 16, "mamba_d_state": 8},
        "state in FalconH1Mixer",  # of the attention beside it not a word
    ),
    "Lfm2Config": (
        {
            **TINY,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "layer_types": ["conv", "full_attention"],
        },
        "conv layers",
    ),
}


@pytest.mark.parametrize("config", REFUSED)
def test_other_recurrent_layers_are_refused_by_name(config: str) -> None:
    settings, said = REFUSED[config]
    model = AutoModelForCausalLM.from_config(getattr(transformers, config)(**settings))
    with pytest.raises(ConfigError, match=r"^target=") as caught:
        check_target(model)
    assert str(caught.value).endswith(said) or config in ("RwkvConfig", "RecurrentGemmaConfig", "Lfm2Config")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


class Lightning(nn.Module):
    """A recurrent mixer of no known kind, with the heads of an attention."""

    num_key_value_groups = 1


@pytest.mark.parametrize("place", [1, 2])
def test_another_recurrent_layer_beside_gated_delta_nets(place: int) -> None:
    """In a layer that is said to be recurrent, and beside the attention of one that is said to attend."""
    model = changed()
    layer = model.model.layers[place]
    if place == 2:
        layer.linear_attn = Lightning()
    else:
        layer.memory = nn.GRU(4, 4)
    with pytest.raises(ConfigError, match=f"keeps recurrent state in {'Lightning' if place == 2 else 'GRU'}$"):
        check_target(model)


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5"])
def test_a_model_of_a_hybrid_family_whose_layers_all_attend(kind: str) -> None:
    """It is a target as any other."""
    model = changed(kind, layer_types=["full_attention"] * 4)
    model.generation_config.eos_token_id = None
    assert not delta_layers(model)
    pair = ModelPair(model, None, make_dflash(), None, torch.device("cpu"), torch.float32)
    requests = make_prompts([1, 21, 5], [7, 4, 6])
    expected = [greedy(model, request) for request in requests]
    for strategy in (Strategy("autoregressive"), Strategy("ddtree", nodes=16)):
        assert [each.output_token_ids for each in decode(pair, strategy, requests, 2)] == expected, strategy
    other = changed(kind)
    other.config.layer_types = ["full_attention"] * 4  # what the config says is not taken for what is there
    assert list(delta_layers(other)) == [0, 2, 3]


def test_a_checkpoint_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    """Some of them the library itself does not load with the attention that trees need: its reason would be no help."""
    AutoModelForCausalLM.from_config(transformers.MambaConfig(**TINY)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="recurrent state in MambaMixer"):
        load_pair(tmp_path)


def changed(kind: str = "qwen3_5", **settings: Any) -> Any:
    """A hybrid that a test may take apart."""
    name, usual = CONFIGS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**usual, **settings})
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def test_a_layer_without_its_parts_is_refused() -> None:
    """As OLMo Hybrid's in transformers 5.12, which had a convolution each for queries, keys and values."""
    model = changed("olmo_hybrid")
    del model.model.layers[2].linear_attn.conv1d
    with pytest.raises(ConfigError, match="this one lacks conv1d"):
        check_target(model)


def test_a_layer_of_other_sizes_is_refused() -> None:
    model = changed()
    model.model.layers[0].linear_attn.conv1d = nn.Conv1d(80, 80, 4)
    with pytest.raises(ConfigError, match="a convolution of each of 80 channels"):
        check_target(model)
    model = changed()
    model.model.layers[0].linear_attn.conv1d.dilation = (2,)
    with pytest.raises(ConfigError, match=r"without gaps.*dilation="):
        check_target(model)
    model = changed()
    model.model.layers[0].linear_attn.activation = "gelu"
    with pytest.raises(ConfigError, match="silu activation, this one has gelu"):
        check_target(model)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_that_computes_something_else_is_refused(kind: str, dtype: torch.dtype) -> None:
    """The parts are all there; the gate, say, is taken from elsewhere."""
    model = changed(kind).to(dtype)
    layers = delta_layers(model)
    check_against_own("hybrid", layers, HIDDEN)
    layer = layers[0]
    own = layer.forward
    layer.forward = lambda hidden_states: own(hidden_states) + 0.1 * own(hidden_states.flip(-1))  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"this one's output is .* off"):
        check_against_own("hybrid", layers, HIDDEN)


def test_a_tree_is_convolved_in_float32() -> None:
    """In a model in bfloat16 too, as the kernel of a chain does: rounded once, at the end."""
    torch.manual_seed(0)
    conv = nn.Conv1d(64, 64, 4, groups=64, bias=False).to(torch.bfloat16)
    parents = torch.tensor([[-1, 0, 0, 2, 2, 4, 1]])
    links = Links.of(parents, ancestor_mask(parents))
    columns = torch.randn(1, 3 + 8, 64).to(torch.bfloat16)
    out = _convolve(conv, columns, Pass(0, False, None, links), Dims(2, 2, 16, 0, 4))
    window = columns[0, links.window(4)[0]].double()  # [tokens, 4, channels]
    exact = (window * conv.weight[:, 0].double().T).sum(1)
    assert out.dtype == torch.bfloat16
    assert bool(((out[0].double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6).all())
