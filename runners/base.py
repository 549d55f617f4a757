"""What a sweep asks of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ddbench.records import Cell, Status


@dataclass(frozen=True)
class Prompt:
    """One prompt record. Only the first of its ``turns`` is asked."""

    id: str
    dataset: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class ModelFiles:
    """A model pair on disk: folders or Hugging Face ids with revisions; None: not used by this run."""

    target: str
    target_revision: str | None = None
    dflash: str | None = None
    dflash_revision: str | None = None
    eagle: str | None = None
    eagle_revision: str | None = None
    random_seed: int | None = None  # not None: random models of the tiny kind, and no files
    block_size: int | None = None  # as configured; the checkpoint must agree
    mask_token_id: int | None = None  # likewise, where it is configured
    vocab_size: int | None = None  # likewise


@dataclass(frozen=True)
class ServerOptions:
    """What an engine that is a server is told beside its arms.

    ``python``: interpreter of its environment, None for the one that ``experiment=bootstrap`` made. ``url``: a server
    that runs already, which is only asked, never started or ended. ``rate``: requests a second on average, arriving at
    random; None: a closed loop.
    """

    python: str | None
    url: str | None
    port: int | None
    start_timeout_s: float
    batch_sizes: tuple[int, ...]  # of the plan
    strategies: tuple[str, ...]  # of the cells to be measured
    rate: float | None
    reserved: int  # tokens of the context that no request may fill


@dataclass(frozen=True)
class ServerSpec:
    """One server configuration: what must be the same for cells to share a running engine.

    ``context_length`` bounds prompt and answer together. ``server`` is None for the reference engine.
    """

    model: ModelFiles
    device: str
    dtype: str
    threads: int | None
    template: str  # raw or chat
    thinking: bool | None
    context_length: int
    ignore_eos: bool
    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...]
    max_new_tokens: int
    timeout_s: float
    server: ServerOptions | None = None


@dataclass(frozen=True)
class CellJob:
    """A cell to be measured. Tables go into ``folder``, which exists; what the engine prints goes to its server.log."""

    cell: Cell
    folder: Path
    warmup_tokens: int


@dataclass(frozen=True)
class CellOutcome:
    status: Status
    reason: str | None
    gpu: str | None = None
    peak_memory_gib: float | None = None


class EngineFailure(Exception):
    """The engine died, hung or could not start: the text says how."""


class Runner(Protocol):
    """An engine under one server configuration. ``start`` and ``stop`` may be called again after each other."""

    def start(self) -> dict[str, Any]:
        """Starts the engine and checks models and prompts; returns facts of it for ``environment.json``.

        Raises:
            ConfigError: a model, drafter or prompt that cannot be used.
            EngineFailure: it did not come up.
        """

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        """Measures one cell and writes its tables. A cell that fails is an outcome, not an exception.

        Raises:
            EngineFailure: the engine is gone; ``start`` again before the next cell.
        """

    def stop(self) -> None:
        """Ends the engine and frees what it held. Safe to call twice."""
