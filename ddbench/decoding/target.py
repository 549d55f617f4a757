"""The target: a Hugging Face causal LM, driven over our own caches, masks and positions.

Its layers are full attention or, in hybrids, gated delta nets too, whose states :mod:`ddbench.decoding.states` keeps.
Features for the drafters are tapped with hooks at the layers that they name, so nothing else is kept; logits are
computed only at the rows that need them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from ddbench.decoding.graphs import Graphs, stepped
from ddbench.decoding.kv import KVBuffer, Slots
from ddbench.decoding.masks import prompt_mask
from ddbench.decoding.recurrent import Replacement, keeps_state, recurrent_layers, states_of
from ddbench.decoding.states import Links, Pass
from ddbench.errors import ConfigError


def text_config(model: Any) -> Any:
    """The language model's part of a Hugging Face config."""
    return model.config.get_text_config()


def head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def check_target(model: Any) -> None:
    """Refuses models that this engine cannot drive exactly.

    Raises:
        ConfigError: names the layer kind or the setting: sliding or chunked attention, recurrent layers that are no
            gated delta net, latent attention, ALiBi, rotary tables that depend on the running length, encoder-decoders.
    """
    config = text_config(model)
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError("target", name, "a decoder-only causal LM, this one is an encoder-decoder")
    ours = {"full_attention", "linear_attention"} if delta_layers(model) else {"full_attention"}
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - ours)
    if kinds:
        raise ConfigError("target", name, f"a model with full attention only, this one has {', '.join(kinds)} layers")
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if windowed and not getattr(config, "layer_types", None):
        raise ConfigError("target", name, f"full attention, this one has a window of {config.sliding_window}")
    if getattr(config, "kv_lora_rank", None):
        raise ConfigError("target", name, "per-head keys and values, this one has latent attention (kv_lora_rank)")
    if getattr(config, "alibi", False):
        raise ConfigError("target", name, "position ids, this one has ALiBi biases")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        raise ConfigError("target", name, f"fixed rotary tables, these ({rope['rope_type']}) change with the length")
    accepted = inspect.signature(model.forward).parameters
    missing = {"attention_mask", "position_ids", cache_argument(model), "logits_to_keep"} - accepted.keys()
    if missing:
        raise ConfigError("target", name, f"a forward that takes {', '.join(sorted(missing))}")
    if config._attn_implementation != "sdpa":
        raise ConfigError("target", config._attn_implementation, "attn_implementation='sdpa' (it takes tree masks)")


def cache_argument(model: Any) -> str:
    """What a model calls its cache: later versions of transformers have a shorter name for it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def delta_layers(model: Any) -> dict[int, nn.Module]:
    """The gated-delta-net modules of a hybrid by layer index, none for a model without recurrent layers.

    Raises:
        ConfigError: recurrent layers of another kind, by name.
    """
    config = text_config(model)
    kinds = getattr(config, "layer_types", None) or ()
    if not keeps_state(model, kinds):
        return {}
    return recurrent_layers(model, decoder_layers(model.get_decoder(), config.num_hidden_layers), kinds)


@dataclass(frozen=True)
class Prompts:
    """Newly admitted requests, padded on the left: one prefill pass, for the target and then for the drafter."""

    first_row: int
    lengths: tuple[int, ...]
    ids: Tensor  # [rows, tokens], padding 0
    positions: Tensor  # [rows, tokens], negative for padding
    mask: Tensor  # additive, [rows, 1, tokens, tokens]

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], first_row: int, dtype: torch.dtype, device: torch.device) -> Prompts:
        lengths = tuple(len(prompt) for prompt in prompts)
        longest = max(lengths)
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        shift = torch.tensor([longest - length for length in lengths], device=device)
        positions = torch.arange(longest, device=device) - shift[:, None]
        return cls(first_row, lengths, ids, positions, prompt_mask(positions, dtype))


class _CacheAdapter(Cache):  # type: ignore[misc]
    """What the model sees as its cache: writes new keys and values where told and shows the slots to attend to."""

    def __init__(self, buffer: KVBuffer, places: dict[int, int]) -> None:
        super().__init__(layers=[])
        self.buffer = buffer
        self.places = places  # of the layers that attend, in the buffer
        self.slots: Slots
        self.kv_len: int | None = None  # None: the pass attends to its own tokens only (prefill)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        place = self.places[layer_idx]
        self.buffer.write(place, self.slots, key_states, value_states)
        if self.kv_len is None:
            return key_states, value_states
        return self.buffer.view(place, key_states.shape[0], self.kv_len)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.kv_len is None else self.kv_len

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return self.kv_len is not None


class Target:
    """Drives ``model`` over a static cache of ``rows`` sequences of at most ``length`` tokens.

    A context manager: the hooks that tap features are removed on exit, recurrent layers get their own forward back, and
    graphs are destroyed. ``states`` holds what recurrent layers keep; None for a model without any.

    Args:
        model: a Hugging Face causal LM that :func:`check_target` accepts.
        taps: indices into the Hugging Face ``hidden_states``: ``i`` is the input of layer ``i``, and the number of
            layers is the final normed state.
        rows, length: cache size; ``length`` covers the nodes of a verify pass too.
        graphs: whether passes over the cache are replayed from CUDA graphs; a model that keeps states has none.
    """

    def __init__(self, model: Any, taps: Sequence[int], rows: int, length: int, graphs: bool = False) -> None:
        check_target(model)
        config = text_config(model)
        self.model = model
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.embed: nn.Module = model.get_input_embeddings()
        self.head: nn.Module = model.get_output_embeddings()
        self.taps = tuple(taps)
        self._last_position = int(getattr(config, "max_position_embeddings", None) or 2**31) - 1
        kv_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        recurrent = delta_layers(model)
        attending = [layer for layer in range(config.num_hidden_layers) if layer not in recurrent]
        self.cache = KVBuffer(len(attending), rows, kv_heads, length, head_size(config), self.dtype, self.device)
        self.states = states_of(recurrent, rows, self.dtype, self.device) if recurrent else None
        self._adapter = _CacheAdapter(self.cache, {layer: place for place, layer in enumerate(attending)})
        self._cached = {cache_argument(model): self._adapter}
        self.graphs = Graphs(self.device) if graphs and self.states is None else None
        self._tapped: dict[int, Tensor] = {}
        self._recurrent = recurrent
        self._hooks: list[Any] = []
        self.hook()

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.unhook()
        if self.graphs is not None:
            self.graphs.release()

    def hook(self) -> None:
        """Puts this target's hooks into the model; nothing where they are there."""
        if self._hooks:
            return
        layers = text_config(self.model).num_hidden_layers
        self._hooks = [self._install(tap, layers) for tap in sorted(set(self.taps))]
        if self.states is not None:
            self._hooks += [
                Replacement(module, self.states, layer, self._adapter) for layer, module in self._recurrent.items()
            ]

    def unhook(self) -> None:
        """Takes them out of the model and lets go of what they tapped: passes of others leave no trace here."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._tapped = {}

    def prefill(self, prompts: Prompts) -> tuple[Tensor, Tensor | None]:
        """Runs the prompts into their rows.

        Returns:
            Logits [rows, vocab] after each prompt's last token, and the taps [rows, tokens, taps * hidden] or None.
        """
        slots = Slots.fresh(prompts.first_row, prompts.lengths, prompts.positions, self.cache.spare)
        positions = prompts.positions.clamp(min=0)
        logits = self.forward(prompts.ids, positions, prompts.mask, slots, kv_len=None, logits_to_keep=1)
        features = torch.cat([self._tapped[tap] for tap in self.taps], dim=-1) if self.taps else None
        return logits[:, -1], features

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        slots: Slots,
        kv_len: int | None,
        logits_to_keep: int = 0,
        links: Links | None = None,
    ) -> Tensor:
        """One pass over ``ids`` [rows, tokens] at ``positions``, stored at ``slots``; logits [rows, tokens, vocab].

        ``kv_len`` is the length of cache that the additive ``mask`` [rows, 1, tokens, kv_len] covers; None attends to
        the new tokens alone. Positions past the model's last, which only discarded drafts can have, are clamped.

        ``links`` say which tokens of a tree follow which, for layers that keep a state: their states then wait for
        :meth:`commit`. Without links the tokens of a row follow each other and its state goes on to the last.
        """
        if self.graphs is not None and kv_len is not None:
            return self._replayed(self.graphs, ids, positions, mask, slots, kv_len)
        self._adapter.slots, self._adapter.kv_len = slots, kv_len
        if self.states is not None:
            fresh = kv_len is None  # padding stands before prompts alone
            self.states.begin(Pass(slots.first, fresh, self.real_tokens(slots) if fresh else None, links))
        return self._pass(ids, positions, mask, logits_to_keep)

    def _pass(self, ids: Tensor, positions: Tensor, mask: Tensor, logits_to_keep: int = 0) -> Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions.clamp(max=self._last_position),
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **self._cached,
        )
        logits: Tensor = out.logits
        return logits

    def _replayed(
        self, graphs: Graphs, ids: Tensor, positions: Tensor, mask: Tensor, slots: Slots, kv_len: int
    ) -> Tensor:
        """A pass over the cache from a graph, one for rows, tokens and length of the view."""
        rows, tokens = ids.shape
        length = stepped(kv_len, self.cache.length)
        mask = functional.pad(mask, (0, length - kv_len), value=torch.finfo(self.dtype).min)
        row_index = torch.arange(rows, device=self.device)[:, None]

        def run(ids: Tensor, positions: Tensor, mask: Tensor, index: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
            self._adapter.slots = Slots(0, rows, tokens, None, index, row_index)
            self._adapter.kv_len = length
            return self._pass(ids, positions, mask), dict(self._tapped)

        key = "target", rows, tokens, length
        logits, tapped = graphs.run(key, run, ids, positions, mask, slots.numbered(self.device))
        self._tapped = dict(tapped)
        return logits

    def real_tokens(self, slots: Slots) -> Tensor | None:
        """[rows, tokens]: False for padding, which must leave no trace in a state; None where there is none."""
        return None if slots.index is None else slots.index != self.cache.spare

    def commit(self, node: Tensor) -> None:
        """Recurrent layers go on from token ``node`` [rows] of the last pass over a tree; nothing to do without any."""
        if self.states is not None:
            self.states.commit(node)

    def move(self, source: int, target: int, length: int) -> None:
        """The sequence of row ``source``, of ``length`` tokens, takes the place of row ``target``."""
        self.cache.move_row(source, target, length)
        if self.states is not None:
            self.states.move_row(source, target)

    def features(self, index: Tensor) -> Tensor:
        """Taps of the last pass at token ``index`` [rows, picked]: [rows, picked, taps * hidden]."""
        rows = torch.arange(index.shape[0], device=index.device)[:, None]
        return torch.cat([self._tapped[tap][rows, index] for tap in self.taps], dim=-1)

    def _install(self, tap: int, num_layers: int) -> Any:
        """A hook that keeps ``hidden_states[tap]`` of every pass."""
        decoder = self.model.get_decoder()
        if tap == num_layers:

            def keep_output(module: nn.Module, args: Any, output: Any) -> None:
                self._tapped[tap] = output[0]

            return decoder.register_forward_hook(keep_output)

        def keep_input(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._tapped[tap] = args[0] if args else kwargs["hidden_states"]

        return decoder_layers(decoder, num_layers)[tap].register_forward_pre_hook(keep_input, with_kwargs=True)


def decoder_layers(decoder: nn.Module, num_layers: int) -> nn.ModuleList:
    """The list of decoder layers inside a Hugging Face base model.

    Raises:
        ConfigError: none of its module lists has ``num_layers`` entries.
    """
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise ConfigError("target", type(decoder).__name__, f"a model with a list of {num_layers} decoder layers")
