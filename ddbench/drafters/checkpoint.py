"""Reading drafters from the checkpoints their authors publish, and refusing those that do not belong to the target.

A checkpoint is a folder, or a Hugging Face id with an optional revision: ``config.json`` and safetensors, one file or
shards with an index. Pickled weights can run code and are never read (docs/security.md has how to convert them).
Several later drafters keep DFlash's architecture name or weights and add a correction head; run as plain DFlash they
draft almost nothing right, so they are refused by name (Domino, DSpark, DFlash 2, LiLiCorr).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ddbench.drafters.dflash import DFlashConfig, DFlashDrafter
from ddbench.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from ddbench.errors import ConfigError, DrafterMismatch

C = TypeVar("C")

ALLOWED = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")  # what is downloaded of a checkpoint

DFLASH_ARCHITECTURES = ("DFlashDraftModel",)
EAGLE3_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")

# Config keys (top level or in dflash_config) and weight name parts that tell a DFlash descendant from DFlash.
_DESCENDANT_KEYS = {
    "Domino": ("gru_hidden_dim", "pure_draft_prefix_len", "shift_label"),
    "DSpark": ("markov_rank", "markov_head_type", "confidence_head_alpha", "confidence_head_with_markov"),
    "DFlash 2": ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size"),
    "LiLiCorr": ("lilicorr_config", "lilicorr"),
}
_DESCENDANT_WEIGHTS = {
    "Domino": ("prefix_gru", "gru.", "causal_head"),
    "DSpark": ("markov", "confidence_head"),
    "DFlash 2": ("selector", "conv"),
    "LiLiCorr": ("lilicorr",),
}
# dflash_config settings that change the forward pass, with the one value that this implementation runs.
_NEUTRAL_SETTINGS: dict[str, tuple[object, ...]] = {
    "causal": (False, None),
    "sample_from_anchor": (False, None),
    "output_multiplier": (1, 1.0, None),
    "final_logit_softcapping": (None,),
    "input_embedding_scale": (1, 1.0, None),
}


def load_dflash(
    source: str | Path,
    revision: str | None = None,
    *,
    target_config: Any | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> DFlashDrafter:
    """Reads a DFlash drafter and checks it against the target.

    Args:
        source: a folder or a Hugging Face id.
        revision: branch, tag or commit, for an id.
        target_config: the target's Hugging Face text config; None checks the checkpoint by itself only.

    Raises:
        ConfigError: the checkpoint cannot be found or read.
        DrafterMismatch: it is not plain DFlash, or does not belong to the target.
    """
    folder = resolve_checkpoint("dflash", source, revision)
    raw = _read_config("dflash", folder)
    weights = _read_weights("dflash", folder)
    _check_architecture("dflash", source, raw, DFLASH_ARCHITECTURES)
    _refuse_descendants(source, raw, weights)
    config = _parse("dflash", source, raw, DFlashConfig.from_json)
    _check_layers("dflash", source, raw, config.num_layers)
    for key, neutral in _NEUTRAL_SETTINGS.items():
        value = raw["dflash_config"].get(key, raw.get(key))
        if value not in neutral:
            raise DrafterMismatch("dflash", str(source), f"{key} unset, this checkpoint has {key}={value!r}")
    if config.block_size < 2:
        raise DrafterMismatch("dflash", str(source), f"a block_size of at least 2, this one is {config.block_size}")
    if target_config is not None:
        check_dflash_pair(config, target_config, source)
    drafter = DFlashDrafter(config)
    _load_weights("dflash", source, drafter, weights)
    return drafter.to(device=device, dtype=dtype).eval()


def load_eagle3(
    source: str | Path,
    revision: str | None = None,
    *,
    target_config: Any | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Eagle3Drafter:
    """Reads an EAGLE-3 drafter and checks it against the target; arguments and errors as in :func:`load_dflash`.

    A checkpoint with token embeddings of its own gets them as the submodule ``embed_tokens``; otherwise the target's
    embeddings serve.
    """
    folder = resolve_checkpoint("eagle", source, revision)
    raw = _read_config("eagle", folder)
    weights = _read_weights("eagle", folder)
    _check_architecture("eagle", source, raw, EAGLE3_ARCHITECTURES)
    config = _parse("eagle", source, raw, Eagle3Config.from_json)
    _check_layers("eagle", source, raw, 1)
    if target_config is not None:
        check_eagle3_pair(config, target_config, source)
    embedding = weights.pop("embed_tokens.weight", None)
    in_target = weights.pop("t2d", None)
    if "d2t" not in weights and config.draft_vocab_size != config.vocab_size:
        sizes = f"{config.draft_vocab_size} of {config.vocab_size} tokens"
        raise DrafterMismatch("eagle", str(source), f"a d2t table for its draft vocabulary of {sizes}")
    drafter = Eagle3Drafter(config, reduced_vocabulary="d2t" in weights)
    _load_weights("eagle", source, drafter, weights)
    if drafter.d2t is not None:
        _check_vocabulary_map(source, drafter.d2t, in_target, config.vocab_size)
    if embedding is not None:
        shape = (config.vocab_size, config.dims.hidden_size)
        if tuple(embedding.shape) != shape:
            raise DrafterMismatch("eagle", str(source), f"embed_tokens of shape {shape}, not {tuple(embedding.shape)}")
        drafter.add_module("embed_tokens", nn.Embedding(*shape, _weight=embedding))
    elif config.dims.hidden_size != config.target_hidden_size:
        raise DrafterMismatch(
            "eagle", str(source), "embed_tokens of its own, since its hidden size is not the target's"
        )
    return drafter.to(device=device, dtype=dtype).eval()


def save_drafter(drafter: DFlashDrafter | Eagle3Drafter, folder: str | Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` in the published layout."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(drafter.config.raw), indent=2, sort_keys=True) + "\n")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    if isinstance(drafter, Eagle3Drafter) and drafter.d2t is not None:
        in_target = torch.zeros(drafter.config.vocab_size, dtype=torch.bool)
        in_target[
            drafter.to_target_ids(torch.arange(drafter.config.draft_vocab_size, device=drafter.d2t.device)).cpu()
        ] = True
        state["t2d"] = in_target
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def check_dflash_pair(config: DFlashConfig, target_config: Any, source: object = "drafter") -> None:
    """Does this DFlash drafter belong to this target?

    Raises:
        DrafterMismatch: hidden size, vocabulary, number of layers, taps or mask token do not fit.
    """
    name, layers = str(source), int(target_config.num_hidden_layers)
    _check_same("dflash", name, "hidden size", config.dims.hidden_size, target_config.hidden_size)
    _check_same("dflash", name, "vocabulary", config.vocab_size, target_config.vocab_size)
    if config.num_target_layers is not None:
        _check_same("dflash", name, "number of target layers", config.num_target_layers, layers)
    _check_taps("dflash", name, config.target_layer_ids, layers)
    if not 0 <= config.mask_token_id < target_config.vocab_size:
        allowed = (
            f"a mask token inside the target's vocabulary of {target_config.vocab_size}, not {config.mask_token_id}"
        )
        raise DrafterMismatch("dflash", name, allowed)


def check_eagle3_pair(config: Eagle3Config, target_config: Any, source: object = "drafter") -> None:
    """Does this EAGLE-3 drafter belong to this target?

    Raises:
        DrafterMismatch: hidden size, vocabulary or taps do not fit.
    """
    name, layers = str(source), int(target_config.num_hidden_layers)
    _check_same("eagle", name, "hidden size", config.target_hidden_size, target_config.hidden_size)
    _check_same("eagle", name, "vocabulary", config.vocab_size, target_config.vocab_size)
    taps = config.taps(layers)
    if len(taps) != 3:
        raise DrafterMismatch("eagle", name, f"three tapped layers, not {len(taps)}")
    _check_taps("eagle", name, taps, layers)
    if config.draft_vocab_size > config.vocab_size:
        sizes = f"{config.draft_vocab_size} > {config.vocab_size}"
        raise DrafterMismatch("eagle", name, f"a draft vocabulary inside the target's, {sizes}")


def resolve_checkpoint(key: str, source: str | Path, revision: str | None = None) -> Path:
    """The folder of a checkpoint: ``source`` itself, or the (cached or fetched) snapshot of a Hugging Face id.

    Raises:
        ConfigError: no such folder, or the id cannot be fetched; names ``key`` and ``source``.
    """
    text = str(source)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return folder
    if text.startswith(("/", ".", "~")) or text.count("/") != 1 or isinstance(source, Path):
        raise ConfigError(key, text, "an existing folder with config.json and safetensors, or a Hugging Face id")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=list(ALLOWED)))
    except Exception as error:  # network, authentication and cache errors share no base class
        at = f" at revision {revision}" if revision else ""
        allowed = f"a folder, or a Hugging Face id{at} that is cached or can be fetched ({type(error).__name__})"
        raise ConfigError(key, text, allowed) from error


def _read_config(key: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(key, str(folder), f"a folder with a readable config.json ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError(key, str(path), "a JSON object")
    return config


def _read_weights(key: str, folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
        else:
            files = sorted(folder.glob("*.safetensors"))
        weights: dict[str, Tensor] = {}
        for file in files:
            weights.update(load_file(file))
        if not files:
            raise ConfigError(key, str(folder), "a folder with safetensors weights: pickled ones are not read")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(key, str(folder), f"readable safetensors weights ({error})") from error
    return {name.removeprefix("model."): tensor for name, tensor in weights.items() if not name.endswith("inv_freq")}


def _check_architecture(key: str, source: object, raw: Mapping[str, Any], accepted: tuple[str, ...]) -> None:
    if raw.get("speculators_model_type"):
        kind = raw["speculators_model_type"]
        raise DrafterMismatch(key, str(source), f"the authors' own layout, this one is in speculators format ({kind})")
    names = tuple(raw.get("architectures") or ())
    if not set(names) & set(accepted):
        found = ", ".join(names) or "none named"
        raise DrafterMismatch(key, str(source), f"a checkpoint of architecture {' or '.join(accepted)}, found: {found}")


def _refuse_descendants(source: object, raw: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    special = raw.get("dflash_config") or {}
    projector = str(special.get("projector_type") or "")
    if projector and projector != "dflash":
        raise DrafterMismatch("dflash", str(source), f"plain DFlash, this is a {projector.capitalize()} checkpoint")
    for kind, keys in _DESCENDANT_KEYS.items():
        found = [key for key in keys if special.get(key) or raw.get(key)]
        if found:
            raise DrafterMismatch(
                "dflash", str(source), f"plain DFlash, this is a {kind} checkpoint (it sets {found[0]})"
            )
    for kind, parts in _DESCENDANT_WEIGHTS.items():
        found = sorted(name for name in weights if any(part in name for part in parts))
        if found:
            raise DrafterMismatch(
                "dflash", str(source), f"plain DFlash, this is a {kind} checkpoint (it has {found[0]})"
            )


def _parse(key: str, source: object, raw: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], C]) -> C:
    try:
        return parse(raw)
    except KeyError as error:
        raise DrafterMismatch(key, str(source), f"a config.json with the key {error}") from error
    except (TypeError, ValueError) as error:
        raise DrafterMismatch(key, str(source), f"a config.json of the published layout ({error})") from error


def _check_layers(key: str, source: object, raw: Mapping[str, Any], num_layers: int) -> None:
    """Refuses layer kinds that the drafter modules do not implement."""
    kinds = sorted(set((raw.get("layer_types") or [])[:num_layers]) - {"full_attention"})
    if kinds:
        raise DrafterMismatch(key, str(source), f"full attention layers only, this one has {', '.join(kinds)}")
    if raw.get("sliding_window") and raw.get("use_sliding_window") and not raw.get("layer_types"):
        raise DrafterMismatch(key, str(source), f"full attention, this one has a window of {raw['sliding_window']}")
    if raw.get("hidden_act", "silu") != "silu":
        raise DrafterMismatch(key, str(source), f"the silu activation, this one has {raw['hidden_act']}")
    heads = int(raw.get("num_attention_heads") or 0)
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    if heads < 1 or heads % kv_heads:
        raise DrafterMismatch(key, str(source), f"attention heads in equal groups, not {heads} over {kv_heads}")


def _load_weights(key: str, source: object, drafter: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Strict loading; the error names the first weights that are missing, unexpected or of another shape."""
    expected = drafter.state_dict()
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise DrafterMismatch(key, str(source), f"every weight of the layout, {_some(missing)} missing")
    unexpected = sorted(weights.keys() - expected.keys())
    if unexpected:
        raise DrafterMismatch(key, str(source), f"no weight beyond the layout, {_some(unexpected)} unexpected")
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape:
            shapes = f"{name} of shape {tuple(tensor.shape)}, not {tuple(weights[name].shape)}"
            raise DrafterMismatch(key, str(source), shapes)
    drafter.load_state_dict(dict(weights))


def _check_vocabulary_map(source: object, d2t: Tensor, in_target: Tensor | None, vocab_size: int) -> None:
    ids = torch.arange(d2t.shape[0]) + d2t.cpu()
    if ids.min() < 0 or ids.max() >= vocab_size or len(set(ids.tolist())) != len(ids):
        raise DrafterMismatch("eagle", str(source), f"a d2t table of distinct tokens below {vocab_size}")
    if in_target is not None and (in_target.numel() != vocab_size or not in_target[ids].bool().all()):
        raise DrafterMismatch("eagle", str(source), "d2t and t2d tables that agree")


def _check_taps(key: str, name: str, taps: tuple[int, ...], layers: int) -> None:
    wrong = [tap for tap in taps if not 0 <= tap < layers]
    if wrong or not taps:
        raise DrafterMismatch(key, name, f"taps inside the target's {layers} layers, not {list(taps)}")


def _check_same(key: str, name: str, what: str, drafter: int, target: int) -> None:
    if int(drafter) != int(target):
        raise DrafterMismatch(key, name, f"the target's {what} of {target}, the drafter's is {drafter}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
