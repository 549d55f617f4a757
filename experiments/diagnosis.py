"""What broke, of a cell that failed: memory, the disk, or what its runner says; and which setting to change."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from runners import out_of_memory
from runners.base import CellOutcome, FailureKind
from runners.engine_log import read_tail
from runners.out_of_memory import Shortage

# What another try may mend. Too little memory comes back, and so does a result that is wrong.
INFRASTRUCTURE: tuple[FailureKind, ...] = ("start", "died", "lost", "hang", "disk")

DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large|\[Errno (?:28|122|27)\]")
KILLED = re.compile(r"signal 9|SIGKILL|exit code:? -9|exit code:? 137")

ADVICE: dict[str, dict[Shortage, str]] = {
    "reference": {
        "gpu": "lower sweep.batch_size, load.max_new_tokens or sweep.nodes",
        "host": "lower sweep.batch_size, load.max_new_tokens or sweep.nodes",
    },
    "published": {
        "gpu": "lower load.max_new_tokens or sweep.nodes",
        "host": "lower load.max_new_tokens or sweep.nodes",
    },
    "vllm": {
        "gpu": "lower engine.flags.gpu_memory_utilization, engine.flags.kv_cache_gib or sweep.batch_size",
        "occupied": "end what else runs on the GPU, or lower engine.flags.gpu_memory_utilization",
        "share": "raise engine.flags.gpu_memory_utilization, or lower engine.flags.kv_cache_gib",
        "context": "lower engine.flags.max_model_len, or raise engine.flags.gpu_memory_utilization",
        "host": "lower engine.flags.kv_cache_gib, engine.flags.max_model_len or sweep.batch_size",
    },
    "sglang": {
        "gpu": "lower engine.flags.mem_fraction_static or sweep.batch_size",
        "share": "raise engine.flags.mem_fraction_static, or lower model.context_length",
        "pool": "lower sweep.batch_size, or raise engine.flags.mem_fraction_static",
        "host": "lower sweep.batch_size or model.context_length",
    },
}
ANY = "lower sweep.batch_size, model.context_length or load.max_new_tokens"


def diagnosed(outcome: CellOutcome, log: Path, engine: str, killed_before: int) -> CellOutcome:
    """A failed cell's outcome with what its reason and its log tell; another one as it is.

    ``killed_before``: :func:`runners.out_of_memory.kernel_kills` when the cell began.
    """
    if outcome.status != "failed":
        return outcome
    reason = outcome.reason or "no reason was given"
    said = read_tail(log) if log.exists() else ""
    found = out_of_memory.find(reason) or out_of_memory.find(said)
    if found is not None:
        advice = ADVICE.get(engine, {}).get(found.shortage, ANY)
        told = reason if found.line in reason or reason in found.line else f"{reason}: {found.line}"
        return replace(outcome, reason=f"out of memory; {advice} ({told})", kind="memory")
    if KILLED.search(reason) and out_of_memory.kernel_kills() > killed_before:
        advice = ADVICE.get(engine, {}).get("host", ANY)
        return replace(outcome, reason=f"out of memory: the kernel killed it; {advice} ({reason})", kind="memory")
    if DISK_FULL.search(reason):
        return replace(outcome, kind="disk")
    return outcome
