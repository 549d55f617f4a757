"""What the attention layers of this process need to know of the trees: one worker a process, one context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ddbench.plugins.vllm.state import TreeState

Rows = Literal["none", "some", "all"]


@dataclass
class TreeContext:
    """``rows``: which rows of the running batch the tree attention computes; ``some`` leaves the others to the engine.

    ``draft_layers`` never see a tree mask: it is their names that say so, since a drafter's pass may have any width.
    """

    state: TreeState
    draft_layers: frozenset[str] = field(default_factory=frozenset)
    rows: Rows = "none"
    workspace: Any = None  # of the CUDA kernel's splits; see kernels.attention_launch


_active: list[TreeContext] = []


def activate(context: TreeContext) -> None:
    """Makes ``context`` that of this process; an earlier one (an engine that was shut down) is forgotten."""
    _active[:] = [context]


def active() -> TreeContext:
    """The context of this process. Raises RuntimeError when a tree backend runs without the tree's worker."""
    if not _active:
        raise RuntimeError(
            "ddbench: the tree attention backend needs --worker-cls ddbench.plugins.vllm.worker.DDTreeWorker"
        )
    return _active[0]
