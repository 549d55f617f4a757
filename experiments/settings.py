"""The settings of a sweep: what ``conf/`` may say, as frozen dataclasses with their ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ddbench.errors import ConfigError
from ddbench.records import POLICIES, STRATEGIES
from ddbench.redaction import is_secret
from experiments.fault_settings import FaultSettings
from experiments.hosts import hosts_of
from experiments.ranges import require as _require
from experiments.state_memory import DeltaNetSettings
from experiments.typed import build
from runners.hosts.config import HostConfig, check_lists
from runners.telemetry_settings import TelemetrySettings

COLUMN = r"\{([A-Za-z_]\w*)\}"  # of a prompt template


@dataclass(frozen=True)
class CostSettings:
    """A rough model of the machine, for the dry run: floating-point operations and bytes a second, seconds."""

    flops_per_s: float
    bytes_per_s: float
    pass_overhead_s: float
    start_s: float

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "bytes_per_s"):
            _require(f"engine.cost.{name}", [getattr(self, name)], lambda v: v > 0, "a number > 0")
        for name in ("pass_overhead_s", "start_s"):
            _require(f"engine.cost.{name}", [getattr(self, name)], lambda v: v >= 0, "seconds >= 0")


@dataclass(frozen=True)
class EngineSettings:
    name: Literal["reference", "sglang", "vllm", "published"]
    device: str
    dtype: Literal["float32", "bfloat16"]
    threads: int | None
    python: str | None
    timeout_s: float
    flags: dict[str, Any]
    cost: CostSettings
    url: str | None = None  # of a server that runs already
    port: int | None = None  # of a server that is started; None: any free one
    start_timeout_s: float = 1800.0
    default_arms: bool = False
    stall_timeout_s: float = 600.0
    checkout: str | None = None  # of the published implementation, or of a branch of SGLang
    branch: Any = None  # of SGLang in the checkout: its name, or how its server is told a tree

    def __post_init__(self) -> None:
        _require("engine.device", [self.device], re.compile(r"cpu|cuda(:\d+)?").fullmatch, "cpu, cuda or cuda:<index>")
        _require("engine.threads", [self.threads], lambda v: v is None or 1 <= v <= 1024, "from 1 to 1024, or null")
        for name in ("python", "url", "port") if self.name in ("reference", "published") else ():
            allowed = f"null: the {self.name} engine runs in this environment, and is no server"
            _require(f"engine.{name}", [getattr(self, name)], lambda v: v is None, allowed)
        elsewhere = "null: engine=published and engine=sglang run a checkout. A branch of vLLM is built in its own"
        allowed = f"{elsewhere} environment, and engine.python names that (docs/rivals.md)"
        can = self.name in ("published", "sglang")
        _require("engine.checkout", [self.checkout], lambda v: v is None or can, allowed)
        allowed = "null with engine.url: a server that runs already has its own sources"
        _require("engine.checkout", [self.checkout], lambda v: v is None or self.url is None, allowed)
        allowed = "null without engine=sglang and engine.checkout=<folder of SGLang sources>"
        can = self.name == "sglang" and self.checkout is not None
        _require("engine.branch", [self.branch], lambda v: v is None or can, allowed)
        for name in ("timeout_s", "start_timeout_s", "stall_timeout_s"):
            _require(f"engine.{name}", [getattr(self, name)], lambda v: 0 < v < math.inf, "seconds > 0")
        ports = "a port from 1 to 65535, or null for any free one"
        _refuse_secrets(self.flags)
        _require("engine.port", [self.port], lambda v: v is None or 1 <= v <= 65535, ports)
        address = re.compile(r"https?://[^\s/@]+(/\S*)?")  # no user and password in it: it is stored with every cell
        _require("engine.url", [self.url], lambda v: v is None or address.fullmatch(v), "http://host:port, or null")


@dataclass(frozen=True)
class StrategySettings:
    names: tuple[str, ...]
    force_spine: bool
    min_log_prob: float | None
    policies: tuple[str | None, ...] = (None,)  # of ddtree; None: the shapes of the grid, as they are
    cost: str | None = None  # a cost file (experiment=step_cost), for policies

    def __post_init__(self) -> None:
        _require("strategy.min_log_prob", [self.min_log_prob], lambda v: v is None or v <= 0, "a number <= 0, or null")
        known = f"null (the shapes of the grid), {' or '.join(POLICIES)}"
        _require("strategy.policies", self.policies or ("none",), lambda v: v is None or v in POLICIES, known)
        chosen = [policy for policy in self.policies if policy is not None]
        if chosen and (self.force_spine or self.min_log_prob is not None):
            name = "force_spine" if self.force_spine else "min_log_prob"
            raise ConfigError(f"strategy.{name}", getattr(self, name), f"not with {chosen[0]}: one open build is cut")


@dataclass(frozen=True)
class TargetSettings:
    """The model that is served. ``source``: a folder, ``asset://<folder>``, or a Hugging Face id."""

    source: str
    revision: str | None
    licence: str
    params: int
    layers: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    kv_layers: int | None = None  # layers that keep a key-value cache; None: all
    active_params: int | None = None  # of a mixture of experts, a token; None: all
    attention: Literal["full", "hybrid"] = "full"
    delta_nets: DeltaNetSettings | None = None  # of a hybrid; None: no estimate of memory has its states

    def __post_init__(self) -> None:
        hybrid = self.attention == "hybrid" and self.kv_layers is not None and self.kv_layers < self.layers
        allowed = "null, but for a target with attention hybrid and kv_layers below its layers"
        _require("model.target.delta_nets", [self.delta_nets], lambda v: v is None or hybrid, allowed)
        for name in ("params", "layers", "kv_heads", "head_dim", "vocab_size"):
            _require(f"model.target.{name}", [getattr(self, name)], lambda v: v >= 1, "an integer >= 1")
        for name in ("kv_layers", "active_params"):
            _require(f"model.target.{name}", [getattr(self, name)], _null_or_positive, "an integer >= 1, or null")


@dataclass(frozen=True)
class DrafterSettings:
    source: str
    revision: str | None
    licence: str
    params: int
    layers: int
    block_size: int | None = None  # DFlash: tokens of a block, the anchor counted
    mask_token_id: int | None = None  # DFlash; None: as the checkpoint says


@dataclass(frozen=True)
class ModelSettings:
    name: str
    kind: Literal["checkpoint", "random"]
    template: Literal["raw", "chat"]
    thinking: bool | None  # None: the chat template has no such switch
    context_length: int
    memory_gib: float  # about; weights in bfloat16 and the cache of one sequence of 4096 tokens
    target: TargetSettings
    dflash: DrafterSettings | None
    eagle: DrafterSettings | None
    random_seed: int = 0  # of the weights, for kind `random`
    trust_remote_code: bool = False  # whether Python code that comes with the target may run; stored with every cell

    def __post_init__(self) -> None:
        _require("model.name", [self.name], bool, "a text that is not empty")
        _require("model.context_length", [self.context_length], lambda v: v >= 2, "an integer >= 2")
        _require("model.memory_gib", [self.memory_gib], lambda v: 0 <= v < math.inf, "a number >= 0")
        _require("model.random_seed", [self.random_seed], lambda v: 0 <= v < 2**63, "an integer >= 0")
        if self.dflash is not None:
            size = self.dflash.block_size
            _require("model.dflash.block_size", [size], lambda v: v is not None and v >= 2, "an integer >= 2")


@dataclass(frozen=True)
class RowSettings:
    """How a row of a set with columns of its own becomes a prompt; every name here is a column's.

    ``template``: texts with ``{column}``; the first one whose columns are all non-empty is filled. ``turns``: a column
    that holds a list of turns, in its place. ``placeholder``: a text that marks a row whose prompt is not there.
    """

    template: tuple[str, ...] | None = None
    turns: str | None = None
    id: str | None = None  # None: the row's number
    category: str | None = None  # None: the workload's name; of several datasets, each one's own
    placeholder: str | None = None

    def __post_init__(self) -> None:
        either = (self.template is None) != (self.turns is None)
        _require(
            "workload.rows.turns", [self.turns], lambda _: either, "either this or workload.rows.template, not both"
        )

    @property
    def columns(self) -> frozenset[str]:
        """All the columns that are read."""
        filled = [name for text in self.template or () for name in re.findall(COLUMN, text)]
        return frozenset(name for name in (*filled, self.turns, self.id, self.category) if name is not None)


@dataclass(frozen=True)
class WheelSettings:
    """A prompt set inside a Python package; ``distribution`` is its name for pip."""

    distribution: str
    package: str
    file: str


@dataclass(frozen=True)
class WorkloadSettings:
    """Prompts from a file (``path``), else from a package (``wheel``), else from datasets (``dataset``).

    ``rows`` None: the source holds prompt records. ``take`` rows after a shuffle (of datasets only), as the papers do;
    then ``categories`` and ``max_prompts``, which are the user's.
    """

    name: str
    path: str | None
    warmup_path: str
    max_prompts: int | None
    categories: tuple[str, ...] | None
    wheel: WheelSettings | None = None
    dataset: tuple[str, ...] | None = None  # Hugging Face ids, folders, or addresses of JSON lines
    revision: tuple[str | None, ...] | None = None  # one a dataset; None: what the hub has now, resolved and stored
    config: str | None = None
    split: str | None = None
    files: tuple[str, ...] | None = None  # of the dataset; None: as its own card says
    shuffle_seed: int | None = None
    take: int | None = None
    rows: RowSettings | None = None
    turns: Literal["all", "first"] = "all"
    contexts: str | None = None  # answers to earlier turns, recorded by another run
    licence: str | None = None

    @property
    def revisions(self) -> tuple[str | None, ...]:
        """One a dataset."""
        return self.revision or (None,) * len(self.dataset or ())

    def __post_init__(self) -> None:
        _require("workload.name", [self.name], bool, "a text that is not empty")
        _require("workload.max_prompts", [self.max_prompts], _null_or_positive, "an integer >= 1, or null")
        _require("workload.categories", [self.categories], lambda v: v is None or v, "a list of names, or null")
        _require("workload.take", [self.take], _null_or_positive, "an integer >= 1, or null")
        some = self.path or self.wheel or self.dataset
        _require("workload.path", [self.path], lambda _: some, "a file of prompts, JSON lines or Parquet")
        fits = len(self.revisions) == len(self.dataset or ())
        _require("workload.revision", [self.revision], lambda _: fits, "as many as workload.dataset has, or null")
        known = self.path or self.wheel or self.split
        _require("workload.split", [self.split], lambda _: known, "the name of a split, such as test")


@dataclass(frozen=True)
class LoadSettings:
    max_new_tokens: int
    repeats: int
    blocks: int
    warmup_tokens: int
    top_p: float
    top_k: int
    ignore_eos: bool
    kind: Literal["closed", "open"] = "closed"
    rate: float | None = None  # requests a second, of an open loop
    restart: bool = True  # whether each block of repetition is measured on a fresh start of the engine
    gaps: bool = True  # whether the autoregressive arm at temperature 0 is asked for its best two tokens, unmeasured

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "warmup_tokens"):
            _require(f"load.{name}", [getattr(self, name)], lambda v: v >= 1, "an integer >= 1")
        for name in ("repeats", "blocks"):
            _require(f"load.{name}", [getattr(self, name)], lambda v: 1 <= v <= 10_000, "an integer from 1 to 10000")
        _require("load.top_p", [self.top_p], lambda v: 0 < v <= 1, "a number in (0, 1]")
        _require("load.top_k", [self.top_k], lambda v: v >= 0, "an integer >= 0 (0: no limit)")
        fits = (lambda v: v is None) if self.kind == "closed" else (lambda v: v is not None and 0 < v < math.inf)
        allowed = "null in a closed loop" if self.kind == "closed" else "requests a second > 0"
        _require("load.rate", [self.rate], fits, allowed)


@dataclass(frozen=True)
class TrackingSettings:
    name: Literal["none", "wandb"]
    mode: Literal["offline", "online", "disabled"]
    project: str
    entity: str | None
    tags: tuple[str, ...]
    cells: bool = True  # one W&B run a cell, logged as it ends; False: the report alone
    timeout_s: float = 60.0  # longest wait for one cell to be logged

    def __post_init__(self) -> None:
        _require("tracking.timeout_s", [self.timeout_s], lambda v: v > 0, "seconds > 0")


@dataclass(frozen=True)
class ReportSettings:
    figures: bool
    build: bool = True  # at the end of a sweep; False: left to experiment=report


@dataclass(frozen=True)
class SweepSettings:
    """The axes of the grid, each without duplicates and in the order given."""

    strategy: tuple[str, ...]
    width: tuple[int | None, ...]
    depth: tuple[int | None, ...]
    nodes: tuple[int, ...]
    batch_size: tuple[int, ...]
    temperature: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            values = tuple(dict.fromkeys(getattr(self, name)))
            _require(f"sweep.{name}", [values], bool, "a list of at least one value")
            object.__setattr__(self, name, values)
        _require("sweep.strategy", self.strategy, lambda v: v in STRATEGIES, f"one of {', '.join(STRATEGIES)}")
        _require("sweep.width", self.width, _null_or_positive, "an integer >= 1, or null for no limit")
        _require("sweep.depth", self.depth, _null_or_positive, "an integer >= 1, or null for the whole block")
        _require("sweep.nodes", self.nodes, lambda v: v >= 1, "an integer >= 1")
        _require("sweep.batch_size", self.batch_size, lambda v: v >= 1, "an integer >= 1")
        _require("sweep.temperature", self.temperature, lambda t: t == 0 or 0.001 <= t <= 1e3, "0, or 0.001 to 1000")


@dataclass(frozen=True)
class Settings:
    """Everything a sweep is told."""

    name: str
    output_dir: str
    seed: int
    strict: bool
    retry_failed: bool
    dry_run: bool
    engine: EngineSettings
    strategy: StrategySettings
    model: ModelSettings
    workload: WorkloadSettings
    load: LoadSettings
    host: HostConfig
    tracking: TrackingSettings
    report: ReportSettings
    sweep: SweepSettings
    run_id: str = field(default="")
    faults: FaultSettings = field(default_factory=FaultSettings)
    worker: int = 0  # of several processes that are told the same: which of host.gpus it begins with
    drafters: dict[str, Any] = field(default_factory=dict)  # of experiment=checkpoint_compare: name to source
    role: Literal["dflash", "eagle"] = "dflash"  # which drafter of the model they stand in for
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    workloads: dict[str, WorkloadSettings] | None = None  # several, by the names of their files; None: `workload` alone

    def __post_init__(self) -> None:
        _require("workloads", [self.workloads], lambda v: v is None or v, "at least one workload, or null")
        labels = [each.name for each in (self.workloads or {}).values()]
        allowed = "workloads with names of their own"
        _require("workloads", [tuple(labels)], lambda v: len(set(v)) == len(v), allowed)
        _require("output_dir", [self.output_dir], bool, "a folder")
        wait, stall = self.telemetry.start_wait_s, self.engine.stall_timeout_s
        gated = self.telemetry.start_temperature_c is not None
        _require("telemetry.start_wait_s", [wait], lambda v: not gated or v < stall, "less than engine.stall_timeout_s")
        room = self.model.context_length
        allowed = f"fewer than the context of {room} tokens (model.context_length)"
        for key in ("max_new_tokens", "warmup_tokens"):
            _require(f"load.{key}", [getattr(self.load, key)], lambda v: v < room, allowed)
        _require("seed", [self.seed], lambda v: 0 <= v < 2**31, "an integer from 0 to 2147483647")
        _require("worker", [self.worker], lambda v: v >= 0, "an integer >= 0")
        name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
        _require("name", [self.name], name.fullmatch, "letters, digits, '.', '_' and '-'")
        _require("run_id", [self.run_id], name.fullmatch, "letters, digits, '.', '_' and '-', or null")
        for key, source in self.drafters.items():
            _require("drafters", [str(key)], name.fullmatch, "names of letters, digits, '.', '_' and '-'")
            _require(f"drafters.{key}", [source], lambda v: isinstance(v, str) and v, "a folder or a Hugging Face id")
        twice = len(set(self.drafters.values())) < len(self.drafters)
        _require("drafters", [self.drafters], lambda _: not twice, "each from a place of its own")


def one_workload(settings: Settings, what: str) -> None:
    """Raises ConfigError where ``what`` is asked of several workloads."""
    if settings.workloads is not None:
        raise ConfigError("workloads", list(settings.workloads), f"null: {what}; name it by workload=<name>")


def load_settings(config: Mapping[str, Any], run_id: str) -> Settings:
    """The settings in a composed, resolved configuration; ``run_id`` is the one to take where it names none.

    Raises:
        ConfigError: anything that cannot be, named by its key.
    """
    data = {key: value for key, value in config.items() if key not in ("_target_", "aa_check")}
    given = data.get("run_id")
    data["run_id"] = run_id if given is None else str(given) if type(given) is int else given
    if isinstance(data.get("host"), Mapping):
        check_lists(data["host"])
    settings = build(Settings, data)
    hosts_of(settings.host)
    return settings


def _refuse_secrets(flags: Mapping[str, Any]) -> None:
    """Flags are what a cell is known by, and stored with it: nothing in them can be hidden."""
    allowed = "no secret: give it to the engine by its environment, which is never stored"
    for name, value in flags.items():
        words = value if isinstance(value, list | tuple) else [value]
        named = [str(word).partition("=")[0] for word in words if str(word).startswith("-")]
        if (is_secret(str(name)) and value is not None) or any(is_secret(word) for word in named):
            raise ConfigError(f"engine.flags.{name}", "(not shown)", allowed)


def _null_or_positive(value: int | None) -> bool:
    return value is None or value >= 1
