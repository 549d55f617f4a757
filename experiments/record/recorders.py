"""The engines that record: what a recording asks of one, and the reference engine as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ddbench.decoding import Strategy
from experiments.settings import Settings
from runners.base import ServerSpec
from runners.prompts import Tokenized

if TYPE_CHECKING:
    from ddbench.decoding import Request
    from ddbench.replay.record import Recorded


class Recorder(Protocol):
    """An engine that is up as far as its prompts are read.

    ``build``: hash of what decides its traces beside models and settings. ``most_candidates``: that can be kept of a
    position. ``most_tokens`` of prompt, answer and tail together.
    """

    prompts: list[Tokenized]
    stop_ids: frozenset[int]
    build: str
    gpu: str | None
    most_candidates: int
    most_tokens: int
    depth: int  # tokens that the drafter proposes

    def facts(self) -> dict[str, Any]:
        """For ``environment.json``."""

    def record(self, requests: Sequence[Request], nodes: int, batch_size: int, by: str) -> Iterator[Recorded]:
        """Requests with ``nodes`` candidates of a position, in their order; see `ddbench.replay.record.record`.

        Raises:
            EngineFailure: the engine is gone, or did not write what it was to.
        """

    def stop(self) -> None:
        """Ends what was started. Safe to call twice."""


class ReferenceRecorder:
    """The reference engine in this process: nothing is timed, and a trace that is written stays."""

    def __init__(self, spec: ServerSpec) -> None:
        """Raises ConfigError."""
        from runners.worker import Engine

        self.engine = engine = Engine(spec)
        drafter = engine.pair.dflash
        assert drafter is not None
        self.prompts, self.stop_ids, self.build, self.gpu = engine.prompts, engine.stop_ids, engine.build, engine.gpu
        self.most_candidates, self.depth = drafter.config.vocab_size, drafter.config.max_depth
        self.most_tokens = min(spec.context_length, engine.pair.max_length or spec.context_length)

    def facts(self) -> dict[str, Any]:
        return self.engine.facts()

    def record(self, requests: Sequence[Request], nodes: int, batch_size: int, by: str) -> Iterator[Recorded]:
        from ddbench.replay.record import record

        return record(self.engine.pair, requests, nodes, batch_size, Strategy(by))  # type: ignore[arg-type]

    def stop(self) -> None:
        return


def requests_of(settings: Settings, stop_ids: frozenset[int], items: Sequence[Any]) -> list[Request]:
    """The requests that a live run of these settings would make. ``items``: name, prompt, repeat, temperature."""
    from ddbench.decoding import Request, Sampling

    load = settings.load
    return [
        Request(
            item.prompt.id,
            item.token_ids,
            load.max_new_tokens,
            Sampling(temperature, load.top_p, load.top_k, settings.seed + repeat),
            stop_ids,
            item.prompt.turn,
        )
        for _, item, repeat, temperature in items
    ]
