"""The drafts of the loop equal those of a direct implementation of each drafter: one sequence, no cache, no batch.

The twins below are written from the papers, with plain matrices from the checkpoint's state dict, and recompute
everything at every anchor from the target's own hidden states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ddbench.decoding import ModelPair, Request, Strategy
from ddbench.decoding.proposal import Proposal, Rows
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.drafters import DFlashDrafter, Eagle3Drafter

Path = tuple[int, ...]


@dataclass(frozen=True)
class Anchor:
    """What a round proposed after ``tokens`` (bonus token last): the paths of its nodes, in the order of the nodes."""

    tokens: tuple[int, ...]
    paths: tuple[Path, ...]


class Recording(SpeculativeLoop):
    """Notes every proposal as paths of tokens."""

    anchors: tuple[Anchor, ...] = ()

    def _verify(self, rows: Rows, proposal: Proposal) -> Tensor:
        for index, row in enumerate(self.batch.active):
            paths: list[Path] = []
            for parent, token in zip(proposal.parents[index].tolist(), proposal.tokens[index].tolist(), strict=True):
                if parent >= -1:
                    paths.append((*(paths[parent] if parent >= 0 else ()), token))
            tokens = (*row.request.token_ids, *row.output)
            Recording.anchors += (Anchor(tokens, tuple(paths)),)
        return super()._verify(rows, proposal)


def record(toys: SimpleNamespace, pair: ModelPair, strategy: Strategy, requests: list[Request]) -> tuple[Anchor, ...]:
    Recording.anchors = ()
    toys.run_loop(pair, strategy, requests, 3, Recording)
    return Recording.anchors


# ---------------------------------------------------------------------------------------------------- the slow twins


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def rope(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """x [tokens, heads, dim]; the two halves of a head are the parts of the rotated pairs."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """One head at a time: query [tokens, heads, dim], key and value [keys, kv_heads, dim], visible [tokens, keys]."""
    group = query.shape[1] // key.shape[1]
    out = []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // group].T / math.sqrt(query.shape[-1])
        out.append(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value[:, head // group])
    return torch.stack(out, dim=1).flatten(1)


def feed_forward(x: Tensor, w: dict[str, Tensor], prefix: str) -> Tensor:
    gate, up = x @ w[f"{prefix}.gate_proj.weight"].T, x @ w[f"{prefix}.up_proj.weight"].T
    return (gate * gate.sigmoid() * up) @ w[f"{prefix}.down_proj.weight"].T


def hidden_states(pair: ModelPair, tokens: Path) -> tuple[Tensor, ...]:
    states = pair.target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return tuple(state[0] for state in states)


def slow_dflash(pair: ModelPair, drafter: DFlashDrafter, tokens: Path) -> Tensor:
    """Logits [block - 1, vocab] of the block after ``tokens``, whose last is the bonus token (DFlash §3, A.3)."""
    w, config = drafter.state_dict(), drafter.config
    states = hidden_states(pair, tokens[:-1])
    context = torch.cat([states[layer + 1] for layer in config.target_layer_ids], dim=-1) @ w["fc.weight"].T
    context = rms(context, w["hidden_norm.weight"])
    start, block = len(tokens) - 1, config.block_size
    x = pair.target.get_input_embeddings()(torch.tensor([tokens[-1]] + [config.mask_token_id] * (block - 1)))
    heads, kv_heads = config.dims.num_heads, config.dims.num_kv_heads
    for index in range(config.num_layers):
        name = f"layers.{index}.self_attn"
        h = rms(x, w[f"layers.{index}.input_layernorm.weight"])
        both = torch.cat((context, h))
        query = (h @ w[f"{name}.q_proj.weight"].T).unflatten(1, (heads, -1))
        key = (both @ w[f"{name}.k_proj.weight"].T).unflatten(1, (kv_heads, -1))
        value = (both @ w[f"{name}.v_proj.weight"].T).unflatten(1, (kv_heads, -1))
        query = rope(rms(query, w[f"{name}.q_norm.weight"]), torch.arange(start, start + block))
        key = rope(rms(key, w[f"{name}.k_norm.weight"]), torch.arange(start + block))
        everything = torch.ones(block, start + block, dtype=torch.bool)
        x = x + attention(query, key, value, everything) @ w[f"{name}.o_proj.weight"].T
        x = x + feed_forward(rms(x, w[f"layers.{index}.post_attention_layernorm.weight"]), w, f"layers.{index}.mlp")
    logits: Tensor = pair.target.get_output_embeddings()(rms(x, w["norm.weight"])[1:])
    return logits


def slow_eagle(pair: ModelPair, drafter: Eagle3Drafter, tokens: Path, path: Path) -> Tensor:
    """Log-probabilities [draft vocab] after ``tokens`` and the drafted ``path``: every row anew, one after another."""
    w, config = drafter.state_dict(), drafter.config
    states = hidden_states(pair, tokens[:-1])
    taps = torch.cat([states[layer] for layer in config.taps(pair.target.config.num_hidden_layers)], dim=-1)
    features = list(taps @ w["fc.weight"].T)
    following = [*tokens[1:], *path]  # row t joins token t + 1 with the feature of position t
    heads, kv_heads = config.dims.num_heads, config.dims.num_kv_heads
    hidden = torch.empty(0)
    for count in range(len(tokens) - 1, len(following) + 1):
        feature = torch.stack(features)
        embeds = pair.target.get_input_embeddings()(torch.tensor(following[:count]))
        h = torch.cat(
            (rms(embeds, w["midlayer.input_layernorm.weight"]), rms(feature, w["midlayer.hidden_norm.weight"])), dim=-1
        )
        name, steps = "midlayer.self_attn", torch.arange(count)
        query = rope((h @ w[f"{name}.q_proj.weight"].T).unflatten(1, (heads, -1)), steps)
        key = rope((h @ w[f"{name}.k_proj.weight"].T).unflatten(1, (kv_heads, -1)), steps)
        value = (h @ w[f"{name}.v_proj.weight"].T).unflatten(1, (kv_heads, -1))
        causal = steps[:, None] >= steps
        x = feature + attention(query, key, value, causal) @ w[f"{name}.o_proj.weight"].T
        hidden = x + feed_forward(rms(x, w["midlayer.post_attention_layernorm.weight"]), w, "midlayer.mlp")
        features.append(hidden[-1])  # the next row's feature is the drafter's own
    return (rms(hidden[-1], w["norm.weight"]) @ w["lm_head.weight"].T).log_softmax(-1)


def slow_eagle_tree(
    pair: ModelPair, drafter: Eagle3Drafter, tokens: Path, width: int, depth: int, nodes: int
) -> dict[Path, float]:
    """EAGLE-2's expansion with each path recomputed; the scores of the ``nodes`` best candidates."""
    beam: dict[Path, float] = {(): 0.0}
    candidates: dict[Path, float] = {}
    for _ in range(depth):
        level: dict[Path, float] = {}
        for path, score in beam.items():
            log_probs = slow_eagle(pair, drafter, tokens, path)
            best = log_probs.topk(width)
            for log_prob, token in zip(best.values.tolist(), drafter.to_target_ids(best.indices).tolist(), strict=True):
                level[(*path, token)] = score + log_prob
        candidates |= level
        beam = dict(sorted(level.items(), key=lambda item: -item[1])[:width])
    return dict(sorted(candidates.items(), key=lambda item: -item[1])[:nodes])


# ------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("depth", [7, 4])
def test_chain_equals_the_direct_drafter(pair: ModelPair, toys: SimpleNamespace, depth: int) -> None:
    assert pair.dflash is not None
    anchors = record(toys, pair, Strategy("dflash", depth=depth), toys.requests(7, 12))
    assert len(anchors) > 40
    with torch.inference_mode():
        for anchor in anchors:
            chain = slow_dflash(pair, pair.dflash, anchor.tokens).argmax(-1).tolist()[:depth]
            assert anchor.paths[-1] == tuple(chain)


def test_tree_is_the_most_probable_prefixes_of_the_direct_drafter(pair: ModelPair, toys: SimpleNamespace) -> None:
    """The 16 nodes are prefixes by falling probability, and no other child or sibling beats the last of them."""
    assert pair.dflash is not None
    anchors = record(toys, pair, Strategy("ddtree", nodes=16), toys.requests(5, 8))
    with torch.inference_mode():
        for anchor in anchors:
            log_probs = slow_dflash(pair, pair.dflash, anchor.tokens).log_softmax(-1)
            score = {(): 0.0}
            for path in anchor.paths:
                score[path] = score[path[:-1]] + float(log_probs[len(path) - 1, path[-1]])
            scores = [score[path] for path in anchor.paths]
            assert len(set(anchor.paths)) == 16
            assert all(later <= earlier + 1e-4 for earlier, later in pairwise(scores))
            outside = [
                score[path] + float(log_probs[len(path), token])
                for path in score
                if len(path) < log_probs.shape[0]
                for token in range(log_probs.shape[1])
                if (*path, token) not in score
            ]
            assert max(outside) <= scores[-1] + 1e-4


@pytest.mark.parametrize(("width", "depth", "nodes"), [(1, 4, 4), (3, 3, 12), (2, 4, 5)])
def test_eagle_equals_the_direct_drafter(
    pair: ModelPair, toys: SimpleNamespace, width: int, depth: int, nodes: int
) -> None:
    assert pair.eagle is not None
    strategy = Strategy("eagle", width=width, depth=depth, nodes=nodes)
    anchors = record(toys, pair, strategy, toys.requests(5, 6))
    assert len(anchors) >= 10
    with torch.inference_mode():
        for anchor in anchors:
            tree = slow_eagle_tree(pair, pair.eagle, anchor.tokens, width, depth, nodes)
            assert set(anchor.paths) == set(tree)
            scores = [tree[path] for path in anchor.paths]
            assert all(later <= earlier + 1e-4 for earlier, later in pairwise(scores))
