"""From the axes of a sweep to its cells: shapes by strategy, what cannot be, and the order of measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm, Cell
from experiments.settings import DrafterSettings, ModelSettings, Settings, SweepSettings


@dataclass(frozen=True)
class Shape:
    """The shape of what a strategy drafts; an axis that it lacks is None."""

    width: int | None = None
    depth: int | None = None
    nodes: int | None = None


@dataclass(frozen=True)
class Dropped:
    """A grid point that cannot be, and why."""

    strategy: str
    width: int | None
    depth: int | None
    nodes: int | None
    batch_size: int
    temperature: float
    reason: str


@dataclass(frozen=True)
class Planned:
    """A cell to be measured, or one that the engine cannot run, with the reason."""

    cell: Cell
    unsupported: str | None


@dataclass(frozen=True)
class Plan:
    cells: tuple[Planned, ...]  # in the order of measurement
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True)
class Facts:
    """What the plan takes from outside the settings."""

    engine_version: str
    revisions: dict[str, str | None]  # of target, dflash and eagle
    prompts_hash: str
    prompts: int
    unsupported: dict[str, str]  # by strategy: why the engine cannot run it with this model on this host


def make_plan(settings: Settings, facts: Facts) -> Plan:
    """Expands the axes, drops what cannot be, and orders the cells.

    Order: blocks, batch sizes, temperatures, then the strategies as listed with autoregressive first; odd blocks run
    their arms in reverse (ABBA), so that a drift of the machine falls on all arms alike.

    Raises:
        ConfigError: a single explicit shape that cannot be, or a grid in which none can.
    """
    shapes: list[tuple[str, Shape]] = []
    dropped: list[Dropped] = []
    settings_points = list(product(settings.sweep.batch_size, settings.sweep.temperature))
    for strategy in sorted(settings.sweep.strategy, key=lambda name: name != "autoregressive"):
        for shape, reason in grid(strategy, settings.sweep, settings.model, settings.strategy.force_spine):
            if reason is None:
                shapes.append((strategy, shape))
                continue
            open_axis = strategy == "eagle" and (shape.width is None or shape.depth is None)
            if len(list(_axes(strategy, settings.sweep))) == 1 and not open_axis:
                raise ConfigError(f"sweep ({strategy})", _describe(shape), reason)
            dropped += [
                Dropped(strategy, shape.width, shape.depth, shape.nodes, batch, temperature, reason)
                for batch, temperature in settings_points
            ]
    if not shapes:
        first = dropped[0]
        shape = Shape(first.width, first.depth, first.nodes)
        raise ConfigError(
            "sweep", f"{len(dropped)} points", f"none can be; {first.strategy} {_describe(shape)}: {first.reason}"
        )
    cells: list[Planned] = []
    for block in range(settings.load.blocks):
        arms = shapes if block % 2 == 0 else shapes[::-1]
        for batch, temperature in settings_points:
            for strategy, shape in arms:
                cell = _cell(settings, facts, strategy, shape, batch, temperature, block)
                cells.append(Planned(cell, facts.unsupported.get(strategy)))
    return Plan(tuple(cells), tuple(dropped))


def grid(
    strategy: str, sweep: SweepSettings, model: ModelSettings, force_spine: bool
) -> Iterator[tuple[Shape, str | None]]:
    """The distinct shapes of a strategy, each with the reason why it cannot be, or None."""
    block_size = model.dflash.block_size if model.dflash else None
    seen = set()
    for width, depth, nodes in _axes(strategy, sweep):
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


def _axes(strategy: str, sweep: SweepSettings) -> Iterator[tuple[int | None, int | None, int | None]]:
    if strategy == "autoregressive":
        yield None, None, None
    elif strategy == "dflash":
        yield from ((None, depth, None) for depth in sweep.depth)
    else:
        yield from product(sweep.width, sweep.depth, sweep.nodes)


def _cell(
    settings: Settings, facts: Facts, strategy: str, shape: Shape, batch_size: int, temperature: float, block: int
) -> Cell:
    engine, model, load = settings.engine, settings.model, settings.load
    name, drafter = drafter_of(strategy, model)
    tree = strategy == "ddtree"
    arm = Arm(
        engine=engine.name,
        engine_version=facts.engine_version,
        strategy=strategy,
        width=shape.width,
        depth=shape.depth,
        nodes=shape.nodes,
        force_spine=tree and settings.strategy.force_spine,
        min_log_prob=settings.strategy.min_log_prob if tree else None,
        model=model.name,
        target=model.target.source,
        target_revision=facts.revisions.get("target"),
        drafter=drafter.source if drafter else None,
        drafter_revision=facts.revisions.get(name) if drafter else None,
        host=settings.host.name,
        flags=_flags(settings),
    )
    return Cell(
        arm=arm,
        workload=settings.workload.name,
        prompts_hash=facts.prompts_hash,
        prompts=facts.prompts,
        batch_size=batch_size,
        max_new_tokens=load.max_new_tokens,
        temperature=temperature,
        top_p=load.top_p,
        top_k=load.top_k,
        seed=settings.seed,
        repeats=load.repeats,
        block=block,
    )


def drafter_of(strategy: str, model: ModelSettings) -> tuple[str, DrafterSettings | None]:
    """The drafter a strategy uses: its place in the model's config, and its settings if there are any."""
    name = {"dflash": "dflash", "ddtree": "dflash", "eagle": "eagle"}.get(strategy, "")
    return name, getattr(model, name) if name else None


def _flags(settings: Settings) -> dict[str, Any]:
    engine = settings.engine
    own = {"device": engine.device, "dtype": engine.dtype, "threads": engine.threads}
    asked = {
        "template": settings.model.template,
        "thinking": settings.model.thinking,
        "ignore_eos": settings.load.ignore_eos,
        "warmup_tokens": settings.load.warmup_tokens,
    }
    return {**engine.flags, **own, **asked}


def _describe(shape: Shape) -> str:
    return " ".join(f"{axis}={value}" for axis, value in vars(shape).items() if value is not None)
