"""Which steps are measured: by kind, verify width, batch size and context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ddbench.decoding.api import Strategy
from ddbench.errors import ConfigError
from experiments.settings import Settings
from experiments.step_cost.settings import StepCostSettings


@dataclass(frozen=True)
class Step:
    """A kind of step at one size. ``context``: tokens of the prompts; of a prefill 0, its tokens are the width."""

    kind: str
    verify_width: int
    batch: int
    context: int

    @property
    def strategy(self) -> Strategy:
        """What decodes so; of a prefill, the smallest tree, whose drafter takes the prompt in too."""
        if self.kind == "autoregressive":
            return Strategy("autoregressive")
        if self.kind == "dflash":
            return Strategy("dflash", depth=self.verify_width - 1)
        return Strategy("ddtree", nodes=1 if self.kind == "prefill" else self.verify_width - 1)


def grid(settings: Settings, asked: StepCostSettings) -> list[Step]:
    """All steps to be measured: the whole product at the first context, corners of it at the others.

    Raises:
        ConfigError: no DFlash drafter where one is needed, or no step within ``most_tokens`` and ``most_cached``.
    """
    steps = [step for kind in settings.sweep.strategy for step in _of_kind(kind, settings, asked)]
    if not steps:
        raise ConfigError(
            "step_cost.most_tokens", asked.most_tokens, "as many as the narrowest pass has (most_cached too)"
        )
    if settings.model.dflash is not None:
        steps += [Step("prefill", length, 1, 0) for length in asked.prefill]
    return steps


def _of_kind(kind: str, settings: Settings, asked: StepCostSettings) -> Iterator[Step]:
    widths = _widths(kind, settings)
    first, *others = asked.context
    for width, batch in product(widths, settings.sweep.batch_size):
        if width * batch <= asked.most_tokens and _cached(batch, first, asked):
            yield Step(kind, width, batch, first)
    for context, width in product(others, dict.fromkeys((min(widths), max(widths)))):
        fit = [
            batch
            for batch in settings.sweep.batch_size
            if width * batch <= asked.most_tokens and _cached(batch, context, asked)
        ]
        for batch in dict.fromkeys((min(fit), max(fit))) if fit else ():
            yield Step(kind, width, batch, context)


def _cached(batch: int, context: int, asked: StepCostSettings) -> bool:
    return asked.most_cached is None or batch * context <= asked.most_cached


def _widths(kind: str, settings: Settings) -> list[int]:
    if kind == "autoregressive":
        return [1]
    drafter = settings.model.dflash
    if drafter is None or drafter.block_size is None:
        raise ConfigError("model", settings.model.name, f"a model with a dflash drafter, which {kind} needs")
    if kind == "ddtree":
        return sorted(nodes + 1 for nodes in settings.sweep.nodes)
    depths = [depth or drafter.block_size - 1 for depth in settings.sweep.depth]
    too_deep = [depth for depth in depths if depth >= drafter.block_size]
    if too_deep:
        allowed = f"at most {drafter.block_size - 1}, the drafter's block less one"
        raise ConfigError("sweep.depth", too_deep[0], allowed)
    return sorted({depth + 1 for depth in depths})
