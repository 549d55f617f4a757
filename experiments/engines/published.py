"""The published DDTree implementation, run from a checkout that the user names (docs/rivals.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments.engines.base import Engine, Shapes
from experiments.settings import Settings
from experiments.shapes import Shape
from experiments.typed import build
from runners.base import Runner, ServerOptions, ServerSpec
from runners.machine import version
from runners.published.checkout import look
from runners.published.options import Attention, PublishedOptions
from runners.reference import PARTS, ReferenceRunner


@dataclass(frozen=True)
class PublishedFlags:
    """``engine.flags``; None follows from the device, see conf/engine/published.yaml."""

    drafter_attention: Attention | None = None
    compiled_compaction: bool | None = None


class PublishedEngine:
    """See :class:`experiments.engines.base.Engine`."""

    server_per_arm = False
    most_in_flight: int | None = 1

    def version(self, settings: Settings) -> str:
        if settings.host.kind != "local":
            raise ConfigError("host", settings.host.name, "local: a checkout of others is not copied to another host")
        parts = " ".join(f"{part} {version(part)}" for part in PARTS)
        return f"{look(settings.engine.checkout)} {parts}"

    def refuse_all(self, settings: Settings) -> str | None:
        if settings.load.kind == "open":
            return "the published implementation runs a closed loop only"
        if settings.model.target.attention == "hybrid":
            return "the published implementation keeps no recurrent states: a hybrid's branches would share one"
        return None

    def flags(self, settings: Settings, shapes: Shapes) -> dict[str, Any]:
        given = build(PublishedFlags, settings.engine.flags, "engine.flags")
        cuda = settings.engine.device != "cpu"
        flash = cuda and settings.engine.dtype == "bfloat16" and find_spec("flash_attn") is not None
        compiled = cuda if given.compiled_compaction is None else given.compiled_compaction
        flags = PublishedFlags(given.drafter_attention or ("flash_attention_2" if flash else "sdpa"), compiled)
        return asdict(flags) | {"target_attention": "sdpa"}

    def own_flags(self, settings: Settings, strategy: str, flags: dict[str, Any]) -> dict[str, Any]:
        return flags

    def refuse(self, settings: Settings, strategy: str, shape: Shape, flags: dict[str, Any]) -> str | None:
        model, wanted = settings.model, settings.strategy
        if model.dflash is None or model.dflash.block_size is None:
            return f"model {model.name} has no dflash drafter, without which the published implementation does not load"
        if strategy == "eagle":
            return "the published implementation has no EAGLE"
        if strategy != "autoregressive" and shape.depth != model.dflash.block_size - 1:
            return f"the published implementation drafts whole blocks: depth {model.dflash.block_size - 1} only"
        if strategy == "ddtree" and (shape.width is not None or wanted.force_spine or wanted.min_log_prob is not None):
            return "the published implementation bounds a tree by its nodes alone: no width, spine or floor"
        return None

    def refuse_sampling(self, settings: Settings, strategy: str, temperature: float) -> str | None:
        if temperature == 0:
            return None
        return "the published implementation draws from one generator for all requests: compared at temperature 0 only"

    def default_arms(self, settings: Settings) -> Shapes:
        raise ConfigError("engine.default_arms", True, "false: the published implementation has no defaults of its own")

    def default_flags(self, flags: dict[str, Any]) -> dict[str, Any]:
        return flags

    def options(self, settings: Settings, arms: Sequence[Arm]) -> ServerOptions | None:
        return None

    def runner(self, spec: ServerSpec) -> Runner:
        return ReferenceRunner(spec)


def published_options(settings: Settings) -> PublishedOptions | None:
    """What its process is told; None for another engine."""
    engine = settings.engine
    if engine.name != "published":
        return None
    flags = PUBLISHED.flags(settings, [])
    folder = str(look(engine.checkout).folder)
    return PublishedOptions(folder, flags["drafter_attention"], flags["compiled_compaction"])


PUBLISHED: Engine = PublishedEngine()
