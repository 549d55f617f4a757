"""``experiment=checkpoint_compare``: several drafters of one target, say the steps of a training run, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddbench.errors import ConfigError
from experiments import sweep


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """A sweep whose speculative arms are measured with each of ``config["drafters"]``, name to folder or hub id.

    Raises:
        ConfigError: fewer than two drafters, no strategy that uses them, or whatever a sweep refuses.
    """
    drafters, role = config.get("drafters"), config.get("role")
    if not isinstance(drafters, Mapping) or len(drafters) < 2:
        raise ConfigError("drafters", drafters, "two or more, as '{step100: <folder>, step200: <folder>}'")
    strategies = config.get("sweep", {}).get("strategy", [])
    users = {"dflash": {"dflash", "ddtree"}, "eagle": {"eagle"}}.get(str(role))
    if users is None:
        raise ConfigError("role", role, "one of dflash, eagle")
    if not users & set(strategies):
        raise ConfigError("sweep.strategy", strategies, f"one that uses the {role} drafter: {', '.join(sorted(users))}")
    return sweep.run(config, run_id)
