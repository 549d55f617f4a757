"""SGLang, as the plan and the sweep see it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments.engines.base import Engine, Shapes
from experiments.hosts import reached
from experiments.settings import Settings
from experiments.shapes import Shape
from experiments.typed import build
from runners.base import Runner, ServerOptions, ServerSpec
from runners.hosts import Host
from runners.sglang import attached, probe, refusals
from runners.sglang.flags import DEFAULT_ARM, Demands, SglangFlags, reserve, resolve
from runners.sglang.runner import SglangRunner
from runners.sglang.speculation import MOST_NODES

DEFAULT_STRATEGIES = ("autoregressive", "dflash")


class SglangEngine:
    """See :class:`experiments.engines.base.Engine`."""

    server_per_arm = True
    most_in_flight: int | None = None

    def version(self, settings: Settings) -> str:
        engine = settings.engine
        return _described(engine.python, engine.device, engine.url, None if engine.url else reached(settings.host))

    def refuse_all(self, settings: Settings) -> str | None:
        return None

    def flags(self, settings: Settings, shapes: Shapes) -> dict[str, Any]:
        engine = settings.engine
        given = build(SglangFlags, engine.flags, "engine.flags")
        demands = Demands(
            device=engine.device,
            batch_size=max(settings.sweep.batch_size),
            most_width=most_width(settings, shapes),
            context_length=settings.model.context_length,
        )
        flags = resolve(given, demands)
        if engine.url is None:
            return flags
        return dict.fromkeys(flags) | {"attached": True}  # what a running server was started with is its own matter

    def refuse(self, settings: Settings, strategy: str, shape: Shape, flags: dict[str, Any]) -> str | None:
        model = settings.model
        block_size = model.dflash.block_size if model.dflash else None
        version = self.version(settings).split()[1] if strategy == "ddtree" else None
        asked = refusals.Asked(
            strategy,
            shape.width,
            shape.depth,
            shape.nodes,
            block_size,
            model.target.attention,
            version,
            flags,
        )
        return refusals.refuse(asked)

    def refuse_sampling(self, settings: Settings, strategy: str, temperature: float) -> str | None:
        return None

    def default_arms(self, settings: Settings) -> Shapes:
        if settings.engine.url is not None:
            raise ConfigError("engine.default_arms", True, "false with engine.url: a running server is one arm")
        block_size = settings.model.dflash.block_size if settings.model.dflash else None
        shapes = {"autoregressive": Shape(), "dflash": Shape(depth=block_size - 1 if block_size else None)}
        return [(name, shapes[name]) for name in DEFAULT_STRATEGIES if name in settings.sweep.strategy]

    def default_flags(self, flags: dict[str, Any]) -> dict[str, Any]:
        return {**flags, **DEFAULT_ARM}

    def options(self, settings: Settings, arms: Sequence[Arm]) -> ServerOptions | None:
        engine = settings.engine
        if engine.url is not None and len({repr(arm) for arm in arms}) > 1:
            raise ConfigError("engine.url", engine.url, "null, or one strategy and shape: a running server is one arm")
        most = most_width(settings, [(arm.strategy, Shape(arm.width, arm.depth, arm.nodes)) for arm in arms])
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
        return SglangRunner(spec)


@lru_cache(maxsize=8)
def _described(python: str | None, device: str, url: str | None, host: Host | None) -> str:
    """Asked once, though every shape needs it: an interpreter takes a while to answer."""
    if url is not None:
        return f"sglang {attached.version_at(url)}"
    return probe.probe(python, device, host=host).described


def most_width(settings: Settings, shapes: Shapes) -> int:
    """Most tokens of a sequence that a round has in flight, root counted: the widest verify pass or drafter's block."""
    dflash = settings.model.dflash
    blocks = any(strategy in ("dflash", "ddtree") for strategy, _ in shapes)
    whole = dflash.block_size if blocks and dflash is not None and dflash.block_size else 0
    return max([whole, *(1 + nodes for nodes in map(_nodes, shapes) if nodes)], default=0)


def _nodes(shape: tuple[str, Shape]) -> int:
    """Nodes of a shape that SGLang can run; else 0."""
    strategy, form = shape
    if strategy in ("eagle", "ddtree"):
        return form.nodes if form.nodes and form.nodes <= MOST_NODES else 0
    return form.depth or 0


SGLANG: Engine = SglangEngine()
