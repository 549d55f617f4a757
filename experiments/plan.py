"""From the axes of a sweep to its cells: what can be, what the engine cannot run, and the order of measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from ddbench.errors import ConfigError
from ddbench.records import Arm, Cell, content_hash
from experiments.adaptive.arms import adaptive_arms, cost_id, refuse_batch, refuse_engine
from experiments.drafters import variants
from experiments.engines.base import Engine
from experiments.engines.reference import REFERENCE
from experiments.settings import Settings
from experiments.shapes import Shape, axes, describe_shape, drafter_of, grid

if TYPE_CHECKING:
    from ddbench.cost import CostModel


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
    engine: Engine = REFERENCE
    drafter_revisions: Mapping[str, str | None] = field(default_factory=dict)  # of several drafters, by source
    template_hash: str | None = None  # of the chat template's text; None: prompts are continued as they are
    cost: CostModel | None = None  # of the steps, where a policy reckons with it


@dataclass(frozen=True)
class _Planned:
    """An arm before it has batch size and temperature."""

    strategy: str
    shape: Shape
    flags: dict[str, Any]
    unsupported: str | None
    policy: str | None = None


def make_plan(settings: Settings, facts: Facts) -> Plan:
    """Expands the axes, drops what cannot be, and orders the cells.

    Several drafters: their plans one after another in a block, in reverse order in odd blocks; a cell that they have in
    common, such as the autoregressive arm's, is there once.

    Order: blocks, batch sizes, temperatures, then the strategies as listed with autoregressive first; odd blocks run
    their arms in reverse (ABBA), so that a drift of the machine falls on all arms alike. An engine that starts a server
    for each arm has the arms outermost in a block, so that one start serves all batch sizes and temperatures.

    Raises:
        ConfigError: a single explicit shape that cannot be, or a grid in which none can.
    """
    if settings.drafters:
        return _joined([make_plan(each, _told(each, facts)) for each in variants(settings).values()], settings)
    shapes, dropped = _shapes(settings)
    if not shapes:
        first = dropped[0]
        shape = Shape(first.width, first.depth, first.nodes)
        raise ConfigError(
            "sweep",
            f"{len(dropped)} points",
            f"none can be; {first.strategy} {describe_shape(shape)}: {first.reason}",
        )
    arms = list(_arms(settings, facts, shapes))
    cells = [
        Planned(
            _cell(settings, facts, arm, batch, temperature, block),
            arm.unsupported
            or facts.engine.refuse_sampling(settings, arm.strategy, temperature)
            or _refuse_batch(settings, facts.engine, batch)
            or refuse_batch(facts.cost, arm.policy, arm.shape, batch, settings.engine.name),
        )
        for block in range(settings.load.blocks)
        for arm, batch, temperature in _ordered(arms if block % 2 == 0 else arms[::-1], settings, facts.engine)
    ]
    return Plan(tuple(cells), tuple(dropped))


def make_plan_of(asked: Sequence[tuple[Settings, Facts]]) -> Plan:
    """One plan for several workloads, from the settings and facts of each; with one, :func:`make_plan`.

    The cells are those of the plans of each, and one start of the engine serves all workloads: in a block they come one
    after another, of an engine that starts a server for each arm within the arm, of several drafters within the
    drafter.
    """
    settings, facts = asked[0]
    if len(asked) == 1:
        return make_plan(settings, facts)
    if settings.drafters:
        names = list(variants(settings))
        of_drafter = {name: [(variants(each)[name], told) for each, told in asked] for name in names}
        return _joined(
            [make_plan_of([(each, _told(each, told)) for each, told in of_drafter[name]]) for name in names], settings
        )
    return _beside([make_plan(*each) for each in asked], settings.load.blocks, facts.engine.server_per_arm)


def _beside(plans: list[Plan], blocks: int, server_per_arm: bool) -> Plan:
    """Plans that differ in their workload alone, as one."""
    cells: list[Planned] = []
    for block in range(blocks):
        starts: dict[str, list[Planned]] = {}
        for planned in (each for plan in plans for each in plan.cells if each.cell.block == block):
            key = content_hash(asdict(planned.cell.arm)) if server_per_arm else ""
            starts.setdefault(key, []).append(planned)
        cells += [planned for group in starts.values() for planned in group]
    return Plan(tuple(cells), tuple(dict.fromkeys(point for plan in plans for point in plan.dropped)))


def _told(settings: Settings, facts: Facts) -> Facts:
    """The facts of one of several drafters."""
    source = getattr(settings.model, settings.role).source
    return replace(facts, revisions={**facts.revisions, settings.role: facts.drafter_revisions.get(source)})


def _joined(plans: list[Plan], settings: Settings) -> Plan:
    """Plans that differ in their drafter alone, as one."""
    cells: dict[str, Planned] = {}
    for block in range(settings.load.blocks):
        for plan in plans if block % 2 == 0 else plans[::-1]:
            mine = [planned for planned in plan.cells if planned.cell.block == block]
            cells |= {planned.cell.cell_id: planned for planned in mine if planned.cell.cell_id not in cells}
    return Plan(tuple(cells.values()), tuple(dict.fromkeys(point for plan in plans for point in plan.dropped)))


def _shapes(settings: Settings) -> tuple[list[tuple[str, Shape]], list[Dropped]]:
    """The shapes of all strategies that can be, and the points that cannot."""
    shapes: list[tuple[str, Shape]] = []
    dropped: list[Dropped] = []
    points = list(product(settings.sweep.batch_size, settings.sweep.temperature))
    for strategy in sorted(settings.sweep.strategy, key=lambda name: name != "autoregressive"):
        for shape, reason in grid(strategy, settings.sweep, settings.model, settings.strategy.force_spine):
            if reason is None:
                shapes.append((strategy, shape))
                continue
            open_axis = strategy == "eagle" and (shape.width is None or shape.depth is None)
            if len(list(axes(strategy, settings.sweep))) == 1 and not open_axis:
                raise ConfigError(f"sweep ({strategy})", describe_shape(shape), reason)
            dropped += [
                Dropped(strategy, shape.width, shape.depth, shape.nodes, batch, temperature, reason)
                for batch, temperature in points
            ]
    return shapes, dropped


def _arms(settings: Settings, facts: Facts, shapes: list[tuple[str, Shape]]) -> Iterator[_Planned]:
    """The arms as listed; then, where they are asked for, those with the engine's own choice of settings."""
    engine = facts.engine
    flags = engine.flags(settings, shapes)
    for strategy, shape in shapes:
        reason = facts.unsupported.get(strategy) or engine.refuse(settings, strategy, shape, flags)
        if strategy != "ddtree" or None in settings.strategy.policies:
            yield _Planned(strategy, shape, engine.own_flags(settings, strategy, flags), reason)
    for policy, shape in adaptive_arms(settings, shapes):
        reason = facts.unsupported.get("ddtree") or engine.refuse(settings, "ddtree", shape, flags)
        yield _Planned("ddtree", shape, flags, reason or refuse_engine(settings, policy), policy)
    if not settings.engine.default_arms:
        return
    own = engine.default_flags(flags)
    for strategy, shape in engine.default_arms(settings):
        reason = facts.unsupported.get(strategy) or engine.refuse(settings, strategy, shape, own)
        yield _Planned(strategy, shape, own, reason)


def _ordered(arms: list[_Planned], settings: Settings, engine: Engine) -> Iterator[tuple[_Planned, int, float]]:
    points = list(product(settings.sweep.batch_size, settings.sweep.temperature))
    if engine.server_per_arm:
        yield from ((arm, batch, temperature) for arm in arms for batch, temperature in points)
    else:
        yield from ((arm, batch, temperature) for batch, temperature in points for arm in arms)


def _refuse_batch(settings: Settings, engine: Engine, batch_size: int) -> str | None:
    """Why the engine cannot run that many at a time; None if it can."""
    most = engine.most_in_flight
    if most is None or batch_size <= most:
        return None
    return f"the {settings.engine.name} engine decodes {most} at a time"


def _cell(settings: Settings, facts: Facts, planned: _Planned, batch_size: int, temperature: float, block: int) -> Cell:
    engine, model, load, shape = settings.engine, settings.model, settings.load, planned.shape
    name, drafter = drafter_of(planned.strategy, model)
    tree = planned.strategy == "ddtree"
    arm = Arm(
        engine=engine.name,
        engine_version=facts.engine_version,
        strategy=planned.strategy,
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
        flags={**planned.flags, **_common_flags(settings, facts)},
        policy=planned.policy,
        cost=cost_id(facts.cost) if planned.policy and facts.cost else None,
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


def _common_flags(settings: Settings, facts: Facts) -> dict[str, Any]:
    """What must be equal whatever the engine."""
    engine = settings.engine
    flags = {
        "device": engine.device,
        "dtype": engine.dtype,
        "threads": engine.threads,
        "template": settings.model.template,
        "template_hash": facts.template_hash,
        "thinking": settings.model.thinking,
        "ignore_eos": settings.load.ignore_eos,
        "warmup_tokens": settings.load.warmup_tokens,
    }
    if settings.model.trust_remote_code:
        flags["trust_remote_code"] = True
    return flags if settings.load.rate is None else {**flags, "request_rate": settings.load.rate}
