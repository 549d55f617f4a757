"""Replay against real decode runs of the tiny pair: every count of every request, integer for integer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ddbench.decoding import ModelPair, Request, Strategy, decode
from ddbench.decoding.batch import Batch
from ddbench.decoding.block import TreeProposer
from ddbench.decoding.decode import make_proposer
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.decoding.target import Target
from ddbench.replay import TraceSet, replay
from ddbench.replay.record import _best
from experiments.replay.check import compare, counts

SHAPES = [
    *(Strategy("dflash", depth=depth) for depth in (1, 4, 15)),
    *(
        Strategy("ddtree", width, depth, nodes)
        for width, depth, nodes in (
            *((None, 15, nodes) for nodes in (1, 2, 4, 8, 13, 16, 32, 48, 64)),
            *((None, depth, 24) for depth in (1, 2, 3, 5, 9)),
            *((width, 15, 24) for width in (1, 2, 3, 4, 6)),
            *((2, 3, 14), (3, 6, 40), (8, 2, 40)),
        )
    ),
    *(Strategy("ddtree", width, depth, 20, force_spine=True) for width, depth in ((None, 15), (2, 15), (4, 6))),
    *(Strategy("ddtree", min_log_prob=floor, nodes=32) for floor in (-0.5, -2.0, -6.0)),
    Strategy("ddtree", 3, 10, 16, force_spine=True, min_log_prob=-1.0),
]

MakeRequests = Callable[..., list[Request]]
MakeTraces = Callable[..., TraceSet]


def test_at_least_thirty_shapes_equal_live_decoding(
    tiny: ModelPair, make_requests: MakeRequests, make_traces: MakeTraces
) -> None:
    """Some texts end at a stop token, others at their length, in the middle of a round."""
    requests = make_requests(4, tokens=18, stop=".")
    traces = make_traces(tiny, requests)
    assert {each.finish_reason for each in traces.traces} == {"stop", "length"}
    assert sum(each.disagreements or 0 for each in traces.traces) == 0
    outcomes = replay(traces, SHAPES)
    assert len(set(SHAPES)) == len(SHAPES) >= 30
    for strategy, outcome in zip(SHAPES, outcomes, strict=True):
        row = compare(tiny, strategy, requests, traces, outcome, batch_size=4)
        assert row["equal"], (strategy, row)
    # The comparison can fail: another shape's counts are not taken for these.
    assert not compare(tiny, SHAPES[0], requests, traces, outcomes[5], batch_size=4)["equal"]
    clipped = sum(int((each.accepted_raw - each.accepted).sum()) for each in outcomes)
    assert clipped > 0


def test_sampled_text_replays_too(tiny64: ModelPair, make_requests: MakeRequests, make_traces: MakeTraces) -> None:
    """Draws are keyed by seed, prompt and position. In double precision no draw hangs on the last digit of a logit."""
    requests = make_requests(4, tokens=14, temperature=1.0, stop="\n")
    traces = make_traces(tiny64, requests)
    shapes = [Strategy("dflash"), Strategy("ddtree", nodes=16), Strategy("ddtree", 3, 7, 40)]
    for strategy, batch_size, outcome in zip(shapes, (4, 1, 3), replay(traces, shapes), strict=True):
        row = compare(tiny64, strategy, requests, traces, outcome, batch_size)
        assert row["equal"], (strategy, row)
        assert row["other_text"] == 0


def test_the_text_may_be_decoded_by_any_strategy(
    tiny: ModelPair, make_requests: MakeRequests, make_traces: MakeTraces
) -> None:
    from ddbench.replay.record import record

    requests = make_requests(3, tokens=12, stop=".")
    plain = make_traces(tiny, requests, batch_size=1)
    for recorded, trace in zip(record(tiny, requests, 64, 3, Strategy("ddtree", nodes=16)), plain.traces, strict=True):
        assert recorded.generation.output_token_ids == tuple(trace.output)
        assert recorded.tail == tuple(trace.tail)
        assert np.array_equal(recorded.ranks, trace.ranks)


class Watched(SpeculativeLoop):
    """The live loop, which also keeps what its drafter offered at every anchor."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.offers: list[tuple[int, int, torch.Tensor]] = []  # request, anchor, logits [depth, vocab]
        assert isinstance(self.proposer, TreeProposer)
        draft = self.proposer.draft

        def kept(rows: Any) -> torch.Tensor:
            logits = draft(rows)
            for row, each in zip(self.batch.active, logits, strict=True):
                self.offers.append((row.index, len(row.output) - 1, each))
            return logits

        self.proposer.draft = kept  # type: ignore[method-assign]


def offers(pair: ModelPair, strategy: Strategy, requests: list[Request], rows: int) -> Watched:
    proposer = make_proposer(pair, strategy)
    assert proposer is not None
    length = max(len(each.token_ids) + each.max_new_tokens for each in requests) + proposer.nodes + 1
    with torch.inference_mode(), Target(pair.target, proposer.taps, rows, length) as target:
        proposer.bind(target, rows, length)
        loop = Watched(target, Batch(requests, rows, lambda: 0.0, None), proposer, lambda: 0.0)
        loop.run()
    return loop


@pytest.mark.parametrize(("precision", "bound", "share"), [("tiny64", 4e-6, 0.999), ("tiny", 1e-3, 0.0)])
def test_offers_depend_on_the_committed_prefix_alone(
    precision: str,
    bound: float,
    share: float,
    request: pytest.FixtureRequest,
    make_requests: MakeRequests,
    make_traces: MakeTraces,
) -> None:
    """Whatever the trees before, the batch, and the passes in which the drafter's context came to be.

    In double precision the float32 log-probabilities are the same to the bit but for a few that differ in the last one;
    in single precision the passes' rounding shows.
    """
    pair: ModelPair = request.getfixturevalue(precision)
    requests = make_requests(3, tokens=12)
    traces = make_traces(pair, requests, nodes=16)
    equal = compared = 0
    for strategy, rows in (
        (Strategy("ddtree", nodes=4), 1),
        (Strategy("ddtree", nodes=40), 2),
        (Strategy("ddtree", 2, 6, 12), 3),
    ):
        loop = offers(pair, strategy, requests, rows)
        assert len(loop.offers) >= 6
        for number, anchor, logits in loop.offers:
            recorded = traces.traces[number].log_probs[anchor][: len(logits)]
            live, _ = _best(logits, recorded.shape[1])
            assert np.abs(live - recorded).max() < bound
            equal, compared = equal + int((live == recorded).sum()), compared + live.size
    assert equal >= share * compared, (equal, compared)


def test_counts_of_a_live_run_are_read_as_they_are_stored(tiny: ModelPair, make_requests: MakeRequests) -> None:
    (generation,) = decode(tiny, Strategy("ddtree", nodes=8), make_requests(1, tokens=10), 1)
    found = counts(generation, 15)
    rounds = generation.rounds
    assert found[0] == len(rounds) == sum(found[4:])
    assert found[1] == 8 * len(rounds)
    assert found[3] == sum(a * n for a, n in enumerate(found[4:]))
