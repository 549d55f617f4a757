"""The entry: check everything, then run the strategy's loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from ddbench.adaptive import Adaptive
from ddbench.decoding.adaptive import AdaptiveLoop, AdaptiveProposer
from ddbench.decoding.api import Generation, Request, Strategy
from ddbench.decoding.autoregressive import AutoregressiveLoop
from ddbench.decoding.batch import Batch
from ddbench.decoding.block import ChainProposer, TreeProposer
from ddbench.decoding.eagle import EagleProposer
from ddbench.decoding.graphs import Graphs
from ddbench.decoding.kept import KeptGraphs, Sizes
from ddbench.decoding.pair import ModelPair
from ddbench.decoding.proposal import Proposer
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.decoding.target import Target, check_target, text_config
from ddbench.drafters import check_dflash_pair, check_eagle3_pair
from ddbench.errors import ConfigError
from ddbench.tree import EagleExpansion

REHEARSED = 40  # tokens, which are more rounds than a shape takes to be captured


def decode(
    pair: ModelPair,
    strategy: Strategy,
    requests: Sequence[Request],
    batch_size: int,
    max_length: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_finish: Callable[[Generation], None] | None = None,
    adaptive: Adaptive | None = None,
    graphs: bool | KeptGraphs = False,
    on_start: Callable[[Graphs | None], None] | None = None,
) -> list[Generation]:
    """Continues every request, ``batch_size`` of them in flight and refilled as they end.

    Args:
        pair: target and drafters.
        strategy: what to run, with its shape.
        requests: prompts; any lengths, samplings and stop tokens may be mixed.
        batch_size: most requests in flight.
        max_length: context in tokens, prompt and output together; default: the target's own.
        clock: seconds; results hold its differences to its value when decoding began, caches allocated.
        on_finish: called with each generation as it ends.
        adaptive: for ddtree alone: what each step verifies is chosen anew (:mod:`ddbench.adaptive`).
        graphs: replay the passes of target and block drafter, and the build, from CUDA graphs: for models whose
            forward asks nothing of the host (not those that route tokens to experts). Hybrid targets go on without.
            They are destroyed when decoding ends; a :class:`KeptGraphs` keeps them for its next decode of the same
            sizes, unless a policy chooses.
        on_start: called once when all is made and rehearsed, just before the clock's mark; it gets the graphs, None
            where the passes run without.

    Returns:
        Generations in the order of ``requests``.

    Raises:
        ConfigError: before anything runs, for a strategy, a request or a batch size that cannot be.
    """
    check_target(pair.target)
    check_strategy(pair, strategy)
    if adaptive is not None:
        check_adaptive(pair, strategy, adaptive)
    check_requests(pair, requests, max_length)
    if batch_size < 1:
        raise ConfigError("batch_size", batch_size, "an integer >= 1")
    if not requests:
        return []
    rows = min(batch_size, len(requests))
    room = graphs.room if isinstance(graphs, KeptGraphs) else 0
    tokens = max(room, *(len(request.token_ids) + request.max_new_tokens for request in requests))
    with torch.inference_mode(), bound(pair, strategy, rows, tokens, adaptive, graphs) as (target, proposer):
        if target.graphs is not None and adaptive is None:
            run_loop(target, Batch(rehearsal(requests[0], rows), rows, clock, None), proposer, clock)
        if on_start is not None:
            on_start(target.graphs)
        begin = clock()
        batch = Batch(requests, rows, lambda: clock() - begin, on_finish)
        run_loop(target, batch, proposer, clock)
    return batch.results()


@contextmanager
def bound(
    pair: ModelPair,
    strategy: Strategy,
    rows: int,
    tokens: int,
    adaptive: Adaptive | None,
    graphs: bool | KeptGraphs,
) -> Iterator[tuple[Target, Proposer | None]]:
    """A target for ``rows`` sequences of ``tokens`` tokens, hooked into the model, and the proposer bound to it."""
    proposer = make_proposer(pair, strategy, adaptive)
    length = tokens + 1 + (proposer.nodes if proposer else 0)

    def make() -> tuple[Target, Proposer | None]:
        target = Target(pair.target, proposer.taps if proposer else (), rows, length, bool(graphs))
        try:
            if proposer is not None:
                proposer.bind(target, rows, length)
        except BaseException:  # no memory left for it, say
            target.close()
            raise
        return target, proposer

    if isinstance(graphs, KeptGraphs) and adaptive is None:
        with graphs.bound(Sizes(pair, strategy, rows, length), make) as kept:
            yield kept
        return
    target, _ = make()
    with target:
        yield target, proposer


def run_loop(target: Target, batch: Batch, proposer: Proposer | None, clock: Callable[[], float]) -> None:
    """Runs a batch to its end by the loop that belongs to ``proposer``, which is bound to ``target``."""
    if proposer is None:
        AutoregressiveLoop(target, batch).run()
    elif isinstance(proposer, AdaptiveProposer):
        AdaptiveLoop(target, batch, proposer, clock).run()
    else:
        SpeculativeLoop(target, batch, proposer, clock).run()


def rehearsal(request: Request, rows: int) -> list[Request]:
    """Requests that are decoded before the clock starts, so that graphs are captured then, as far as one prompt shows
    which shapes will come; others are captured as they come."""
    early = replace(request, max_new_tokens=min(request.max_new_tokens, REHEARSED), stop_ids=frozenset())
    return [early] * rows


def check_strategy(pair: ModelPair, strategy: Strategy) -> None:
    """Can this pair run this strategy with this shape?

    Raises:
        ConfigError: a missing drafter, a depth beyond the block, or a forced spine that the nodes cannot hold.
        DrafterMismatch: the drafter does not belong to the target.
    """
    config = text_config(pair.target)
    if strategy.name in ("dflash", "ddtree"):
        if pair.dflash is None:
            raise ConfigError(
                "strategy", strategy.name, "a strategy whose drafter is loaded; the pair has no DFlash drafter"
            )
        check_dflash_pair(pair.dflash.config, config)
        longest = pair.dflash.config.max_depth
        if strategy.depth is not None and strategy.depth > longest:
            block = pair.dflash.config.block_size
            raise ConfigError(
                "strategy.depth", strategy.depth, f"at most {longest}, the drafter's block of {block} less one"
            )
        depth = strategy.depth or longest
        if strategy.force_spine and (strategy.nodes or longest) < depth:
            raise ConfigError(
                "strategy.nodes", strategy.nodes, f"at least the depth of {depth}, to hold a forced spine"
            )
    if strategy.name == "eagle":
        if pair.eagle is None:
            raise ConfigError(
                "strategy", strategy.name, "a strategy whose drafter is loaded; the pair has no EAGLE drafter"
            )
        check_eagle3_pair(pair.eagle.config, config)
        if (strategy.width or 1) > pair.eagle.config.draft_vocab_size:
            size = pair.eagle.config.draft_vocab_size
            raise ConfigError("strategy.width", strategy.width, f"at most {size}, the drafter's vocabulary")
        most = EagleExpansion.candidates(strategy.depth or 1, strategy.width or 1)
        if (strategy.nodes or 1) > most:
            raise ConfigError("strategy.nodes", strategy.nodes, f"at most {most}, all that this depth and width draft")


def check_adaptive(pair: ModelPair, strategy: Strategy, adaptive: Adaptive) -> None:
    """Can a policy choose with this strategy, which has been checked?

    Raises:
        ConfigError: another strategy than ddtree, a limit that its one build would not have, or candidates beyond it.
    """
    if strategy.name != "ddtree":
        raise ConfigError("policy", adaptive.policy.name, f"null, since {strategy.name} is not a ddtree")
    for axis, off in (("width", None), ("min_log_prob", None), ("force_spine", False)):
        if getattr(strategy, axis) != off:
            allowed = (
                f"{str(off).lower().replace('none', 'null')} under a policy, whose budgets come from one open build"
            )
            raise ConfigError(f"strategy.{axis}", getattr(strategy, axis), allowed)
    assert pair.dflash is not None
    longest = pair.dflash.config.max_depth
    for name, most, room in (
        ("nodes", adaptive.candidates.most, strategy.nodes or longest),
        ("depth", max(adaptive.candidates.chains, default=0), strategy.depth or longest),
    ):
        if most > room:
            raise ConfigError(f"candidates.{name}", most, f"at most the strategy's own {room}")


def check_requests(pair: ModelPair, requests: Sequence[Request], max_length: int | None = None) -> None:
    """Do all requests fit the context, and are their tokens the target's?

    Raises:
        ConfigError: names the first prompt that does not.
    """
    own = pair.max_length
    if max_length is not None and (max_length < 1 or (own is not None and max_length > own)):
        raise ConfigError("max_length", max_length, f"1 to the target's context of {own}" if own else "an integer >= 1")
    context = max_length or own
    vocab = text_config(pair.target).vocab_size
    for request in requests:
        needed = len(request.token_ids) + request.max_new_tokens
        if context is not None and needed > context:
            parts = f"{len(request.token_ids)} prompt + {request.max_new_tokens} new tokens"
            allowed = f"a request within the context of {context}, not {parts}"
            raise ConfigError("prompt", request.prompt_id, allowed)
        if not 0 <= min(request.token_ids) <= max(request.token_ids) < vocab:
            raise ConfigError("prompt", request.prompt_id, f"token ids from 0 to {vocab - 1}")


def make_proposer(pair: ModelPair, strategy: Strategy, adaptive: Adaptive | None = None) -> Proposer | None:
    """The drafting half of a checked strategy; None for autoregressive decoding."""
    if strategy.name == "autoregressive":
        return None
    if strategy.name == "eagle":
        assert pair.eagle is not None
        assert strategy.depth is not None
        width, layers = strategy.width or 1, text_config(pair.target).num_hidden_layers
        return EagleProposer(pair.eagle, strategy.depth, width, strategy.nodes or strategy.depth, layers)
    assert pair.dflash is not None
    depth = strategy.depth or pair.dflash.config.max_depth
    if strategy.name == "dflash":
        return ChainProposer(pair.dflash, depth)
    if adaptive is not None:
        return AdaptiveProposer(pair.dflash, depth, adaptive)
    return TreeProposer(
        pair.dflash,
        depth,
        strategy.nodes or pair.dflash.config.max_depth,
        strategy.width,
        strategy.min_log_prob,
        strategy.force_spine,
    )
