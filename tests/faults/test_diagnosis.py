"""What broke, by what an engine says; and which setting to change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.diagnosis import ADVICE, INFRASTRUCTURE, diagnosed
from runners import out_of_memory
from runners.base import CellOutcome, EngineFailure
from runners.hosts import HostFailure

SAID = [
    (
        "vllm",
        "ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 125.82 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "occupied",
        "engine.flags.gpu_memory_utilization",
    ),
    (
        "vllm",
        "ValueError: To serve at least one request with the model's max seq len (131072), (14.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (3.20 GiB). Try increasing it",
        "context",
        "engine.flags.max_model_len",
    ),
    (
        "vllm",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
        "share",
        "engine.flags.gpu_memory_utilization",
    ),
    (
        "vllm",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
        "gpu",
        "sweep.batch_size",
    ),
    (
        "sglang",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "share",
        "engine.flags.mem_fraction_static",
    ),
    ("sglang", "Decode out of memory. Try to lower your batch size.", "pool", "sweep.batch_size"),
    ("sglang", "Exception: Capture cuda graph failed: CUDA out of memory.", "gpu", "engine.flags.mem_fraction_static"),
    (
        "reference",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to",
        "host",
        "sweep.batch_size",
    ),
    ("reference", "MemoryError", "host", "sweep.batch_size"),
    ("reference", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 80.0 GiB", "host", "sweep.batch_size"),
    ("reference", "OSError: [Errno 12] Cannot allocate memory", "host", "sweep.batch_size"),
]


@pytest.mark.parametrize(("engine", "line", "shortage", "setting"), SAID)
def test_too_little_memory_is_told_with_the_setting(
    tmp_path: Path, engine: str, line: str, shortage: str, setting: str
) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"loading\n{line}\nshutting down\n")
    found = diagnosed(CellOutcome("failed", "the server died (exit code 1)", kind="died"), log, engine, 0)
    told = out_of_memory.find(line)
    assert told is not None
    assert told.shortage == shortage
    assert found.kind == "memory"
    assert (found.reason or "").startswith("out of memory; ")
    assert setting in (found.reason or "")
    assert line[:60] in (found.reason or "")
    assert found.kind not in INFRASTRUCTURE  # it would come back


@pytest.mark.parametrize("line", ["", "memory pool end. avail mem=8.38 GB", "CUDA graphs can take additional memory"])
def test_talk_of_memory_is_no_shortage(tmp_path: Path, line: str) -> None:
    (tmp_path / "server.log").write_text(line)
    outcome = CellOutcome("failed", "2 of 8 requests failed: HTTP 500: x", kind="died")
    assert diagnosed(outcome, tmp_path / "server.log", "vllm", 0) == outcome
    well = CellOutcome("ok", None)
    (tmp_path / "server.log").write_text("CUDA out of memory")
    assert diagnosed(well, tmp_path / "server.log", "vllm", 0) == well


def test_a_real_lack_of_memory_is_known() -> None:
    """Of a process that may have 2 GB and asks for 4."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000,) * 2)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{limit}x = bytearray(4_000_000_000)"], capture_output=True, text=True, check=False
    )
    told = out_of_memory.find(done.stderr)
    assert told is not None
    assert told.shortage == "host"


def test_the_kernels_kills_are_told_from_others(tmp_path: Path) -> None:
    outcome = CellOutcome("failed", "the engine process died (signal 9)", kind="died")
    log = tmp_path / "server.log"
    kills = out_of_memory.kernel_kills()
    assert diagnosed(outcome, log, "vllm", kills) == outcome
    found = diagnosed(outcome, log, "vllm", kills - 1)  # as if there had been one less when the cell began
    assert found.kind == "memory"
    assert "the kernel killed it" in (found.reason or "")
    assert ADVICE["vllm"]["host"] in (found.reason or "")


@pytest.mark.parametrize("reason", ["OSError: [Errno 28] No space left on device", "x: Disk quota exceeded"])
def test_a_full_disk_is_known(tmp_path: Path, reason: str) -> None:
    assert diagnosed(CellOutcome("failed", reason), tmp_path / "none", "vllm", 0).kind == "disk"


def test_a_wrong_result_is_never_tried_again(tmp_path: Path) -> None:
    outcome = CellOutcome("failed", "no draft was counted: speculation was not active")
    assert diagnosed(outcome, tmp_path / "none", "vllm", 0).kind not in INFRASTRUCTURE


def test_failures_have_a_kind() -> None:
    assert EngineFailure("x").kind == "died"
    assert EngineFailure("x", "hang").kind == "hang"
    assert HostFailure("x").kind == "lost"
