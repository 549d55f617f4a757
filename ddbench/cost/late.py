"""How late an engine's scheduler learns that a request has ended."""

from __future__ import annotations

from ddbench.cost.model import CostModel


def late_steps(cost: CostModel) -> int:
    """Steps that a request which has ended still takes part in, before another can have its place.

    SGLang's overlap scheduling launches a step before it reads what came of the one before (``event_loop_overlap`` of
    its scheduler), so a request's end is seen when its row has been launched once more: 1. Whoever waits for the
    request sees its last token in time. Without overlap 0. Of other engines this is not told: 0.
    """
    setup = cost.fingerprint
    return int(setup.get("engine") == "sglang" and setup.get("overlap") == "True")
