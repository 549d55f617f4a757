"""Run-time limits of a graph's trees. Without torch, so that what only names them need not load it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.limits import floor_of, worst_key


@dataclass(frozen=True)
class Caps:
    """Run-time limits of the trees that a captured graph builds; `Trees.limit` brings them to the device.

    Attributes:
        width: most children of a node.
        depth: most drafted tokens on a path.
        nodes: most drafted nodes, the root not counted.
        min_log_prob: least cumulative log-probability of a node; None for no limit.
        force_spine: the drafter's own chain comes first, whatever its probability.
    """

    width: int
    depth: int
    nodes: int
    min_log_prob: float | None = None
    force_spine: bool = False

    def check(self, verify_width: int, block: int, top_k: int) -> None:
        """Raises ConfigError where a limit is none within what was captured."""
        least = self.min_log_prob
        require("width", self.width, 1 <= self.width <= top_k, f"1 to {top_k}, the captured candidates of a position")
        require("depth", self.depth, 1 <= self.depth <= block - 1, f"1 to {block - 1}, the drafter's block - 1")
        nodes = f"1 to {verify_width - 1}, the captured verify width - 1"
        require("nodes", self.nodes, 1 <= self.nodes <= verify_width - 1, nodes)
        require("min_log_prob", least, least is None or (least <= 0 and not math.isnan(least)), "at most 0, or null")
        fits = not self.force_spine or self.nodes >= self.depth
        require("force_spine", self.force_spine, fits, f"false with fewer nodes than the spine's {self.depth}")

    def numbers(self) -> list[int]:
        """As `Trees.caps` holds them."""
        return [self.width, self.depth, self.nodes, int(self.force_spine), worst_key(self.min_log_prob)]

    @classmethod
    def of(cls, numbers: list[int]) -> Caps:
        """The inverse of `numbers`."""
        width, depth, nodes, spine, worst = numbers
        return cls(width, depth, nodes, floor_of(worst), bool(spine))


def require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConfigError(name, value, allowed)
