"""What a SGLang server that runs already says of itself."""

from __future__ import annotations

from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from runners.base import EngineFailure, ModelFiles
from runners.sglang import info
from runners.sglang.command import draft_of
from runners.sglang.speculation import limits, server_arguments


def info_at(url: str) -> dict[str, Any]:
    """Settings of the SGLang that answers at ``url``. Raises ConfigError if none does."""
    try:
        found = info.fetch(url)
    except EngineFailure as failure:
        raise ConfigError("engine.url", url, f"the address of a running SGLang server ({failure})") from None
    if "version" not in found or "model_path" not in found:
        raise ConfigError("engine.url", url, "the address of a running SGLang server (its /server_info has no version)")
    return found


def version_at(url: str) -> str:
    """The version of the SGLang that answers at ``url``. Raises ConfigError if none does."""
    return str(info_at(url)["version"]).partition("+")[0]


def check_arm(arm: Arm, model: ModelFiles, found: dict[str, Any]) -> None:
    """Raises EngineFailure where a running server is not the arm's: another strategy, shape, or limits of trees."""
    draft = draft_of(arm, model)
    asked = server_arguments(draft) if draft is not None else {}
    names = [name for name in info.CHECKED if name.startswith("speculative_") and "backend" not in name]
    shape = {name: asked.get(name) for name in names}
    told = {name: found[name] for name in names if name in found}
    info.check(shape, told)
    if draft is not None and arm.strategy == "ddtree":
        info.check_trees(limits(draft), found, policy=arm.policy)
