"""The arms of a sweep whose budget a policy chooses, and what they reckon with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddbench.errors import ConfigError
from ddbench.records import content_hash
from experiments.shapes import Shape

if TYPE_CHECKING:
    from ddbench.cost import CostModel
    from experiments.settings import Settings

ENGINES = ("reference", "sglang")  # whose rounds ask a policy


def adaptive_arms(settings: Settings, shapes: Sequence[tuple[str, Shape]]) -> Iterator[tuple[str, Shape]]:
    """Policy and shape: of each depth one arm a policy, with the largest budget asked for as its most, no width."""
    most: dict[int | None, int] = {}
    for strategy, shape in shapes:
        if strategy == "ddtree" and shape.nodes is not None:
            most[shape.depth] = max(most.get(shape.depth, 0), shape.nodes)
    for policy in settings.strategy.policies:
        if policy is not None:
            yield from ((policy, Shape(None, depth, nodes)) for depth, nodes in most.items())


def refuse_engine(settings: Settings, policy: str) -> str | None:
    """Why the engine cannot ask a policy; None if it can."""
    name = settings.engine.name
    if settings.engine.checkout is not None:
        return "a checkout's server asks no policy of ours (engine.checkout)"
    if name == "sglang":
        from experiments.engines.sglang import SglangEngine
        from runners.sglang.adaptive import refuse_engine as refuse_sglang

        return refuse_sglang(SglangEngine().number(settings), settings.engine.flags)
    return None if name in ENGINES else f"the {name} engine cannot change its budget from step to step ({policy})"


def refuse_batch(
    cost: CostModel | None, policy: str | None, shape: Shape, batch_size: int, engine: str = "reference"
) -> str | None:
    """Why a policy cannot reckon with the cost at that batch size; None if it can, or if there is no policy."""
    if policy is None or cost is None or shape.nodes is None or shape.depth is None:
        return None
    if engine == "sglang":
        from runners.sglang.adaptive import refuse_batch as refuse_sglang

        return refuse_sglang(cost, shape.nodes, batch_size)
    from ddbench.adaptive import usual_candidates
    from ddbench.adaptive.measured import why_not

    return why_not(cost, usual_candidates(shape.nodes, shape.depth), batch_size)


def cost_of(settings: Settings) -> CostModel | None:
    """The cost that the policies of a sweep reckon with; None where there are none.

    Raises:
        ConfigError: none is named, or it cannot be read.
    """
    path = settings.strategy.cost
    chosen = [policy for policy in settings.strategy.policies if policy is not None]
    if "ddtree" not in settings.sweep.strategy or not chosen or settings.engine.name not in ENGINES:
        return None
    if path is None:
        raise ConfigError(
            "strategy.cost", None, f"a cost file of this setup (experiment=step_cost): {chosen[0]} needs it"
        )
    from ddbench.cost import load_cost

    try:
        return load_cost(path)
    except ConfigError as error:
        raise ConfigError("strategy.cost", path, error.allowed) from None


def cost_id(cost: CostModel) -> str:
    """A hash of all that decides what a policy is told by the cost model, and for which setup."""
    fits = {kind: fit.to_dict() for kind, fit in cost.fits.items()}
    points = {kind: [point.to_dict() for point in each] for kind, each in cost.points.items()}
    return content_hash({"fingerprint": dict(cost.fingerprint), "fits": fits, "points": points})


def check_setup(cost: CostModel, settings: Settings, version: str, environment: Mapping[str, Any]) -> None:
    """Is the cost that of the engine which has been started? The clock of its times is taken as it is.

    Raises:
        ConfigError: it is another setup's; one line with all that differs.
    """
    from experiments.step_cost.fingerprint import build_of, fingerprint

    local, own = settings.host.kind == "local", settings.engine.name == "reference"
    flags = {**settings.engine.flags, "threads": settings.engine.threads} if own else settings.engine.flags
    mine = fingerprint(
        settings.engine.name,
        version,
        build_of(settings.engine.name),
        environment.get("engine_gpu"),
        str((environment if local else environment["host"]).get("cpu")),
        settings.model,
        {"dtype": settings.engine.dtype, **flags},
        cost.fingerprint.get("clock", "wall"),
    )
    cost.check(mine, "strategy.cost")
