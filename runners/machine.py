"""Facts of the machine and of the software on it, for ``environment.json``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "ddbench",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "numba",
    "pandas",
    "pyarrow",
    "scipy",
    "matplotlib",
    "hydra-core",
    "omegaconf",
    "wandb",
)


def version(package: str) -> str | None:
    """Version of an installed package, or None. A checkout of ddbench has no metadata: its own attribute counts."""
    if package == "ddbench":
        import ddbench

        return ddbench.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine_facts() -> dict[str, Any]:
    """Python, packages, processor, memory, GPUs with driver, and the git commit of the checkout if there is one."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {package: found for package in PACKAGES if (found := version(package))},
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "cpu_usable": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 2),
        "threads_env": {
            name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ
        },
        **_gpu_facts(),
        **_git_facts(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpu_facts() -> dict[str, Any]:
    query = "name,memory.total,power.limit,driver_version"
    text = _output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in (text or "").splitlines()]
    gpus = [dict(zip(("name", "memory", "power_limit", "driver"), row, strict=True)) for row in rows if len(row) == 4]
    return {"gpus": gpus, "driver": gpus[0]["driver"] if gpus else None}


def _git_facts() -> dict[str, Any]:
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return {"git_commit": None, "git_dirty": None}
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return {
        "git_commit": _output("git", "-C", str(root), "rev-parse", "--verify", "HEAD"),
        "git_dirty": None if changed is None else bool(changed),
    }


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
