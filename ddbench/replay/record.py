"""Recording on the reference engine: text by a decode loop, then one drafter pass from every anchor.

The text is decoded as ever (autoregressively, or faster by any lossless strategy), a little past its end, so that the
last round's drafts can be judged. One target pass over a whole text then gives the features of all its positions, and
from them the drafter's keys and values. Each anchor is a row of a batched drafter pass that sees those of the positions
before it. In a live run the same features come from many small passes with other shapes, hence other rounding: scores
differ in their last digits, and counts only where two scores are that near (docs/replay.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ddbench.decoding import Generation, ModelPair, Request, Strategy, decode
from ddbench.decoding.choose import Chooser
from ddbench.decoding.kv import Slots
from ddbench.decoding.masks import committed_mask
from ddbench.decoding.target import Prompts, Target
from ddbench.errors import ConfigError
from ddbench.replay.trace import Floats32, Ints, Key, Trace, ranks_of

# Bounds on the memory of a pass: context tokens of all its rows together, logits, and positions whose token is chosen.
_CONTEXT, _LOGITS, _CHOSEN = 2**17, 2**27, 256


@dataclass(frozen=True)
class Recorded:
    """What a recording gives of one request, as :class:`ddbench.replay.trace.Trace` stores it."""

    generation: Generation
    tail: tuple[int, ...]
    disagreements: int | None
    log_probs: Floats32
    ranks: Ints

    def trace(self, key: Key, prompt_tokens: int) -> Trace:
        """As it is stored, of the request that ``key`` names."""
        return Trace(
            key=key,
            prompt_tokens=prompt_tokens,
            finish_reason=self.generation.finish_reason,
            disagreements=self.disagreements,
            log_probs=self.log_probs,
            ranks=self.ranks,
            output=np.asarray(self.generation.output_token_ids),
            tail=np.asarray(self.tail, dtype=np.int32),
        )


def check_room(pair: ModelPair, requests: Sequence[Request], limit: int | None = None) -> None:
    """Raises ConfigError for no DFlash drafter, or a request that leaves no room in the context for its last round."""
    depth = _depth(pair)
    context = limit or pair.max_length
    for request in requests:
        needed = len(request.token_ids) + request.max_new_tokens + depth - 1
        if context is not None and needed > context:
            allowed = f"prompt, answer and {depth - 1} tokens more within the context of {context}, not {needed}"
            raise ConfigError("prompt", request.prompt_id, allowed)


def record(
    pair: ModelPair,
    requests: Sequence[Request],
    nodes: int,
    batch_size: int,
    by: Strategy | None = None,
) -> Iterator[Recorded]:
    """Records requests, in their order.

    Args:
        pair: target and DFlash drafter.
        requests: prompts with their sampling.
        nodes: largest budget that a replay may ask for: as many candidates are kept a depth.
        batch_size: requests in flight while the text is decoded.
        by: the strategy that decodes the text; None: autoregressive.

    Raises:
        ConfigError: as :func:`check_room` and :func:`ddbench.decoding.decode` do.
    """
    check_room(pair, requests)
    depth = _depth(pair)
    drafter = pair.dflash
    assert drafter is not None
    ended = _decoded(pair, requests, depth, batch_size, by or Strategy("autoregressive"))
    taps = tuple(layer + 1 for layer in drafter.config.target_layer_ids)
    longest = max(len(request.token_ids) + request.max_new_tokens for request in requests)
    with torch.inference_mode(), Target(pair.target, taps, 1, longest) as target:
        for request, (generation, tail) in zip(requests, ended, strict=True):
            output = generation.output_token_ids
            features, chosen = _teach(target, request, output)
            log_probs, ids = _draft(pair, target, features, request, output, min(nodes, drafter.config.vocab_size))
            yield Recorded(
                generation=generation,
                tail=tail,
                disagreements=sum(a != b for a, b in zip(chosen, output, strict=True)),
                log_probs=log_probs,
                ranks=ranks_of(ids, (*output, *tail)),
            )


def _depth(pair: ModelPair) -> int:
    if pair.dflash is None:
        raise ConfigError("model.dflash", None, "a DFlash drafter: only a block drafter's offers can be recorded")
    return pair.dflash.config.max_depth


def _decoded(
    pair: ModelPair, requests: Sequence[Request], depth: int, batch_size: int, by: Strategy
) -> list[tuple[Generation, tuple[int, ...]]]:
    """Outputs, and what the target says after each for another ``depth - 1`` tokens."""
    further = [replace(request, max_new_tokens=request.max_new_tokens + depth - 1) for request in requests]
    longer = decode(pair, by, further, batch_size)
    known = [list(each.output_token_ids) for each in longer]
    ended = [_cut(request, generation) for request, generation in zip(requests, longer, strict=True)]
    # A text that met a stop token goes on behind it: the draws are keyed by position, the request's own.
    lacking = [len(each.output_token_ids) + depth - 1 - len(tokens) for each, tokens in zip(ended, known, strict=True)]
    behind = [
        replace(request, token_ids=(*request.token_ids, *tokens), max_new_tokens=count, stop_ids=frozenset())
        for request, tokens, count in zip(requests, known, lacking, strict=True)
        if count > 0
    ]
    tails = iter(decode(pair, by, behind, batch_size))
    for tokens, count in zip(known, lacking, strict=True):
        if count > 0:
            tokens += next(tails).output_token_ids
    return [
        (each, tuple(tokens[len(each.output_token_ids) :][: depth - 1]))
        for each, tokens in zip(ended, known, strict=True)
    ]


def _cut(request: Request, generation: Generation) -> Generation:
    """The generation as the request itself would have ended it."""
    tokens = generation.output_token_ids[: request.max_new_tokens]
    stopped = tokens[-1] in request.stop_ids
    return replace(
        generation, request=request, output_token_ids=tokens, finish_reason="stop" if stopped else "length", rounds=()
    )


def _teach(target: Target, request: Request, output: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Features [1, tokens, taps * hidden] of prompt and output, and what the target chooses in the output's place."""
    ids = [*request.token_ids, *output[:-1]]
    prompts = Prompts.of([ids], 0, target.dtype, target.device)
    slots = Slots.fresh(0, prompts.lengths, prompts.positions, target.cache.spare)
    logits = target.forward(
        prompts.ids, prompts.positions, prompts.mask, slots, kv_len=None, logits_to_keep=len(output)
    )
    positions = prompts.positions[:, -len(output) :] + 1
    choose = Chooser([request], target.device)
    parts = zip(torch.split(logits, _CHOSEN, dim=1), torch.split(positions, _CHOSEN, dim=1), strict=True)
    chosen: list[int] = torch.cat([choose(*part) for part in parts], dim=1)[0].tolist()
    return target.features(torch.arange(len(ids), device=target.device)[None]), chosen


def _draft(
    pair: ModelPair, target: Target, features: Tensor, request: Request, output: Sequence[int], k: int
) -> tuple[Floats32, Ints]:
    """The drafter's k best at every anchor: log-probabilities and ids, each [anchors, depth, k].

    Equal ones lower id first.
    """
    drafter = pair.dflash
    assert drafter is not None
    prompt, anchors = len(request.token_ids), len(output) - 1
    block, depth = drafter.config.block_size, drafter.config.max_depth
    if anchors == 0:
        return np.zeros((0, depth, k), dtype=np.float32), np.zeros((0, depth, k), dtype=np.int64)
    length = prompt + anchors - 1  # what the last anchor sees
    positions = torch.arange(length, device=target.device)[None]
    context = drafter.context_kv(drafter.project_features(features[:, :length]), positions)
    bonus = torch.tensor(output[:anchors], device=target.device)
    lengths = prompt + torch.arange(anchors, device=target.device)
    steps = torch.arange(block, device=target.device)
    found = []
    most = min(_CONTEXT // (length + block), _LOGITS // (depth * drafter.config.vocab_size))
    for rows in torch.split(torch.arange(anchors, device=target.device), max(1, most)):
        ids = torch.full((len(rows), block), drafter.config.mask_token_id, device=target.device)
        ids[:, 0] = bonus[rows]
        seen = int(lengths[rows[-1]])
        mask = functional.pad(committed_mask(lengths[rows], seen, target.dtype), (0, block))
        views = [
            (key[:, :, :seen].expand(len(rows), -1, -1, -1), value[:, :, :seen].expand(len(rows), -1, -1, -1))
            for key, value in context
        ]
        hidden = drafter(target.embed(ids), lengths[rows, None] + steps, views, mask)
        found.append(_best(target.head(hidden[:, 1:]), k))
    return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])


def _best(logits: Tensor, k: int) -> tuple[Floats32, Ints]:
    """As `ddbench.decoding.block.TreeProposer` takes them, equal ones put in the order of their ids."""
    logits = logits.float()
    top, ids = logits.topk(k, dim=-1)
    if bool((top[..., 1:] == top[..., :-1]).any()):
        by_id = ids.argsort(dim=-1)
        order = by_id.gather(-1, top.gather(-1, by_id).sort(dim=-1, descending=True, stable=True).indices)
        top, ids = top.gather(-1, order), ids.gather(-1, order)
    log_probs = top - logits.logsumexp(dim=-1, keepdim=True)
    return log_probs.cpu().numpy(), ids.cpu().numpy()
