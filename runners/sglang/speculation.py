"""The neutral shape (width, depth, nodes) as SGLang's settings of speculative decoding.

Names are those of ``ServerArgs`` in SGLang 0.5.17 and 0.5.23 (``sglang/srt/server_args.py``; from 0.5.18 or so the
fields live in ``sglang/srt/arg_groups/fields/spec.py``), the same in both; the command line has them with dashes.
SGLang counts the root among the "draft tokens": nodes + 1, the verify width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MOST_NODES = 127  # verify width 128: two 64-bit words of ancestors in the plug-in
ALGORITHM = {"dflash": "DFLASH", "eagle": "EAGLE3", "ddtree": "DDTREE"}


@dataclass(frozen=True)
class Draft:
    """What one arm drafts in a round.

    ``block``: positions of the DFlash drafter's block, its anchor counted; None for EAGLE. ``backend``: attention of
    the drafter, None to leave it to SGLang.
    """

    strategy: str
    width: int | None
    depth: int | None
    nodes: int | None
    block: int | None
    drafter: str
    revision: str | None = None
    backend: str | None = None
    force_spine: bool = False
    min_log_prob: float | None = None


def drafted_tokens(strategy: str, depth: int | None, nodes: int | None, block: int | None) -> int:
    """Tokens that a round proposes at most: the verify width less the root; 0 for autoregressive decoding."""
    if strategy == "dflash":
        return depth or (block or 16) - 1
    return nodes or 0 if strategy in ("eagle", "ddtree") else 0


def server_arguments(draft: Draft) -> dict[str, Any]:
    """The settings of ``ServerArgs`` that make a server draft so; all of EAGLE's, which derives those left out."""
    found: dict[str, Any] = {
        "speculative_algorithm": ALGORITHM[draft.strategy],
        "speculative_draft_model_path": draft.drafter,
        "speculative_num_draft_tokens": 1 + drafted_tokens(draft.strategy, draft.depth, draft.nodes, draft.block),
    }
    if draft.revision is not None:
        found["speculative_draft_model_revision"] = draft.revision
    if draft.backend is not None:
        found["speculative_draft_attention_backend"] = draft.backend
    if draft.strategy == "eagle":
        found |= {"speculative_num_steps": draft.depth, "speculative_eagle_topk": draft.width}
    if draft.strategy == "ddtree":
        found |= {"speculative_dflash_block_size": draft.block, "speculative_eagle_topk": candidates(draft)}
    return found


def candidates(draft: Draft) -> int:
    """Tokens of a position that can be in the tree: a node of rank r has r earlier siblings there."""
    nodes = draft.nodes or 0
    return nodes if draft.width is None else min(draft.width, nodes)


def limits(draft: Draft) -> dict[str, Any]:
    """What a server of our plug-in must say of its trees, by the names of ``internal_states[0].ddtree``.

    The depth is left out where neither the arm nor the drafter's block is known.
    """
    found: dict[str, Any] = {
        "nodes": draft.nodes,
        "width": candidates(draft),
        "depth": draft.depth or (draft.block - 1 if draft.block else None),
        "force_spine": draft.force_spine,
        "min_log_prob": draft.min_log_prob,
    }
    return {name: value for name, value in found.items() if value is not None or name == "min_log_prob"}


def may_be_smaller(draft: Draft) -> bool:
    """Whether a tree of the arm may have fewer nodes than the verify width has room for.

    A floor under the probabilities prunes it, and ``width`` children a node over ``depth`` levels may not fill it.
    """
    if draft.strategy != "ddtree":
        return False
    if draft.min_log_prob is not None:
        return True
    depth = draft.depth or (draft.block or 16) - 1
    level, room = 1, 0
    for _ in range(depth):
        level *= candidates(draft)
        room += level
        if room >= (draft.nodes or 0):
            return False
    return True


def environment(draft: Draft) -> dict[str, str]:
    """What SGLang has no flag for, as environment variables of our plug-in."""
    if draft.strategy != "ddtree":
        return {}
    values = {
        "DDTREE_DEPTH": draft.depth,
        "DDTREE_MIN_LOG_PROB": draft.min_log_prob,
        "DDTREE_FORCE_SPINE": 1 if draft.force_spine else None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
