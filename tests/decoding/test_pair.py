"""Loading a target with its drafters from folders, and the errors of a pair that cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from ddbench.decoding import ModelPair, Strategy, decode, load_pair
from ddbench.drafters import save_drafter
from ddbench.errors import ConfigError, DrafterMismatch


@pytest.fixture(scope="module")
def folder(pair: ModelPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy pair as three checkpoints."""
    root = tmp_path_factory.mktemp("pair")
    pair.target.save_pretrained(root / "target")
    words = Tokenizer(models.WordLevel({str(index): index for index in range(24)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(root / "target")
    for name in ("dflash", "eagle"):
        raw = {**getattr(pair, name).config.raw}
        raw["architectures"] = ["DFlashDraftModel" if name == "dflash" else "LlamaForCausalLMEagle3"]
        drafter = type(getattr(pair, name))(type(getattr(pair, name).config).from_json(raw))
        drafter.load_state_dict(getattr(pair, name).state_dict())
        save_drafter(drafter, root / name)
    return root


def test_a_loaded_pair_decodes_the_same(
    pair: ModelPair, toys: SimpleNamespace, folder: Path, strategy: Strategy
) -> None:
    loaded = load_pair(folder / "target", folder / "dflash", folder / "eagle")
    assert loaded.tokenizer.convert_tokens_to_ids("7") == 7
    assert loaded.max_length == 256
    requests = toys.requests(3, 12)
    expected, out = decode(pair, strategy, requests, 2), decode(loaded, strategy, requests, 2)
    for one, other in zip(expected, out, strict=True):
        assert one.output_token_ids == other.output_token_ids
        assert [each.accepted_raw for each in one.rounds] == [each.accepted_raw for each in other.rounds]


def test_precision(folder: Path) -> None:
    loaded = load_pair(folder / "target", folder / "dflash", dtype="bfloat16")
    assert loaded.dflash is not None
    assert loaded.eagle is None
    assert loaded.target.dtype == loaded.dflash.fc.weight.dtype == torch.bfloat16


def test_embeddings_equal_to_the_targets_are_shared(pair: ModelPair, folder: Path, tmp_path: Path) -> None:
    assert pair.eagle is not None
    from safetensors.torch import load_file, save_file

    table = pair.target.get_input_embeddings().weight
    for name, own in (("same", table.clone()), ("other", table + 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text((folder / "eagle" / "config.json").read_text())
        state = load_file(folder / "eagle" / "model.safetensors")
        save_file({**state, "embed_tokens.weight": own}, tmp_path / name / "model.safetensors")
        eagle = load_pair(folder / "target", eagle=tmp_path / name).eagle
        assert hasattr(eagle, "embed_tokens") == (name == "other")


def test_own_embeddings_are_used(pair: ModelPair, toys: SimpleNamespace) -> None:
    """With embeddings that differ from the target's, drafts differ; the text does not."""
    changed = toys.pair()
    torch.manual_seed(0)
    changed.eagle.add_module("embed_tokens", torch.nn.Embedding(24, 48))
    requests = toys.requests(5, 20)
    strategy = Strategy("eagle", depth=4)
    own, shared = decode(changed, strategy, requests, 5), decode(pair, strategy, requests, 5)
    assert [each.output_token_ids for each in own] == [each.output_token_ids for each in shared]
    accepted = [[[one.accepted_raw for one in each.rounds] for each in out] for out in (own, shared)]
    assert accepted[0] != accepted[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"target": "/no/such/folder"}, "target='/no/such/folder': an existing folder"),
        ({"dflash": "/no/such/folder"}, "dflash='/no/such/folder': an existing folder"),
        ({"eagle": "./nowhere"}, "eagle='./nowhere': an existing folder"),
        ({"dtype": "float64"}, "dtype='float64': one of float32, bfloat16, float16"),
        ({"device": "abacus"}, "device='abacus': a torch device"),
    ],
)
def test_what_cannot_be_loaded(folder: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_pair(**{"target": folder / "target", **arguments})
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_cuda_where_there_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        load_pair(folder / "target", device="cuda")


def test_drafters_swapped(folder: Path) -> None:
    with pytest.raises(DrafterMismatch, match="found: LlamaForCausalLMEagle3"):
        load_pair(folder / "target", dflash=folder / "eagle")
    with pytest.raises(DrafterMismatch, match="found: DFlashDraftModel"):
        load_pair(folder / "target", eagle=folder / "dflash")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^target=.*a causal LM with its tokenizer"):
        load_pair(tmp_path)
