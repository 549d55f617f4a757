"""Arms whose verify width a policy chooses (`ddbench.plugins.sglang.pilot`): what servers are told, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddbench.cost import CostModel
from ddbench.cost.file import copy_cost
from ddbench.errors import ConfigError
from ddbench.plugins.sglang.options import COSTS, POLICY, WIDTHS, WIDTHS_VERSION, usual_widths
from ddbench.records import Arm
from runners.hosts import Host


def widths_of(arm: Arm) -> tuple[int, ...]:
    """Verify widths that the arm's server captures, its own last."""
    return usual_widths((arm.nodes or 0) + 1)


def environment(arm: Arm, cost: CostModel | None, scratch: Path, host: Host) -> dict[str, str]:
    """Variables of the arm's server, nothing for an arm without a policy; the cost file is put where it can read it.

    It has the very fits that the arm's ``cost`` is a hash of: nothing is fitted anew on the way.

    Raises:
        ConfigError: there is no cost.
    """
    if arm.policy is None:
        return {}
    if cost is None:
        raise ConfigError("strategy.cost", None, f"a cost file of this setup: {arm.policy} reckons with it")
    path = scratch / "costs.json"
    copy_cost(path, cost)
    place = str(path.resolve())
    if not host.is_local:
        place = host.path("costs", f"{arm.cost}.json")
        host.put(path, place)
    narrow = ",".join(map(str, widths_of(arm)[:-1]))
    return {POLICY: arm.policy, COSTS: place, WIDTHS: narrow}


def refuse_engine(version: str | None, flags: Mapping[str, Any]) -> str | None:
    """Why an arm with a policy cannot run; None if it can. ``version``: of SGLang, a number; None: not known."""
    if version is not None and version != WIDTHS_VERSION:
        return f"a verify width that changes needs SGLang {WIDTHS_VERSION}, not {version}"
    if (flags.get("tensor_parallel") or 1) > 1:
        return "a verify width that changes is not for tensor parallelism: ranks would see rounds arrive apart"
    if flags.get("attention_backend") not in ("triton", None):
        return f"a verify width that changes needs attention_backend=triton, not {flags['attention_backend']}"
    return None


def refuse_batch(cost: CostModel, nodes: int, batch_size: int) -> str | None:
    """Why a policy cannot reckon with this cost at all widths for batches of up to so many; None if it can."""
    trees = np.array([width for width in usual_widths(nodes + 1) if width > 1])
    try:
        for batch in (1, batch_size):
            cost.round_ms(trees, batch, cost.fit("ddtree").measured.context[0])
            cost.autoregressive_ms(batch, cost.fit("autoregressive").measured.context[0])
    except ConfigError as error:
        return f"its cost file does not do: {error}"
    return None
