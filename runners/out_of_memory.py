"""Whether what an engine said means that memory ran out, and whether the kernel has killed for memory.

The sentences are those of PyTorch's allocators, CUDA, Python, vLLM 0.33 (``v1/worker/utils.py``,
``v1/core/kv_cache_utils.py``) and SGLang 0.5 (memory pools and scheduler), as their sources have them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# "gpu": an allocation failed. "occupied": others hold the GPU. "share": the engine's own share of it is too small.
# "context": a single sequence does not fit. "pool": the cache is full of running requests. "host": main memory.
Shortage = Literal["gpu", "occupied", "share", "context", "pool", "host"]

SENTENCES: Sequence[tuple[str, Shortage]] = (
    (r"is less than desired GPU memory utilization", "occupied"),
    (r"larger than the available KV cache memory", "context"),
    (r"No available memory for the cache blocks", "share"),
    (r"Not enough memory\. Please try to increase --mem-fraction-static", "share"),
    (r"(?:Prefill |Decode )?[Oo]ut of memory\. Try to lower your batch size", "pool"),
    (r"alloc_req_slots runs out of memory", "pool"),
    (r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY", "gpu"),
    (r"OutOfMemoryError", "gpu"),
    (r"DefaultCPUAllocator: can't allocate memory|DefaultCPUAllocator: not enough memory", "host"),
    (r"^(?:\w+\.)*_?(?:Array)?MemoryError\b|: (?:\w+\.)*MemoryError\b|Cannot allocate memory", "host"),
)
LINE_CHARACTERS = 300


@dataclass(frozen=True)
class OutOfMemory:
    """What ran out, and the line that says so."""

    shortage: Shortage
    line: str


def find(text: str) -> OutOfMemory | None:
    """The last line of an engine's output, or of a reason, that says that memory ran out; None where none does."""
    for line in reversed(text.splitlines()):
        for pattern, shortage in SENTENCES:
            if re.search(pattern, line.strip()):
                return OutOfMemory(shortage, line.strip()[:LINE_CHARACTERS])
    return None


def kernel_kills() -> int:
    """Processes that the kernel has killed for memory on this machine, or in this control group, since it began.

    0 where it does not say. Linux: ``oom_kill`` of /proc/vmstat (4.13) and of the group's memory.events.
    """
    return sum(_counter(path) for path in (Path("/proc/vmstat"), *_events()))


def _events() -> list[Path]:
    """memory.events of this process's control group (version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [Path("/sys/fs/cgroup") / line[3:].lstrip("/") / "memory.events" for line in lines if line.startswith("0::")]


def _counter(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(value) for name, _, value in (line.partition(" ") for line in lines) if name == "oom_kill")
