"""Rounds of the reference engine with a pinned acceptance: what a round costs, whatever the models would accept.

The target and the drafter run as ever; then the target's choices are replaced by tokens that follow the deepest path
of each tree for a given number of nodes and leave the tree there. So untrained weights do as well as trained ones, and
the text is of no meaning. No sequence ends: all of a batch go through the same number of rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from ddbench.decoding.api import Request, Sampling, Strategy
from ddbench.decoding.autoregressive import AutoregressiveLoop
from ddbench.decoding.batch import Batch
from ddbench.decoding.clock import StageClock
from ddbench.decoding.decode import check_requests, check_strategy, make_proposer
from ddbench.decoding.loop import Loop
from ddbench.decoding.pair import ModelPair
from ddbench.decoding.proposal import Proposal, Proposer, Rows
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.decoding.target import Target

STAGES = ("draft", "build", "verify", "commit")
SETTLE = 2  # steps after a prefill that are not counted
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timed:
    """Steps of one batch. ``ms``: of a step, mean; ``stages``: of its parts, likewise, None without a drafter.

    ``context``: committed tokens of a sequence when a step began, mean; ``accepted``: drafted tokens a round, mean.
    """

    ms: float
    stages: dict[str, float] | None
    context: float
    accepted: float


def pin(proposal: Proposal, accepted: int) -> Tensor:
    """Choices [rows, nodes + 1] of a target that keeps the first ``accepted`` nodes of a deepest path of each tree.

    A tree that is less deep is kept to its depth. The choice after the path is the smallest token that no node of the
    row's tree has: one of the first nodes + 1, whatever the vocabulary, which is taken to be larger than the tree.
    """
    rows, nodes = proposal.tokens.shape
    taken = torch.zeros(rows, nodes + 2, dtype=torch.int8, device=proposal.tokens.device)
    free = taken.scatter_(1, proposal.tokens.clamp(max=nodes + 1), 1)[:, : nodes + 1].argmin(dim=1)
    chosen = free[:, None].repeat(1, nodes + 2)  # the last column takes what is not on the path
    if accepted > 0:
        last = proposal.depths.clamp(max=accepted).argmax(dim=1)  # the first node of the depth that is kept
        picked = torch.arange(rows, device=last.device)
        on_path = proposal.ancestors.expand(rows, -1, -1)[picked, last + 1, 1:]  # the root, which is first, left out
        chosen.scatter_(1, torch.where(on_path, proposal.parents + 1, nodes + 1), proposal.tokens)
    return chosen[:, : nodes + 1]


class PinnedLoop(SpeculativeLoop):
    """Pinning is no part of a round, and is timed apart: on CUDA between two events in the round's own stream, which
    is what it adds to the round whether the device waits for the host there or the host for the device."""

    def __init__(self, target: Target, batch: Batch, proposer: Proposer, clock: Clock, accepted: int) -> None:
        super().__init__(target, batch, proposer, clock)
        self._accepted = accepted
        self._pinning = StageClock(target.device, clock)

    def _verify(self, rows: Rows, proposal: Proposal) -> Tensor:
        chosen = super()._verify(rows, proposal)
        self._pinning.start()
        pinned = pin(proposal, self._accepted).to(chosen.dtype)
        self._pinning.mark("verify")
        return pinned

    def pin_s(self) -> float:
        """Seconds that pinning took in the last round, which has ended."""
        return self._pinning.read()["verify"]


def timed_steps(
    pair: ModelPair,
    strategy: Strategy,
    prompts: Sequence[Sequence[int]],
    steps: int,
    accepted: int,
    clock: Clock = time.perf_counter,
) -> Timed:
    """``steps`` steps of a batch of all ``prompts``, after one prefill.

    Raises:
        ConfigError: a strategy that this pair cannot run, or a context that is too long for it.
    """
    check_strategy(pair, strategy)
    new_tokens = 2 + (SETTLE + steps) * (1 if strategy.name == "autoregressive" else accepted + 1)
    requests = [
        Request(f"{number}", tuple(ids), new_tokens, Sampling(), frozenset()) for number, ids in enumerate(prompts)
    ]
    check_requests(pair, requests)
    proposer = make_proposer(pair, strategy)
    length = max(map(len, prompts)) + new_tokens + 1 + (proposer.nodes if proposer else 0)
    with torch.inference_mode(), Target(pair.target, proposer.taps if proposer else (), len(prompts), length) as target:
        begin = clock()
        batch = Batch(requests, len(prompts), lambda: clock() - begin, None)
        if proposer is None:
            return _plain(AutoregressiveLoop(target, batch), steps)
        proposer.bind(target, len(prompts), length)
        return _pinned(PinnedLoop(target, batch, proposer, clock, accepted), steps)


def prefill_ms(pair: ModelPair, strategy: Strategy, prompt: Sequence[int], clock: Clock = time.perf_counter) -> float:
    """Milliseconds to take in one prompt, the drafter's part included: a request that ends with its first token."""
    request = Request("0", tuple(prompt), 1, Sampling(), frozenset())
    proposer = make_proposer(pair, strategy)
    assert proposer is not None
    length = len(prompt) + 2 + proposer.nodes
    with torch.inference_mode(), Target(pair.target, proposer.taps, 1, length) as target:
        proposer.bind(target, 1, length)
        begin = clock()
        SpeculativeLoop(target, Batch([request], 1, lambda: clock() - begin, None), proposer, clock).run()
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)
        return 1e3 * (clock() - begin)


def _plain(loop: Loop, steps: int) -> Timed:
    seconds, contexts = [], []
    for began, ended, context in _steps(loop, steps):
        seconds.append(ended - began)
        contexts.append(context)
    return Timed(1e3 * fmean(seconds), None, fmean(contexts), 0.0)


def _pinned(loop: PinnedLoop, steps: int) -> Timed:
    seconds, pins, contexts = [], [], []
    for began, ended, context in _steps(loop, steps):
        pins.append(loop.pin_s())
        seconds.append(ended - began - pins[-1])
        contexts.append(context)
    rounds = loop.batch.active[0].rounds[SETTLE:]  # stages are the batch's
    parts = {stage: 1e3 * fmean(getattr(each, f"{stage}_s") for each in rounds) for stage in STAGES}
    parts["verify"] -= 1e3 * fmean(pins)  # the stage whose end comes after it
    kept = fmean(each.accepted_raw for row in loop.batch.active for each in row.rounds[SETTLE:])
    return Timed(1e3 * fmean(seconds), parts, fmean(contexts), kept)


def _steps(loop: Loop, steps: int) -> Iterator[tuple[float, float, float]]:
    """Admits the whole batch, then steps: start and end of each that counts, and its sequences' mean length before."""
    loop._refill()
    loop.membership_changed()
    for number in range(SETTLE + steps):
        context = fmean(row.length for row in loop.batch.active)
        began = loop.batch.now()
        loop.step()
        if number >= SETTLE:
            yield began, loop.batch.now(), context
