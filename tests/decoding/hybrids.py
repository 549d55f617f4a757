"""Hybrid targets of a few thousand weights, trees at random around what a target will say, and the slow twin.

The twin is the stock model: every path of a tree, root to node, is a sequence of its own, run from its first token by
Hugging Face's own layers. Nothing of ours takes part in it.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from ddbench.decoding import Generation, Request, Sampling
from ddbench.decoding.batch import Batch, Move
from ddbench.decoding.clock import StageClock
from ddbench.decoding.proposal import Proposal, Proposer, Rows
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.decoding.target import Prompts, Target

VOCAB, HIDDEN, LAYERS = 24, 48, 4

_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_hidden_layers": LAYERS,
    "tie_word_embeddings": False,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": None,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", {**_BASE, **_EXPERTS, "head_dim": 12}),
    "qwen3_5": ("Qwen3_5TextConfig", {**_BASE, **_ROPE, "head_dim": 12}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {**_BASE, **_EXPERTS, "head_dim": 12}),
    "olmo_hybrid": ("OlmoHybridConfig", {**_BASE, "linear_conv_kernel_dim": 3, "linear_num_key_heads": 4}),
}


@cache
@torch.no_grad()
def make_hybrid(kind: str = "qwen3_5", seed: int = 0, slow_decay: bool = True) -> Any:
    """A random hybrid; ``slow_decay`` lets its states reach far back, as those of trained models do."""
    torch.manual_seed(seed)
    name, settings = CONFIGS[kind]
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings), attn_implementation="sdpa")
    for part, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.5 if "conv1d" in part else 0.25)
        elif slow_decay and part.endswith("A_log"):
            parameter.uniform_(-4.0, 0.0)
    model.lm_head.weight[:4] *= 3.0
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval().requires_grad_(False)


def make_prompts(lengths: Sequence[int], new_tokens: int | Sequence[int], seed: int = 5) -> list[Request]:
    torch.manual_seed(seed)
    news = [new_tokens] * len(lengths) if isinstance(new_tokens, int) else new_tokens
    return [
        Request(f"p{index}", tuple(torch.randint(VOCAB - 1, (length,)).tolist()), new, Sampling(), frozenset())
        for index, (length, new) in enumerate(zip(lengths, news, strict=True))
    ]


def greedy(model: Any, request: Request, further: int = 0) -> tuple[int, ...]:
    """Hugging Face's own greedy continuation."""
    prompt = torch.tensor([request.token_ids], device=model.device)
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=request.max_new_tokens + further,
    )
    return tuple(out[0, prompt.shape[1] :].tolist())


# ------------------------------------------------------------------------------------------------- trees at random

DEPTH = 5


class RandomTrees(Proposer):
    """Trees of random shape; a child of a node on the target's own path follows it more often than not.

    Trees of a round differ in size, so that rows are padded; siblings are common at every depth. With
    ``spine`` there are none.
    """

    taps = (1,)  # a loop wants some

    def __init__(self, answers: dict[str, tuple[int, ...]], nodes: int, seed: int, spine: bool) -> None:
        self.answers, self.nodes, self.spine = answers, nodes, spine
        self.random = random.Random(seed)
        self.batch: Batch

    def bind(self, target: Target, rows: int, length: int) -> None:
        return None

    def admit(self, prompts: Prompts, features: Tensor, first_tokens: Tensor) -> None:
        return None

    def commit(self, rows: Rows, features: Tensor, next_tokens: Tensor, accepted: Tensor) -> None:
        return None

    def move(self, move: Move) -> None:
        return None

    def propose(self, rows: Rows, clock: StageClock) -> Proposal:
        trees = [self._tree(self.answers[row.request.prompt_id][len(row.output) :]) for row in self.batch.active]
        parents, tokens, depths = (
            torch.tensor([tree[part] + [filler] * (self.nodes - len(tree[part])) for tree in trees])
            for part, filler in enumerate((-2, 0, 0))
        )
        return Proposal.of_tree(tokens, parents, depths, DEPTH)

    def _tree(self, following: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Parents, tokens and depths; ``following`` is what the target will say after the bonus token."""
        parents: list[int] = []
        tokens: list[int] = []
        depths: list[int] = []
        right = {-1}  # nodes on the target's own path
        for node in range(self.random.randint(1, min(self.nodes, DEPTH) if self.spine else self.nodes)):
            above = [each for each in range(-1, node) if each == -1 or depths[each] < DEPTH]
            parent = node - 1 if self.spine else self.random.choice([*above, *above[-3:]])
            depth = 1 if parent < 0 else depths[parent] + 1
            taken = {tokens[each] for each in range(node) if parents[each] == parent}
            token = self.random.choice([each for each in range(VOCAB) if each not in taken])
            if parent in right and following[depth - 1] not in taken and self.random.random() < 0.7:
                token = following[depth - 1]
            if parent in right and token == following[depth - 1]:
                right.add(node)
            parents.append(parent)
            tokens.append(token)
            depths.append(depth)
        return parents, tokens, depths


@dataclass(frozen=True)
class Verified:
    """One row of one verify pass: committed tokens with the bonus token last, its tree, and logits [nodes + 1, vocab].

    ``places`` are the paths of tokens from the root to each node, the root's own empty.
    """

    tokens: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    logits: Tensor


@dataclass(frozen=True)
class Committed:
    """A row after a round: its tokens in the cache, and its states by layer, convolution inputs and matrices."""

    tokens: tuple[int, ...]
    states: dict[int, tuple[Tensor, Tensor]]


class WatchedLoop(SpeculativeLoop):
    """Keeps what each verify pass computed and what each round committed."""

    def __init__(self, target: Target, batch: Batch, proposer: RandomTrees) -> None:
        super().__init__(target, batch, proposer, time.perf_counter)
        proposer.batch = batch
        self.seen: list[Verified] = []
        self.committed: list[Committed] = []
        self.moves = 0

    def membership_changed(self) -> None:
        super().membership_changed()
        choose = self._choose

        def watch(logits: Tensor, positions: Tensor) -> Tensor:
            self._logits = logits.clone()
            return choose(logits, positions)

        self._choose = watch  # type: ignore[assignment]

    def moved(self, move: Move) -> None:
        self.moves += 1

    def _verify(self, rows: Rows, proposal: Proposal) -> Tensor:
        chosen = super()._verify(rows, proposal)
        for index, row in enumerate(self.batch.active):
            places: list[tuple[int, ...]] = [()]
            for parent, token in zip(proposal.parents[index].tolist(), proposal.tokens[index].tolist(), strict=True):
                if parent >= -1:
                    places.append((*places[parent + 1], token))
            tokens = (*row.request.token_ids, *row.output)
            self.seen.append(Verified(tokens, tuple(places), self._logits[index, : len(places)]))
        return chosen

    def step(self) -> None:
        super().step()
        assert self.target.states is not None
        for index, row in enumerate(self.batch.active):
            tokens = (*row.request.token_ids, *row.output)[: row.length]
            if len(tokens) == row.length:  # else finished, and cut before the end of its path
                states = {
                    layer: (state.conv[index].clone(), state.matrix[index].clone())
                    for layer, state in self.target.states.layers.items()
                }
                self.committed.append(Committed(tokens, states))


def run_watched(
    model: Any,
    requests: Sequence[Request],
    rows: int,
    nodes: int,
    seed: int,
    loop: type[WatchedLoop] = WatchedLoop,
    target: type[Target] = Target,
    spine: bool = False,
) -> tuple[list[Generation], WatchedLoop]:
    """Decodes ``requests`` with trees at random, ``rows`` in flight; a test may plant a fault in loop or target."""
    answers = {each.prompt_id: greedy(model, each, DEPTH + 1) for each in requests}
    proposer = RandomTrees(answers, nodes, seed, spine)
    length = max(len(each.token_ids) + each.max_new_tokens for each in requests) + nodes + 1
    batch = Batch(requests, rows, time.perf_counter, None)
    with torch.inference_mode(), target(model, proposer.taps, rows, length) as driven:
        watched = loop(driven, batch, proposer)
        watched.run()
    return batch.results(), watched


# ---------------------------------------------------------------------------------------------------- the slow twin


@torch.inference_mode()
def twin_logits(model: Any, sequences: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], Tensor]:
    """The stock model's logits [tokens, vocab] of every sequence, each run whole and by itself."""
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for sequence in set(sequences):
        by_length[len(sequence)].append(sequence)
    found = {}
    for group in by_length.values():  # of one length: no padding, and rows know nothing of each other
        logits = model(input_ids=torch.tensor(group), use_cache=False).logits
        found |= dict(zip(group, logits, strict=True))
    return found


def worst_logit(model: Any, verified: Sequence[Verified]) -> float:
    """The largest difference of a node's logits from the twin's."""
    leaves = [(each, place) for each in verified for place in each.places if is_leaf(place, each.places)]
    logits = twin_logits(model, [(*each.tokens, *place) for each, place in leaves])
    worst = 0.0
    for each, leaf in leaves:
        rows = logits[(*each.tokens, *leaf)]
        for depth in range(len(leaf) + 1):
            ours = each.logits[each.places.index(leaf[:depth])]
            worst = max(worst, float((ours - rows[len(each.tokens) - 1 + depth]).abs().max()))
    return worst


def is_leaf(place: tuple[int, ...], places: Sequence[tuple[int, ...]]) -> bool:
    return not any(len(other) > len(place) and other[: len(place)] == place for other in places)


@torch.inference_mode()
def twin_states(model: Any, tokens: tuple[int, ...]) -> dict[int, tuple[Tensor, Tensor]]:
    """Convolution inputs [window, channels] and matrices of the stock model's own cache after ``tokens``."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
    found = {}
    for index, kind in enumerate(model.config.layer_types):
        if kind == "linear_attention":
            held = (cache.layers[index].conv_states, cache.layers[index].recurrent_states)
            conv, matrix = (each[0] if isinstance(each, dict) else each for each in held)  # one state before 5.17
            found[index] = (conv[0].T, matrix[0])
    return found


def worst_state(model: Any, committed: Sequence[Committed]) -> float:
    """The largest difference of a committed state, of either part, from the twin's."""
    worst = 0.0
    for each in committed:
        for layer, (conv, matrix) in twin_states(model, each.tokens).items():
            ours_conv, ours_matrix = each.states[layer]
            past = ours_conv.shape[0]
            worst = max(worst, float((ours_conv - conv[conv.shape[0] - past :]).abs().max()))
            worst = max(worst, float((ours_matrix - matrix).abs().max()))
    return worst
