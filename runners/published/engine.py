"""The published implementation in the process of an engine: it decodes, the rest is the reference engine's process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddbench.errors import ConfigError
from ddbench.storage import write_whole
from runners.base import CellJob, ServerSpec
from runners.measured_span import NOTES
from runners.published.counts import UNMEASURED
from runners.random_models import with_random
from runners.worker import Engine

if TYPE_CHECKING:
    from ddbench.decoding import Generation, ModelPair, Request, Strategy
    from runners.published.code import Answer


class PublishedEngine(Engine):
    """See :class:`runners.worker.Engine`. The pair is read and checked as for the reference engine, whose drafter then
    makes room for the published one's.

    Raises:
        ConfigError: as it does; or a checkout, or a drafter for it, that cannot be used.
    """

    unmeasured = UNMEASURED

    def __init__(self, spec: ServerSpec) -> None:
        super().__init__(spec)
        self.build = self.code.checkout.source

    def _loaded(self, scratch: Path) -> ModelPair:
        from ddbench.drafters import resolve_checkpoint
        from runners.published.code import PublishedCode
        from runners.worker import _load

        assert self.spec.published is not None
        if self.spec.model.dflash is None:
            raise ConfigError(
                "sweep.strategy", "autoregressive", "this and dflash or ddtree: it loads with its drafter"
            )
        files = with_random(self.spec.model, scratch, self.spec.context_length)
        assert files.dflash is not None
        pair: ModelPair = _load(replace(self.spec, model=replace(files, eagle=None)))
        assert pair.dflash is not None
        pair.dflash.to("meta")  # its config is all that is needed
        drafter = resolve_checkpoint("model.dflash.source", files.dflash, files.dflash_revision)
        self.code = PublishedCode(self.spec.published, pair, drafter)
        return pair

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "published": self.code.checkout.facts}

    def _decode(
        self,
        job: CellJob,
        strategy: Strategy,
        requests: Sequence[Request],
        clock: Callable[[], float] = time.perf_counter,
        on_finish: Callable[[Generation], None] | None = None,
        on_start: Callable[[None], None] | None = None,
        **_: Any,
    ) -> list[Generation]:
        if on_start is not None:
            on_start(None)
        start, answers = clock(), []
        for request in requests:
            answers.append(self.code.answer(strategy, request, clock, start))
            if on_finish is not None:
                on_finish(answers[-1].generation)
        write_whole(job.folder / NOTES, json.dumps(notes(answers), indent=1) + "\n")
        return [answer.generation for answer in answers]


def notes(answers: Sequence[Answer]) -> dict[str, Any]:
    """What the published code itself says of a cell: seconds a stage, its mean seconds an output token (from after its
    first drafter pass, over all output tokens), and rounds that could add nothing."""
    stages: dict[str, float] = {}
    for answer in answers:
        for name, seconds in answer.stages_s.items():
            stages[name] = stages.get(name, 0.0) + seconds
    own = sum(answer.own_tpot_s for answer in answers) / len(answers)
    surplus = sum(answer.surplus_rounds for answer in answers)
    return {"stages_s": stages, "own_time_per_output_token_s": own, "surplus_rounds": surplus}
