"""Exact replay: what any tree shape would have accepted, from one recording of the drafter (see docs/replay.md).

    traces = TraceSet.of([record_one(...), ...])       what a recording holds, a request each
    outcomes = replay(traces, [Strategy("ddtree", nodes=64), Strategy("dflash", depth=7)])

At temperature 0, and above it with draws keyed by seed, prompt and position, every lossless strategy emits the same
tokens; and a block drafter's distributions depend on the committed prefix alone. Rounds, drafted and accepted tokens of
a shape then follow from the recording by counting: no model runs.
"""

from ddbench.replay.family import Family
from ddbench.replay.outcome import Outcome
from ddbench.replay.policy import Fixed, Policy, Rounds, replay_policy
from ddbench.replay.shapes import refuse, replay
from ddbench.replay.trace import SCHEMA, Trace, TraceSet, load_trace, save_trace

__all__ = [
    "SCHEMA",
    "Family",
    "Fixed",
    "Outcome",
    "Policy",
    "Rounds",
    "Trace",
    "TraceSet",
    "load_trace",
    "refuse",
    "replay",
    "replay_policy",
    "save_trace",
]
