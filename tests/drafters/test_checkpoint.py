"""Published checkpoint layouts are read back exactly, and what does not belong to the target is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config

from ddbench.drafters import (
    DFlashConfig,
    DFlashDrafter,
    Eagle3Config,
    Eagle3Drafter,
    load_dflash,
    load_eagle3,
    save_drafter,
)
from ddbench.errors import ConfigError, DrafterMismatch

TARGET = Qwen3Config(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)

LAYER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "vocab_size": 64,
    "hidden_act": "silu",
}
DFLASH = {
    **LAYER,
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_target_layers": 6,
    "block_size": 8,
    "layer_types": ["full_attention", "full_attention"],
    "sliding_window": None,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 2, 4]},
}
EAGLE = {
    **LAYER,
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "draft_vocab_size": 16,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
}

Edit = Callable[[dict[str, Any]], None]


def write_dflash(folder: Path, edit: Edit | None = None, weights: dict[str, Tensor | None] | None = None) -> Path:
    """A random DFlash checkpoint whose config and weights are then edited; a weight of None is removed."""
    torch.manual_seed(0)
    save_drafter(DFlashDrafter(DFlashConfig.from_json(DFLASH)), folder)
    return _edited(folder, DFLASH, edit, weights)


def write_eagle(folder: Path, edit: Edit | None = None, weights: dict[str, Tensor | None] | None = None) -> Path:
    torch.manual_seed(1)
    drafter = Eagle3Drafter(Eagle3Config.from_json(EAGLE))
    assert drafter.d2t is not None
    drafter.d2t += 3 * torch.arange(16)  # draft token i is target token 4 i
    save_drafter(drafter, folder)
    return _edited(folder, EAGLE, edit, weights)


def _edited(folder: Path, config: dict[str, Any], edit: Edit | None, weights: dict[str, Tensor | None] | None) -> Path:
    changed: dict[str, Any] = json.loads(json.dumps(config))
    if edit is not None:
        edit(changed)
    (folder / "config.json").write_text(json.dumps(changed))
    state = load_file(folder / "model.safetensors")
    for name, tensor in (weights or {}).items():
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    save_file(state, folder / "model.safetensors")
    return folder


def test_dflash_layout_is_the_published_one(tmp_path: Path) -> None:
    names = set(load_file(write_dflash(tmp_path) / "model.safetensors"))
    layer = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
        "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm",
        "post_attention_layernorm",
    }  # fmt: skip
    expected = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    expected |= {f"layers.{index}.{name}.weight" for index in range(2) for name in layer}
    assert names == expected


def test_eagle_layout_is_the_published_one(tmp_path: Path) -> None:
    names = set(load_file(write_eagle(tmp_path) / "model.safetensors"))
    layer = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
        "mlp.down_proj", "input_layernorm", "hidden_norm", "post_attention_layernorm",
    }  # fmt: skip
    assert names == {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"} | {
        f"midlayer.{name}.weight" for name in layer
    }


def test_dflash_round_trip(tmp_path: Path) -> None:
    folder = write_dflash(tmp_path)
    drafter = load_dflash(folder, target_config=TARGET)
    assert drafter.config.block_size == 8
    assert drafter.config.mask_token_id == 63
    assert drafter.config.target_layer_ids == (1, 2, 4)
    stored = load_file(folder / "model.safetensors")
    assert drafter.state_dict().keys() == stored.keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in drafter.state_dict().items())


def test_eagle_round_trip(tmp_path: Path) -> None:
    drafter = load_eagle3(write_eagle(tmp_path), target_config=TARGET)
    assert drafter.config.taps(6) == (1, 3, 4)
    assert drafter.to_target_ids(torch.arange(16)).tolist() == list(range(0, 64, 4))
    assert not hasattr(drafter, "embed_tokens")


def test_eagle_keeps_embeddings_of_its_own(tmp_path: Path) -> None:
    own = torch.randn(64, 32)
    drafter = load_eagle3(write_eagle(tmp_path, weights={"embed_tokens.weight": own}), target_config=TARGET)
    assert torch.equal(drafter.get_submodule("embed_tokens").weight, own)


def test_sharded_checkpoint(tmp_path: Path) -> None:
    folder = write_dflash(tmp_path)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: state[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    drafter = load_dflash(folder, target_config=TARGET)
    assert all(torch.equal(tensor, state[name]) for name, tensor in drafter.state_dict().items())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_not_read(tmp_path: Path, name: str) -> None:
    """Reading them could run code; the file here would leave a trace if it were."""
    folder, trace = write_eagle(tmp_path), tmp_path / "trace"
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"cposix\nsystem\n(S'touch " + str(trace).encode() + b"'\ntR.")
    with pytest.raises(ConfigError, match="a folder with safetensors weights: pickled ones are not read"):
        load_eagle3(folder)
    assert not trace.exists()


def test_block_size_of_dflash_config_wins(tmp_path: Path) -> None:
    folder = write_dflash(tmp_path, lambda config: config["dflash_config"].update(block_size=4))
    assert load_dflash(folder).config.block_size == 4


def test_bfloat16(tmp_path: Path) -> None:
    assert load_dflash(write_dflash(tmp_path), dtype=torch.bfloat16).fc.weight.dtype == torch.bfloat16


def set_key(key: str, value: Any) -> Edit:
    return lambda config: config.update({key: value})


def set_special(key: str, value: Any) -> Edit:
    return lambda config: config["dflash_config"].update({key: value})


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (set_key("vocab_size", 128), "vocabulary of 64, the drafter's is 128"),
        (set_key("hidden_size", 64), "hidden size of 32, the drafter's is 64"),
        (set_key("num_target_layers", 36), "number of target layers of 6, the drafter's is 36"),
        (set_special("target_layer_ids", [1, 2, 6]), "taps inside the target's 6 layers"),
        (set_special("target_layer_ids", [1, 2]), "fc.weight of shape (32, 64), not (32, 96)"),
        (set_special("mask_token_id", 64), "a mask token inside the target's vocabulary of 64"),
        (set_key("num_key_value_heads", 3), "attention heads in equal groups, not 4 over 3"),
        (set_key("num_attention_heads", 8), "q_proj.weight of shape (64, 32), not (32, 32)"),
        (set_key("block_size", 1), "a block_size of at least 2"),
        (set_key("hidden_act", "gelu"), "the silu activation"),
        (set_key("layer_types", ["full_attention", "sliding_attention"]), "has sliding_attention"),
        (set_special("causal", True), "causal unset"),
        (set_special("final_logit_softcapping", 30.0), "final_logit_softcapping unset"),
        (set_special("sample_from_anchor", True), "sample_from_anchor unset"),
        (set_special("projector_type", "domino"), "this is a Domino checkpoint"),
        (set_special("gru_hidden_dim", 16), "this is a Domino checkpoint"),
        (set_key("markov_rank", 256), "this is a DSpark checkpoint"),
        (set_special("selector_rank", 256), "this is a DFlash 2 checkpoint"),
        (set_special("conv_kernel_size", 2), "this is a DFlash 2 checkpoint"),
        (set_key("architectures", ["Qwen3ForCausalLM"]), "architecture DFlashDraftModel, found: Qwen3ForCausalLM"),
        (set_key("architectures", None), "found: none named"),
        (set_key("speculators_model_type", "dflash"), "speculators format"),
        (lambda config: config.pop("dflash_config"), "key 'dflash_config'"),
        (lambda config: config["dflash_config"].pop("mask_token_id"), "key 'mask_token_id'"),
    ],
)
def test_dflash_that_does_not_belong(tmp_path: Path, edit: Edit, said: str) -> None:
    with pytest.raises(DrafterMismatch) as caught:
        load_dflash(write_dflash(tmp_path, edit), target_config=TARGET)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"layers.1.mlp.up_proj.weight": None}, "layers.1.mlp.up_proj.weight missing"),
        ({"extra.weight": torch.zeros(1)}, "extra.weight unexpected"),
        ({"prefix_gru.weight_ih_l0": torch.zeros(3, 3)}, "this is a Domino checkpoint (it has prefix_gru"),
        ({"markov_head.w1.weight": torch.zeros(3, 3)}, "this is a DSpark checkpoint"),
        ({"selector.context.weight": torch.zeros(3, 3)}, "this is a DFlash 2 checkpoint"),
    ],
)
def test_dflash_with_other_weights(tmp_path: Path, weights: dict[str, Tensor | None], said: str) -> None:
    with pytest.raises(DrafterMismatch) as caught:
        load_dflash(write_dflash(tmp_path, weights=weights), target_config=TARGET)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "weights", "said"),
    [
        (set_key("vocab_size", 128), {}, "vocabulary of 64, the drafter's is 128"),
        (set_key("target_hidden_size", 64), {}, "hidden size of 32, the drafter's is 64"),
        (set_key("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}), {}, "taps inside"),
        (set_key("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, 3]}), {}, "three tapped layers"),
        (set_key("draft_vocab_size", 65), {}, "a draft vocabulary inside the target's"),
        (set_key("architectures", ["LlamaForCausalLMEagle"]), {}, "found: LlamaForCausalLMEagle"),
        (None, {"d2t": None}, "a d2t table for its draft vocabulary"),
        (None, {"d2t": torch.full((16,), 60)}, "a d2t table of distinct tokens below 64"),
        (None, {"t2d": torch.zeros(64, dtype=torch.bool)}, "d2t and t2d tables that agree"),
        (None, {"midlayer.hidden_norm.weight": None}, "midlayer.hidden_norm.weight missing"),
        (None, {"embed_tokens.weight": torch.zeros(64, 16)}, "embed_tokens of shape (64, 32)"),
        (None, {"fc.bias": torch.zeros(32)}, "fc.bias unexpected"),
    ],
)
def test_eagle_that_does_not_belong(
    tmp_path: Path, edit: Edit | None, weights: dict[str, Tensor | None], said: str
) -> None:
    with pytest.raises(DrafterMismatch) as caught:
        load_eagle3(write_eagle(tmp_path, edit, weights), target_config=TARGET)
    assert said in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^dflash='.*nowhere': an existing folder"):
        load_dflash(tmp_path / "nowhere")


def test_folder_without_config_or_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"readable config\.json"):
        load_dflash(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(DFLASH))
    with pytest.raises(ConfigError, match="safetensors weights"):
        load_dflash(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ConfigError, match="readable safetensors weights"):
        load_dflash(tmp_path)


def test_hub_id_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network: an id that is not cached is one clear line that names the revision."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        load_dflash("nobody/no-such-drafter", revision="0123abc")
    assert "at revision 0123abc that is cached or can be fetched" in str(caught.value)
    assert "\n" not in str(caught.value)
