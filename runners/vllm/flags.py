"""The settings of a vLLM server that must be equal in all arms: as configured, and as they come out for a plan."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ddbench.errors import ConfigError

DEFAULT = "default"
DEFAULT_ARM = {"model_runner": DEFAULT, "attention_backend": DEFAULT, "async_scheduling": None}
BATCHED_TOKENS = 8192
PREFILL_TOKENS = 2048  # of a step's token budget, left when every sequence verifies at the widest
CACHE_STEP_GIB = 0.25


@dataclass(frozen=True)
class VllmFlags:
    """``engine.flags`` of ``conf/engine/vllm.yaml``, where each is described. None and ``auto``: by device and plan.

    ``model_runner`` and ``attention_backend`` may be ``default``, and ``async_scheduling`` None: as vLLM would choose.
    """

    model_runner: Literal["V1", "V2", "default"]
    attention_backend: str
    block_size: int | None
    cuda_graphs: bool | None
    async_scheduling: bool | None
    prefix_cache: bool
    tensor_parallel: int
    gpu_memory_utilization: float
    kv_cache_gib: float | None
    kv_cache_dtype: str
    quantization: str | None
    max_model_len: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    extra_args: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("block_size", "tensor_parallel", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"engine.flags.{name}", value, "an integer >= 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError("engine.flags.gpu_memory_utilization", self.gpu_memory_utilization, "a number in (0, 1]")
        if self.kv_cache_gib is not None and self.kv_cache_gib <= 0:
            raise ConfigError("engine.flags.kv_cache_gib", self.kv_cache_gib, "a number > 0, or null")

    @classmethod
    def of_arm(cls, flags: dict[str, Any]) -> VllmFlags:
        """From the flags of an arm, which hold those of other kinds too."""
        values = {field.name: flags[field.name] for field in fields(cls)}
        return cls(**{**values, "extra_args": tuple(values["extra_args"])})


@dataclass(frozen=True)
class Demands:
    """What a plan asks of every server of a run, whichever arm it serves."""

    device: str
    batch_size: int  # the largest
    most_drafted: int  # tokens a sequence and round, of the widest arm
    context_length: int  # of the target
    cache_bytes: int  # keys and values of one token, target and largest drafter
    hybrid: bool  # the target has layers without a key-value cache


def resolve(given: VllmFlags, demands: Demands) -> dict[str, Any]:
    """The flags as every server gets them, as plain data for the arms.

    Raises:
        ConfigError: a value that the device or the plan rules out.
    """
    cpu = demands.device == "cpu"
    _check(given, demands, cpu)
    seqs = given.max_num_seqs or demands.batch_size
    length = min(given.max_model_len, demands.context_length)
    cache = given.kv_cache_gib
    if cache is None and not demands.hybrid:
        cache = cache_gib(seqs, length + demands.most_drafted + 64, demands.cache_bytes)
    values = {
        **asdict(given),
        "attention_backend": _backend(given.attention_backend, cpu),
        "block_size": given.block_size or (128 if cpu else 16),
        "cuda_graphs": not cpu if given.cuda_graphs is None else given.cuda_graphs,
        "kv_cache_gib": cache,
        "max_model_len": length,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": given.max_num_batched_tokens or batched_tokens(seqs, demands.most_drafted),
        "extra_args": list(given.extra_args),
    }
    room = length - reserve(demands.most_drafted)
    if room < 2:
        raise ConfigError("engine.flags.max_model_len", length, f"more than {reserve(demands.most_drafted) + 1}")
    return values


def reserve(most_drafted: int) -> int:
    """Tokens of the context that a request may not fill.

    vLLM drafts only while the sequence, the drafts under way counted as accepted, has room for as many again and the
    bonus token. Else it schedules tokens that nobody drafted, for every sequence of the batch, and counts a round.
    """
    return 2 * most_drafted + 2 if most_drafted else 0


def cache_gib(seqs: int, tokens: int, token_bytes: int) -> float:
    """A key-value cache for ``seqs`` sequences of ``tokens`` tokens, rounded up to a quarter of a GiB."""
    return max(1, math.ceil(1.05 * seqs * tokens * token_bytes / (2**30 * CACHE_STEP_GIB))) * CACHE_STEP_GIB


def batched_tokens(seqs: int, drafted: int) -> int:
    """Token budget of a step, in which every sequence can verify at the widest and a prefill goes along.

    vLLM 0.26 takes ``drafted - 1`` slots a sequence off it for drafters that propose in parallel, so they count twice.
    """
    wanted = seqs * (2 * drafted + 1) + PREFILL_TOKENS
    return max(BATCHED_TOKENS, 1024 * math.ceil(wanted / 1024))


def _backend(name: str, cpu: bool) -> str:
    return ("CPU_ATTN" if cpu else "TRITON_ATTN") if name == "auto" else name


def _check(given: VllmFlags, demands: Demands, cpu: bool) -> None:
    if given.max_num_seqs is not None and given.max_num_seqs < demands.batch_size:
        raise ConfigError("engine.flags.max_num_seqs", given.max_num_seqs, f"at least {demands.batch_size}, or null")
    if given.async_scheduling is None and given.model_runner != DEFAULT:
        raise ConfigError("engine.flags.async_scheduling", None, "true or false, so that all arms have the same")
    if not cpu:
        return
    if given.attention_backend not in ("auto", "CPU_ATTN", DEFAULT):
        raise ConfigError("engine.flags.attention_backend", given.attention_backend, "auto or CPU_ATTN on the CPU")
    if given.model_runner == "V2":
        raise ConfigError("engine.flags.model_runner", "V2", "V1 on the CPU: vLLM's V2 runner needs a GPU")
    if given.cuda_graphs:
        raise ConfigError("engine.flags.cuda_graphs", True, "false or null on the CPU")
    if given.async_scheduling:
        raise ConfigError("engine.flags.async_scheduling", True, "false on the CPU, where vLLM switches it off")
    if given.block_size is not None and given.block_size % 32:
        raise ConfigError("engine.flags.block_size", given.block_size, "a multiple of 32 on the CPU, or null")
