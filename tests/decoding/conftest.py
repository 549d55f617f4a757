"""Small models: a random target, and drafters trained on its text for a second, so that they are often right.

Accepted paths, siblings and compaction are then exercised by real drafts. Nothing is downloaded; seeds are fixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from ddbench.decoding import Generation, ModelPair, Request, Sampling, Strategy
from ddbench.decoding.batch import Batch
from ddbench.decoding.decode import make_proposer
from ddbench.decoding.proposal import Proposer
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.decoding.target import Target
from ddbench.drafters import DFlashConfig, DFlashDrafter, Eagle3Config, Eagle3Drafter

VOCAB, HIDDEN, LAYERS, BLOCK = 24, 48, 4, 8
DIMS = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}

STRATEGIES = [
    Strategy("dflash"),
    Strategy("dflash", depth=3),
    Strategy("eagle", depth=4),
    Strategy("eagle", width=3, depth=4, nodes=12),
    Strategy("eagle", width=2, depth=1, nodes=2),
    Strategy("ddtree", nodes=16),
    Strategy("ddtree", nodes=40, width=3, depth=5),
    Strategy("ddtree", nodes=12, force_spine=True),
    Strategy("ddtree", nodes=16, min_log_prob=-4.0),
]


def name_of(strategy: Strategy) -> str:
    parts = [strategy.name, *(f"{axis[0]}{getattr(strategy, axis)}" for axis in ("width", "depth", "nodes"))]
    if strategy.force_spine:
        parts.append("spine")
    if strategy.min_log_prob is not None:
        parts.append("floor")
    return "-".join(part for part in parts if not part.endswith("None"))


@torch.no_grad()
def make_target(kind: str = "qwen3", seed: int = 0) -> Any:
    """A random target; a few loud rows of its head make its text low in entropy."""
    torch.manual_seed(seed)
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig, "qwen2": Qwen2Config}[kind](
        **DIMS, num_hidden_layers=LAYERS, tie_word_embeddings=False, use_cache=True
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.25)
    model.lm_head.weight[:4] *= 3.0
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


@torch.no_grad()
def make_dflash(seed: int = 1) -> DFlashDrafter:
    torch.manual_seed(seed)
    config = {
        **DIMS,
        "num_hidden_layers": 2,
        "num_target_layers": LAYERS,
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [0, 1, LAYERS - 1]},
    }
    drafter = DFlashDrafter(DFlashConfig.from_json(config))
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.2)
    return drafter.eval()


@torch.no_grad()
def make_eagle(seed: int = 2, draft_vocab: int = VOCAB - 6) -> Eagle3Drafter:
    """An EAGLE-3 drafter over a reduced vocabulary: draft token i is target token i, from 8 on i + 6."""
    torch.manual_seed(seed)
    config = {
        **DIMS,
        "draft_vocab_size": draft_vocab,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
    }
    drafter = Eagle3Drafter(Eagle3Config.from_json(config))
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.2)
    if drafter.d2t is not None:
        drafter.d2t[8:] = VOCAB - draft_vocab
    return drafter.eval()


def sample_text(model: Any, sequences: int, tokens: int) -> torch.Tensor:
    """Text of the target itself [sequences, tokens], half of it greedy, half sampled."""
    torch.manual_seed(11)
    prompts = torch.randint(VOCAB - 1, (sequences, 3))
    half = sequences // 2
    rest = {"max_new_tokens": tokens - 3, "pad_token_id": 0, "attention_mask": torch.ones(half, 3)}
    greedy = model.generate(prompts[:half], do_sample=False, **rest)
    sampled = model.generate(prompts[half:], do_sample=True, temperature=1.0, top_k=0, **rest)
    return torch.cat((greedy, sampled))


def train_dflash(drafter: DFlashDrafter, model: Any, text: torch.Tensor, steps: int) -> None:
    """Blocks at random anchors, cross entropy against what the target wrote."""
    with torch.no_grad():
        states = model(text, output_hidden_states=True).hidden_states
        features = torch.cat([states[tap + 1] for tap in drafter.config.target_layer_ids], dim=-1)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    sequences, length = text.shape
    for _ in range(steps):
        anchor = int(torch.randint(1, length - BLOCK, ()))
        positions = torch.arange(length).expand(sequences, -1)
        context = drafter.context_kv(drafter.project_features(features[:, :anchor]), positions[:, :anchor])
        block = text[:, anchor : anchor + BLOCK].clone()
        block[:, 1:] = drafter.config.mask_token_id
        hidden = drafter(embed(block), positions[:, anchor : anchor + BLOCK], context)
        wanted = text[:, anchor + 1 : anchor + BLOCK]
        loss = functional.cross_entropy(head(hidden[:, 1:]).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_eagle(drafter: Eagle3Drafter, model: Any, text: torch.Tensor, steps: int) -> None:
    """The token after the next, from the target's features, where the draft vocabulary has it."""
    with torch.no_grad():
        states = model(text, output_hidden_states=True).hidden_states
        features = torch.cat([states[tap] for tap in drafter.config.taps(LAYERS)], dim=-1)[:, :-2]
    to_draft = torch.full((VOCAB,), -100)
    to_draft[drafter.to_target_ids(torch.arange(drafter.config.draft_vocab_size))] = torch.arange(
        drafter.config.draft_vocab_size
    )
    optimizer = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    embed = model.get_input_embeddings()
    sequences, length = text.shape
    positions = torch.arange(length - 2).expand(sequences, -1)
    causal = torch.ones(length - 2, length - 2, dtype=torch.bool).tril()
    for _ in range(steps):
        hidden, _ = drafter(embed(text[:, 1:-1]), drafter.project_features(features), positions, None, causal)
        loss = functional.cross_entropy(drafter.logits(hidden).flatten(0, 1), to_draft[text[:, 2:]].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@cache
def trained(kind: str, seed: int) -> tuple[Any, DFlashDrafter, Eagle3Drafter]:
    """A float32 target and its drafters, trained once a session."""
    model, dflash, eagle = make_target(kind, seed), make_dflash(seed + 1), make_eagle(seed + 2)
    model.requires_grad_(False)
    text = sample_text(model, 24, 64)
    train_dflash(dflash, model, text, steps=100)
    train_eagle(eagle, model, text, steps=40)
    return model, dflash.requires_grad_(False), eagle.requires_grad_(False)


def make_pair(kind: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> ModelPair:
    where = torch.device(device)
    target, dflash, eagle = (deepcopy(model).to(where, dtype) for model in trained(kind, seed))
    return ModelPair(target=target, tokenizer=None, dflash=dflash, eagle=eagle, device=where, dtype=dtype)


def make_requests(
    count: int = 8,
    max_new_tokens: int | Sequence[int] = 32,
    sampling: Sampling | None = None,
    stop_ids: frozenset[int] = frozenset(),
    seed: int = 5,
) -> list[Request]:
    """Random prompts of mixed lengths, from 1 token up."""
    torch.manual_seed(seed)
    lengths = [1, 5, 23, 11, 2, 17, 8, 40, 3, 30][:count]
    news = [max_new_tokens] * count if isinstance(max_new_tokens, int) else list(max_new_tokens)
    return [
        Request(f"p{index}", tuple(torch.randint(VOCAB - 1, (length,)).tolist()), new, sampling or Sampling(), stop_ids)
        for index, (length, new) in enumerate(zip(lengths, news, strict=True))
    ]


def reference(model: Any, request: Request) -> tuple[int, ...]:
    """Hugging Face's own greedy continuation of one prompt."""
    prompt = torch.tensor([request.token_ids], device=model.device)
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=request.max_new_tokens,
        eos_token_id=sorted(request.stop_ids) or None,
        pad_token_id=0,
    )
    return tuple(out[0, len(request.token_ids) :].tolist())


LoopKind = Callable[[Target, Batch, Proposer, Callable[[], float]], SpeculativeLoop]


def run_loop(
    pair: ModelPair, strategy: Strategy, requests: Sequence[Request], rows: int, kind: LoopKind = SpeculativeLoop
) -> list[Generation]:
    """What ``decode`` does for a speculative strategy, with a loop that a test may have extended."""
    proposer = make_proposer(pair, strategy)
    assert proposer is not None
    length = max(len(each.token_ids) + each.max_new_tokens for each in requests) + proposer.nodes + 1
    batch = Batch(requests, rows, time.perf_counter, None)
    with torch.inference_mode(), Target(pair.target, proposer.taps, rows, length) as target:
        proposer.bind(target, rows, length)
        kind(target, batch, proposer, time.perf_counter).run()
    return batch.results()


@pytest.fixture(scope="session")
def toys() -> SimpleNamespace:
    """Makers of models and requests, as functions."""
    return SimpleNamespace(
        pair=make_pair,
        target=make_target,
        dflash=make_dflash,
        eagle=make_eagle,
        requests=make_requests,
        reference=reference,
        run_loop=run_loop,
        vocab=VOCAB,
        block=BLOCK,
        layers=LAYERS,
    )


@pytest.fixture(scope="session")
def pair() -> ModelPair:
    return make_pair()


@pytest.fixture(params=STRATEGIES, ids=name_of)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    """Every speculative strategy, in several shapes."""
    chosen: Strategy = request.param
    return chosen
