"""What a sweep asks of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ddbench.errors import Broken
from ddbench.records import Cell, Status
from runners.telemetry_settings import TelemetrySettings

if TYPE_CHECKING:
    from ddbench.cost import CostModel
    from runners.hosts.config import HostConfig
    from runners.published.options import PublishedOptions
    from runners.sglang.branches import Branch

# What failed, where it was not the arm itself: "start" the engine did not come up, "died" it ended by itself, "lost"
# the connection to it or its host, "hang" it made no progress, "disk" no space is left, "memory" it had too little,
# "hopeless" it did not come up before and is not tried again, "busy" another engine holds its GPU.
FailureKind = Literal["start", "died", "lost", "hang", "disk", "memory", "hopeless", "busy"]


@dataclass(frozen=True)
class Prompt:
    """What a user says, turn by turn, and the answers given to the turns before the one that is asked.

    A record of a workload has all its ``turns`` and no answers. As a request, a prompt asks the turn that has none yet:
    with k ``answers`` that is turn k, and the conversation before it is fixed, the same for every arm.
    """

    id: str
    dataset: str
    category: str
    turns: tuple[str, ...]
    answers: tuple[str, ...] = ()

    @property
    def turn(self) -> int:
        """The turn that is asked, from 0."""
        return len(self.answers)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation up to the turn that is asked, as chat templates take it."""
        said = [{"role": "user", "content": text} for text in self.turns[: self.turn + 1]]
        answered = [{"role": "assistant", "content": text} for text in self.answers]
        pairs = [message for pair in zip(said, answered, strict=False) for message in pair]
        return [*pairs, said[-1]]


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
    trust_remote_code: bool = False  # whether Python code that comes with the target may run


@dataclass(frozen=True)
class ServerOptions:
    """What an engine that is a server is told beside its arms.

    ``python``: interpreter of its environment, None for the one that ``experiment=bootstrap`` made. ``url``: a server
    that runs already, which is only asked, never started or ended. ``rate``: requests a second on average, arriving at
    random; None: a closed loop. ``checkout``: folder with sources that run in the place of the installed ones, without
    our plug-in; ``branch``: how their servers are told a tree, None where none is asked for.
    """

    python: str | None
    url: str | None
    port: int | None
    start_timeout_s: float
    batch_sizes: tuple[int, ...]  # of the plan
    strategies: tuple[str, ...]  # of the cells to be measured
    rate: float | None
    reserved: int  # tokens of the context that no request may fill
    checkout: str | None = None
    branch: Branch | None = None


@dataclass(frozen=True)
class ServerSpec:
    """One server configuration: what must be the same for cells to share a running engine.

    ``context_length`` bounds prompt and answer together. ``server`` is None for the reference engine. ``gaps``: whether
    autoregressive cells at temperature 0 are followed by a pass that is not measured and gathers ``output_gaps``.
    ``stall_s``: longest time without a token while requests are in flight; ``start_s``: longest start.
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
    gaps: bool = False
    stall_s: float = 600.0
    start_s: float = 1800.0
    host: HostConfig | None = None  # where the engine runs; None: here
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    cost: CostModel | None = None  # of the steps, for arms with a policy
    published: PublishedOptions | None = None  # the published implementation decodes, not the reference engine


@dataclass(frozen=True)
class NewPrompts:
    """What a process of ours is told by :meth:`Runner.ask`."""

    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...] | None = None  # None: those before


@dataclass(frozen=True)
class Answers:
    """What a process of ours is asked by :meth:`Runner.texts`."""

    token_ids: tuple[tuple[int, ...], ...]


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
    build: str | None = None  # see CellStatus
    kind: FailureKind | None = None  # of a failed cell: what broke; None: the measurement itself came out wrong
    start_temperature_c: float | None = None  # see CellStatus
    cooling_s: float | None = None


class EngineFailure(Broken):
    """The engine died, hung or could not start: the text says how, ``kind`` what it was."""

    kind: FailureKind = "died"

    def __init__(self, text: str, kind: FailureKind | None = None) -> None:
        super().__init__(text)
        self.kind = kind or self.kind


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

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        """From now on measures these prompts in the place of the spec's; returns facts of them as ``start`` does.

        ``warmup`` takes the place of the warm-up prompts; None: those before stay. The engine has been started.

        Raises:
            ConfigError: a prompt that cannot be used.
            EngineFailure: the engine is gone.
        """

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """Answers as text, special tokens left out. The engine has been started.

        Raises:
            EngineFailure: the engine is gone.
        """

    def stop(self) -> None:
        """Ends the engine and frees what it held. Safe to call twice."""
