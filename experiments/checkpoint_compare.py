"""``experiment=checkpoint_compare``: several drafters of one target, say the steps of a training run, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddbench.errors import ConfigError
from experiments import sweep
from experiments.progress import warn


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """A sweep whose speculative arms are measured with each of ``config["drafters"]``, name to folder or hub id.

    Raises:
        ConfigError: no drafter, no strategy that uses them, or whatever a sweep refuses.
    """
    drafters, role = config.get("drafters"), config.get("role")
    if not isinstance(drafters, Mapping) or not drafters:
        raise ConfigError("drafters", drafters, "some of them, as '{step100: <folder>, step200: <folder>}'")
    if len(drafters) == 1:
        warn("one drafter is measured alone: there is nothing to compare it with")
    strategies = config.get("sweep", {}).get("strategy", [])
    users = {"dflash": {"dflash", "ddtree"}, "eagle": {"eagle"}}.get(str(role))
    if users is None:
        raise ConfigError("role", role, "one of dflash, eagle")
    if not users & set(strategies) and list(strategies) != ["autoregressive"]:
        raise ConfigError("sweep.strategy", strategies, f"one that uses the {role} drafter: {', '.join(sorted(users))}")
    return sweep.run(config, run_id)
