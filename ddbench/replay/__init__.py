"""Exact replay: what any tree shape would have accepted, from one recording of the drafter (see docs/replay.md).

    traces = TraceSet.of([record_one(...), ...])       what a recording holds, a request each
    outcomes = replay(traces, [Strategy("ddtree", nodes=64), Strategy("dflash", depth=7)])

At temperature 0, and above it with draws keyed by seed, prompt and position, every lossless strategy emits the same
tokens; and a block drafter's distributions depend on the committed prefix alone. Rounds, drafted and accepted tokens of
a shape then follow from the recording by counting: no model runs. So do those of a policy that chooses anew at every
step (`ddbench.adaptive`), for a batch that shares its choices:

    steps = replay_policy(Offers.of(traces, candidates), CostOptimal(), costs, batch_size=8)
"""

from ddbench.replay.bound import bound_tokens_per_s, least_ms
from ddbench.replay.closed_loop import PLAIN, Steps, replay_policy
from ddbench.replay.family import Family
from ddbench.replay.offers import Offers
from ddbench.replay.outcome import Outcome
from ddbench.replay.shapes import refuse, replay
from ddbench.replay.trace import SCHEMA, Trace, TraceSet, load_trace, save_trace

__all__ = [
    "PLAIN",
    "SCHEMA",
    "Family",
    "Offers",
    "Outcome",
    "Steps",
    "Trace",
    "TraceSet",
    "bound_tokens_per_s",
    "least_ms",
    "load_trace",
    "refuse",
    "replay",
    "replay_policy",
    "save_trace",
]
