"""What a strategy can draft: the shapes of a grid, and why some of them cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from experiments.settings import DrafterSettings, ModelSettings, SweepSettings


@dataclass(frozen=True)
class Shape:
    """The shape of what a strategy drafts; an axis that it lacks is None."""

    width: int | None = None
    depth: int | None = None
    nodes: int | None = None


def grid(
    strategy: str, sweep: SweepSettings, model: ModelSettings, force_spine: bool
) -> Iterator[tuple[Shape, str | None]]:
    """The distinct shapes of a strategy, each with the reason why it cannot be, or None."""
    block_size = model.dflash.block_size if model.dflash else None
    seen = set()
    for width, depth, nodes in axes(strategy, sweep):
        if depth is None and strategy in ("dflash", "ddtree") and block_size is not None:
            depth = block_size - 1
        shape = Shape(width, depth, nodes)
        if shape not in seen:
            seen.add(shape)
            yield shape, why_not(strategy, shape, block_size, force_spine)


def why_not(strategy: str, shape: Shape, block_size: int | None, force_spine: bool = False) -> str | None:
    """Why a shape cannot be, or None. ``block_size`` counts the anchor; None: no DFlash drafter is known."""
    width, depth, nodes = shape.width, shape.depth, shape.nodes
    if strategy == "autoregressive":
        return None
    if strategy in ("dflash", "ddtree") and depth is not None and block_size is not None and depth >= block_size:
        return f"depth {depth} >= block size {block_size}: the drafter proposes at most {block_size - 1} tokens"
    if strategy == "dflash":
        return None
    if strategy == "eagle" and (width is None or depth is None):
        axis = "width" if width is None else "depth"
        return f"an EAGLE drafter needs a number as {axis}, not null"
    if depth is None or nodes is None:
        return None
    if strategy == "ddtree" and force_spine and nodes < depth:
        return f"nodes {nodes} < depth {depth}: the forced spine alone takes {depth}"
    if width == 1 and nodes < depth:
        return f"nodes {nodes} < depth {depth} at width 1: the same chain as depth {nodes}"
    room = capacity(strategy, width, depth, nodes)
    if nodes > room:
        return f"nodes {nodes} > {room}: a tree of this width and depth holds no more"
    return None


def capacity(strategy: str, width: int | None, depth: int, enough: int) -> int:
    """Most nodes of a tree, counted up to ``enough`` or a little more.

    DDTree: every node may have ``width`` children, the sum of width^d over the levels. EAGLE-2/3 expansion: the first
    step gives ``width`` candidates, each later one expands a beam of ``width`` nodes into ``width`` children each.
    """
    if width is None:
        return enough
    if strategy == "eagle":
        return width + (depth - 1) * width * width
    total, level = 0, 1
    for _ in range(depth):
        level *= width
        total += level
        if total >= enough:
            break
    return total


def axes(strategy: str, sweep: SweepSettings) -> Iterator[tuple[int | None, int | None, int | None]]:
    if strategy == "autoregressive":
        yield None, None, None
    elif strategy == "dflash":
        yield from ((None, depth, None) for depth in sweep.depth)
    else:
        yield from product(sweep.width, sweep.depth, sweep.nodes)


def drafter_of(strategy: str, model: ModelSettings) -> tuple[str, DrafterSettings | None]:
    """The drafter a strategy uses: its place in the model's config, and its settings if there are any."""
    name = {"dflash": "dflash", "ddtree": "dflash", "eagle": "eagle"}.get(strategy, "")
    return name, getattr(model, name) if name else None


def describe_shape(shape: Shape) -> str:
    return " ".join(f"{axis}={value}" for axis, value in vars(shape).items() if value is not None)
