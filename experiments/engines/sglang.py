"""SGLang, as the plan and the sweep see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments.engines.base import Engine, Shapes
from experiments.hosts import reached
from experiments.settings import Settings
from experiments.shapes import Shape
from experiments.typed import build
from experiments.workloads import asset_path
from runners.base import Runner, ServerOptions, ServerSpec
from runners.checkouts import Checkout
from runners.hosts import Host
from runners.sglang import attached, probe, refusals
from runners.sglang.branches import BRANCHES, Branch, Tree
from runners.sglang.checkout import look
from runners.sglang.flags import DEFAULT_ARM, Demands, SglangFlags, reserve, resolve
from runners.sglang.runner import SglangRunner
from runners.sglang.speculation import MOST_NODES
from runners.sglang.targets import missing_form

MOST_OF_A_BRANCH = 4095  # nodes for which room is made where others say how many they can have
DEFAULT_STRATEGIES = ("autoregressive", "dflash")


class SglangEngine:
    """See :class:`experiments.engines.base.Engine`."""

    server_per_arm = True
    most_in_flight: int | None = None

    def version(self, settings: Settings) -> str:
        engine = settings.engine
        found = checkout_of(settings)
        sources = "" if found is None else f" {found}"
        host = None if engine.url else reached(settings.host)
        return f"{_described(engine.python, engine.device, engine.url, host)}{sources}"

    def refuse_all(self, settings: Settings) -> str | None:
        engine = settings.engine
        if engine.url is not None or engine.checkout is not None or settings.model.target.attention == "full":
            return None  # a running server has its target already, and no dense one is missing
        version = self.number(settings)
        return None if version is None else missing_form(asset_path(settings.model.target.source), version)

    def number(self, settings: Settings) -> str | None:
        """SGLang's version; None in a dry run where there is none to ask, which the dry run says itself."""
        try:
            return self.version(settings).split()[1]
        except ConfigError:
            if not settings.dry_run:
                raise
            return None

    def flags(self, settings: Settings, shapes: Shapes) -> dict[str, Any]:
        engine = settings.engine
        given = build(SglangFlags, engine.flags, "engine.flags")
        demands = Demands(
            device=engine.device,
            batch_size=max(settings.sweep.batch_size),
            most_width=most_width(settings, shapes),
            context_length=settings.model.context_length,
            dtype=engine.dtype if engine.url is None else None,
        )
        flags = resolve(given, demands)
        branch = branch_of(settings)
        if branch is not None:
            flags |= {"branch": branch.name, "branch_told": branch.words}
        if engine.url is None:
            return flags
        return dict.fromkeys(flags) | {"attached": True}  # what a running server was started with is its own matter

    def own_flags(self, settings: Settings, strategy: str, flags: dict[str, Any]) -> dict[str, Any]:
        """A branch may have its trees run without overlap scheduling, whatever the other arms do."""
        branch = branch_of(settings) if strategy == "ddtree" else None
        return flags if branch is None else {**flags, "overlap": flags["overlap"] and branch.overlap}

    def refuse(self, settings: Settings, strategy: str, shape: Shape, flags: dict[str, Any]) -> str | None:
        model = settings.model
        block_size = model.dflash.block_size if model.dflash else None
        if strategy == "ddtree" and settings.engine.checkout is not None:
            return _refuse_tree(settings, Tree(shape.width, shape.depth, shape.nodes, block_size), flags)
        version = self.number(settings) if strategy == "ddtree" else None
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
        branch = branch_of(settings)
        if branch is None or strategy != "ddtree" or temperature == 0 or not branch.greedy:
            return None
        return f"{branch.name} verifies trees at temperature 0 alone"

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
            checkout=engine.checkout,
            branch=branch_of(settings),
        )

    def runner(self, spec: ServerSpec) -> Runner:
        return SglangRunner(spec)


def checkout_of(settings: Settings) -> Checkout | None:
    """What ``engine.checkout`` names. Raises ConfigError where it has no SGLang, or the host is another one."""
    engine = settings.engine
    if engine.checkout is not None and settings.host.kind != "local":
        raise ConfigError("host", settings.host.name, "local: a checkout of others is not copied to another host")
    return None if engine.checkout is None else look(engine.checkout)


def branch_of(settings: Settings) -> Branch | None:
    """What ``engine.branch`` names or says. Raises ConfigError where it is neither."""
    given = settings.engine.branch
    if given is None or isinstance(given, Mapping):
        own = None if given is None else build(Branch, given, "engine.branch")
        if own is not None and own.name in BRANCHES:
            raise ConfigError("engine.branch.name", own.name, "a name that no known branch has")
        return own
    if not isinstance(given, str) or given not in BRANCHES:
        allowed = f"null, {', '.join(BRANCHES)}, or {{arguments: [...], environment: {{...}}}} (docs/rivals.md)"
        raise ConfigError("engine.branch", given, allowed)
    return BRANCHES[given]


def _refuse_tree(settings: Settings, tree: Tree, flags: dict[str, Any]) -> str | None:
    """Why a checkout's server cannot draft a tree."""
    branch, strategy = branch_of(settings), settings.strategy
    if branch is None:
        return "our plug-in is not loaded into a checkout's servers, and engine.branch does not say how they make trees"
    if strategy.force_spine or strategy.min_log_prob is not None:
        return f"{branch.name} knows neither a forced spine nor a floor under probabilities"
    return refusals.extra(flags) or branch.refuse(tree)


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
    most = MOST_NODES if settings.engine.checkout is None else MOST_OF_A_BRANCH
    return max([whole, *(1 + nodes for shape in shapes if (nodes := _nodes(shape, most)))], default=0)


def _nodes(shape: tuple[str, Shape], most: int) -> int:
    """Nodes of a shape that SGLang can run; else 0."""
    strategy, form = shape
    if strategy in ("eagle", "ddtree"):
        return form.nodes if form.nodes and form.nodes <= most else 0
    return form.depth or 0


SGLANG: Engine = SglangEngine()
