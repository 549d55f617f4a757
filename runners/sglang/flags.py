"""The settings of a SGLang server that must be equal in all arms: as configured, and as they come out for a plan."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from ddbench.errors import ConfigError

DEFAULT = "default"
DEFAULT_ARM = {
    "attention_backend": DEFAULT,
    "page_size": None,
    "prefill_graphs": None,
    "min_free_slots_delay": None,
    "sampling_backend": DEFAULT,
}
SHARE = 0.85  # of a GPU's memory, where neither configuration nor prediction says it
MARGIN = 4  # tokens that SGLang leaves free at the edge of a context


@dataclass(frozen=True)
class SglangFlags:
    """``engine.flags`` of ``conf/engine/sglang.yaml``, where each is described. None: by device, plan and arm.

    ``attention_backend`` and ``sampling_backend`` may be ``default``, ``page_size``, ``prefill_graphs`` and
    ``min_free_slots_delay`` None: as SGLang would choose.
    """

    attention_backend: str
    sampling_backend: str
    page_size: int | None
    cuda_graphs: bool
    prefill_graphs: bool | None
    overlap: bool
    prefix_cache: bool
    tensor_parallel: int
    mem_fraction_static: float | None
    kv_tokens: int | None
    kv_cache_dtype: str
    quantization: str | None
    context_length: int
    max_running_requests: int | None
    chunked_prefill_size: int
    min_free_slots_delay: int | None
    extra_args: tuple[str, ...]

    def __post_init__(self) -> None:
        least = ("page_size", "tensor_parallel", "kv_tokens", "context_length", "max_running_requests")
        for name in (*least, "min_free_slots_delay"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"engine.flags.{name}", value, "an integer >= 1")
        if self.chunked_prefill_size < 1 and self.chunked_prefill_size != -1:
            raise ConfigError("engine.flags.chunked_prefill_size", self.chunked_prefill_size, "an integer >= 1, or -1")
        if self.mem_fraction_static is not None and not 0 < self.mem_fraction_static < 1:
            raise ConfigError(
                "engine.flags.mem_fraction_static", self.mem_fraction_static, "a number in (0, 1), or null"
            )

    @classmethod
    def of_arm(cls, flags: dict[str, Any]) -> SglangFlags:
        """From the flags of an arm, which hold those of other kinds too."""
        values = {field.name: flags[field.name] for field in fields(cls)}
        return cls(**{**values, "extra_args": tuple(values["extra_args"])})


@dataclass(frozen=True)
class Demands:
    """What a plan asks of every server of a run, whichever arm it serves."""

    device: str
    batch_size: int  # the largest
    most_width: int  # verify width or drafter's block of the widest arm
    context_length: int  # of the target
    dtype: str | None = None  # None: of a server that runs already


def resolve(given: SglangFlags, demands: Demands) -> dict[str, Any]:
    """The flags as every server gets them, as plain data for the arms.

    Raises:
        ConfigError: a value that the device or the plan rules out.
    """
    if demands.device == "cpu":
        raise ConfigError("engine.device", "cpu", "cuda: SGLang's CPU build has no DFlash and no overlap")
    if demands.dtype == "float32":
        allowed = "bfloat16: SGLang's norm kernels have no float32, its servers end at their first pass"
        raise ConfigError("engine.dtype", "float32", f"{allowed} (docs/engines.md)")
    if given.max_running_requests is not None and given.max_running_requests < demands.batch_size:
        allowed = f"at least {demands.batch_size}, or null"
        raise ConfigError("engine.flags.max_running_requests", given.max_running_requests, allowed)
    if given.min_free_slots_delay is None and given.attention_backend != DEFAULT:
        raise ConfigError("engine.flags.min_free_slots_delay", None, "a number, so that all arms have the same")
    seqs = given.max_running_requests or demands.batch_size
    length = min(given.context_length, demands.context_length)
    room = length - reserve(demands.most_width)
    if room < 2:
        raise ConfigError("engine.flags.context_length", length, f"more than {reserve(demands.most_width) + 1}")
    return {
        **asdict(given),
        "context_length": length,
        "max_running_requests": seqs,
        "kv_tokens": given.kv_tokens or pool(seqs, length, demands.most_width),
        "extra_args": list(given.extra_args),
    }


def reserve(most_width: int) -> int:
    """Tokens of the context that a request may not fill: two windows under way, and SGLang's own margin."""
    return 2 * most_width + MARGIN if most_width else MARGIN


def pool(seqs: int, length: int, most_width: int) -> int:
    """Tokens of the key-value pool: every sequence at its full length with two windows under way, in whole thousands.

    The same in all arms, for SGLang by itself sizes it by what memory a drafter leaves.
    """
    return 1024 * math.ceil(seqs * (length + 2 * most_width) / 1024)
