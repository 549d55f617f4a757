"""vLLM, as the plan and the sweep see it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ddbench.errors import ConfigError
from ddbench.plugins.vllm.options import MOST_NODES
from ddbench.records import Arm
from experiments.engines.base import Engine, Shapes
from experiments.estimate import cache_bytes_per_token
from experiments.hosts import reached
from experiments.settings import Settings
from experiments.shapes import Shape
from experiments.typed import build
from experiments.workloads import asset_path
from runners.base import Runner, ServerOptions, ServerSpec
from runners.hosts import Host
from runners.vllm import attached, probe, refusals
from runners.vllm.flags import DEFAULT_ARM, Demands, VllmFlags, reserve, resolve
from runners.vllm.runner import VllmRunner
from runners.vllm.targets import may_need_torchvision

DEFAULT_STRATEGIES = ("autoregressive", "dflash")


class VllmEngine:
    """See :class:`experiments.engines.base.Engine`."""

    server_per_arm = True
    most_in_flight: int | None = None

    def version(self, settings: Settings) -> str:
        engine = settings.engine
        if engine.url is not None:
            return f"vllm {attached.version_at(engine.url)}"
        return _probed(engine.python, engine.device, reached(settings.host)).described

    def refuse_all(self, settings: Settings) -> str | None:
        """What no version does is said before one is looked for."""
        trees_alone = set(settings.sweep.strategy) == {"ddtree"}
        return refusals.HYBRID_TREES if trees_alone and settings.model.target.attention == "hybrid" else None

    def flags(self, settings: Settings, shapes: Shapes) -> dict[str, Any]:
        engine, model = settings.engine, settings.model
        given = build(VllmFlags, engine.flags, "engine.flags")
        target = model.target
        drafter = max((part.layers for part in (model.dflash, model.eagle) if part is not None), default=0)
        size = 1 if "fp8" in given.kv_cache_dtype else 4 if engine.dtype == "float32" else 2
        demands = Demands(
            device=engine.device,
            batch_size=max(settings.sweep.batch_size),
            most_drafted=most_drafted(settings, shapes),
            context_length=model.context_length,
            cache_bytes=cache_bytes_per_token(target, (target.kv_layers or target.layers) + drafter, size),
            hybrid=target.attention == "hybrid",
        )
        flags = resolve(given, demands)
        if engine.url is None:
            return flags
        return dict.fromkeys(flags) | {"attached": True}  # what a running server was started with is not known

    def own_flags(self, settings: Settings, strategy: str, flags: dict[str, Any]) -> dict[str, Any]:
        return flags

    def refuse(self, settings: Settings, strategy: str, shape: Shape, flags: dict[str, Any]) -> str | None:
        block_size = settings.model.dflash.block_size if settings.model.dflash else None
        attention = settings.model.target.attention
        lacking = None if strategy == "ddtree" else _lacking(settings)
        return refusals.refuse(
            refusals.Asked(strategy, shape.width, shape.depth, shape.nodes, block_size, attention, flags, lacking)
        )

    def refuse_sampling(self, settings: Settings, strategy: str, temperature: float) -> str | None:
        stock = strategy in ("dflash", "eagle")
        return refusals.CPU_SAMPLING if stock and temperature > 0 and settings.engine.device == "cpu" else None

    def default_arms(self, settings: Settings) -> Shapes:
        if settings.engine.url is not None:
            raise ConfigError("engine.default_arms", True, "false with engine.url: a running server is one arm")
        block_size = settings.model.dflash.block_size if settings.model.dflash else None
        whole = Shape(depth=block_size - 1 if block_size else None)
        shapes = {"autoregressive": Shape(), "dflash": whole}
        return [(name, shapes[name]) for name in DEFAULT_STRATEGIES if name in settings.sweep.strategy]

    def default_flags(self, flags: dict[str, Any]) -> dict[str, Any]:
        return {**flags, **DEFAULT_ARM}

    def options(self, settings: Settings, arms: Sequence[Arm]) -> ServerOptions | None:
        engine = settings.engine
        if engine.url is not None and len({repr(arm) for arm in arms}) > 1:
            raise ConfigError("engine.url", engine.url, "null, or one strategy and shape: a running server is one arm")
        most = most_drafted(settings, [(arm.strategy, Shape(arm.width, arm.depth, arm.nodes)) for arm in arms])
        return ServerOptions(
            python=engine.python,
            url=engine.url,
            port=engine.port,
            start_timeout_s=engine.start_timeout_s,
            batch_sizes=settings.sweep.batch_size,
            strategies=tuple(dict.fromkeys(arm.strategy for arm in arms)),
            rate=settings.load.rate,
            reserved=reserve(most),
        )

    def runner(self, spec: ServerSpec) -> Runner:
        return VllmRunner(spec)


def _lacking(settings: Settings) -> str | None:
    """What a hybrid target needs that the environment has not; None where nothing is known to lack.

    Raises:
        ConfigError: there is no environment; in a dry run that is said elsewhere.
    """
    engine, target = settings.engine, settings.model.target
    if engine.url is not None or target.attention == "full" or not may_need_torchvision(asset_path(target.source)):
        return None
    try:
        there = _probed(engine.python, engine.device, reached(settings.host)).capabilities.torchvision
    except ConfigError:
        if not settings.dry_run:
            raise
        return None
    return refusals.NO_TORCHVISION if there is False else None


@lru_cache(maxsize=8)
def _probed(python: str | None, device: str, host: Host | None) -> probe.Environment:
    """Asked once, though every shape needs it: an interpreter takes a while to answer."""
    return probe.probe(python, device, host=host)


def most_drafted(settings: Settings, shapes: Shapes) -> int:
    """Most tokens that a sequence drafts in a round, whether they are verified or, of a DFlash block, dropped."""
    dflash = settings.model.dflash
    blocks = any(strategy in ("dflash", "ddtree") for strategy, _ in shapes)
    whole = dflash.block_size - 1 if blocks and dflash is not None and dflash.block_size else 0
    return max([whole, *(drafted(strategy, shape) for strategy, shape in shapes)])


def drafted(strategy: str, shape: Shape) -> int:
    """Tokens that a sequence drafts in a round, 0 for a shape that vLLM cannot run."""
    if strategy == "ddtree":
        return shape.nodes if shape.nodes and shape.nodes <= MOST_NODES else 0
    if strategy == "eagle":
        return shape.depth or 0 if shape.width == 1 and shape.nodes == shape.depth else 0
    return shape.depth or 0


VLLM: Engine = VllmEngine()
