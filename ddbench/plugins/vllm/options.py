"""What is asked of the tree: the `ddbench` group of vLLM's `--additional-config`, and two sizes that vLLM knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.limits import MOST_DEPTH, MOST_NODES


@dataclass(frozen=True)
class Options:
    """The tree's shape. ``nodes`` is vLLM's num_speculative_tokens; ``block`` the drafter's block, its anchor counted.

    ``width`` None: no limit but the node budget. ``depth`` counts drafted tokens, at most ``block - 1``. ``trace``
    names a file that gets one JSON line a verified row: for diagnosis, since it makes the host wait for the device.
    """

    nodes: int
    block: int
    width: int | None = None
    depth: int | None = None
    min_log_prob: float | None = None
    force_spine: bool = False
    trace: str | None = None

    def __post_init__(self) -> None:
        _require("num_speculative_tokens", self.nodes, 1 <= self.nodes <= MOST_NODES, f"1 to {MOST_NODES} nodes")
        _require("block_size", self.block, 2 <= self.block <= MOST_DEPTH + 1, f"2 to {MOST_DEPTH + 1}")
        _require("width", self.width, self.width is None or self.width >= 1, "an integer >= 1, or null")
        drafted = self.block - 1
        depth = self.depth
        _require("depth", depth, depth is None or 1 <= depth <= drafted, f"1 to {drafted} (block - 1), or null")
        least = self.min_log_prob
        _require("min_log_prob", least, least is None or (least <= 0 and not math.isnan(least)), "at most 0, or null")
        fits = not self.force_spine or self.nodes >= self.levels
        _require("force_spine", self.force_spine, fits, f"false with fewer nodes than the spine's {self.levels}")

    @property
    def levels(self) -> int:
        """Deepest level of the tree: no path is longer."""
        return self.block - 1 if self.depth is None else self.depth

    @property
    def candidates(self) -> int:
        """Candidates of a position that can matter: a node of rank r has r earlier siblings in the tree."""
        return self.nodes if self.width is None else min(self.width, self.nodes)

    @property
    def lookahead(self) -> int:
        """KV slots past the scheduled tokens that the drafter writes: its anchor and its masks, or the tree's nodes."""
        return max(self.nodes, self.block - 1) + 1

    @classmethod
    def of(cls, additional: object, nodes: int, block: int) -> Options:
        """From the dictionary under ``additional_config["ddbench"]``. Raises ConfigError for what cannot be."""
        group = additional.get("ddbench", {}) if isinstance(additional, Mapping) else {}
        if not isinstance(group, Mapping):
            raise ConfigError("additional_config.ddbench", group, "a group of settings")
        kinds: dict[str, tuple[type, ...]] = {
            "width": (int,),
            "depth": (int,),
            "min_log_prob": (int, float),
            "force_spine": (bool,),
            "trace": (str,),
        }
        values: dict[str, Any] = {}
        for name, value in group.items():
            if name not in kinds:
                raise ConfigError(f"additional_config.ddbench.{name}", value, f"unknown; known: {', '.join(kinds)}")
            exact = isinstance(value, kinds[name]) and isinstance(value, bool) == (bool in kinds[name])
            _require(name, value, value is None or exact, " or ".join(kind.__name__ for kind in kinds[name]))
            values[name] = value
        values["force_spine"] = bool(values.get("force_spine") or False)
        return cls(nodes=nodes, block=block, **values)


def _require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        known = name in ("num_speculative_tokens", "block_size")
        raise ConfigError(name if known else f"additional_config.ddbench.{name}", value, allowed)
