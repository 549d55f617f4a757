"""What is asked of the tree: three sizes that are captured in graphs, and limits below them that are not.

Sizes come in SGLang's own settings: ``speculative_num_draft_tokens`` is the verify width N (nodes and root),
``speculative_dflash_block_size`` the drafter's block B (root and drafted positions), ``speculative_eagle_topk`` the
candidates K of a position. Limits come in the environment, and later through the server's state (`control`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.limits import MOST_DEPTH, MOST_NODES
from ddbench.plugins.sglang.kernels.caps import Caps

WIDTH, DEPTH, NODES = "DDTREE_WIDTH", "DDTREE_DEPTH", "DDTREE_NODES"
MIN_LOG_PROB, FORCE_SPINE, TRACE = "DDTREE_MIN_LOG_PROB", "DDTREE_FORCE_SPINE", "DDTREE_TRACE"
ATTENTION = "DDTREE_ATTENTION"  # of the verify pass: "own", as left out, or "sglang"
POLICY, COSTS, WIDTHS = "DDTREE_POLICY", "DDTREE_COSTS", "DDTREE_WIDTHS"  # see `pilot`
WIDTHS_VERSION = "0.5.17"  # of SGLang, whose runners of graphs were read for several widths beside each other
RECORD, RECORD_NODES = "DDTREE_RECORD", "DDTREE_RECORD_NODES"  # see `recorder`
DEFAULT_NODES = 32

Value = TypeVar("Value")


@dataclass(frozen=True)
class Sizes:
    """``verify_width`` N tokens of one sequence in the target's pass; ``block`` B; ``top_k`` K."""

    verify_width: int
    block: int
    top_k: int

    def __post_init__(self) -> None:
        widest, deepest = MOST_NODES + 1, MOST_DEPTH + 1
        _require("speculative_num_draft_tokens", self.verify_width, 2, widest, "the verify width, root counted")
        _require("speculative_dflash_block_size", self.block, 2, deepest, "the drafter's block, root counted")
        _require("speculative_eagle_topk", self.top_k, 1, self.verify_width - 1, "candidates of a position")

    @property
    def window(self) -> int:
        """Cache slots that a round needs beyond a sequence's committed tokens: its tree's, or its drafter's block's."""
        return max(self.verify_width, self.block)

    @classmethod
    def of(cls, args: Any) -> Sizes:
        """From resolved server arguments. Raises ConfigError."""
        return cls(
            int(args.speculative_num_draft_tokens),
            int(args.speculative_dflash_block_size),
            int(args.speculative_eagle_topk),
        )


def caps_at_start(sizes: Sizes, environment: Mapping[str, str] | None = None) -> Caps:
    """The limits that the environment sets; what it leaves out is as wide as ``sizes``. Raises ConfigError."""
    found = os.environ if environment is None else environment
    caps = Caps(
        width=_read(found, WIDTH, int, sizes.top_k),
        depth=_read(found, DEPTH, int, sizes.block - 1),
        nodes=_read(found, NODES, int, sizes.verify_width - 1),
        min_log_prob=_read(found, MIN_LOG_PROB, float, None),
        force_spine=_read(found, FORCE_SPINE, _flag, False),
    )
    caps.check(sizes.verify_width, sizes.block, sizes.top_k)
    return caps


def usual_widths(own: int) -> tuple[int, ...]:
    """Verify widths, the server's ``own`` last, that an adaptive one chooses from unless told otherwise; 1 is a step
    without the drafter."""
    return (*(width for width in (1, 4, 8, 16, 32, 64) if width < own), own)


def whole_number(found: Mapping[str, str], name: str, default: int) -> int:
    """A number of the environment. Raises ConfigError."""
    return _read(found, name, int, default)


def _read(found: Mapping[str, str], name: str, kind: Callable[[str], Value], default: Value) -> Value:
    text = found.get(name, "")
    if not text:
        return default
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(name, text, "a number") from error


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _require(name: str, value: int, least: int, most: int, what: str) -> None:
    if not least <= value <= most:
        raise ConfigError(name, value, f"{least} to {most}: {what}")
