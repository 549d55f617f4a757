"""What is asked: prompts from a file, a dataset or an installed package, always chosen the same way."""

from __future__ import annotations

from experiments.workloads.choose import choose, prompts_hash
from experiments.workloads.load import Workload, load_workload
from experiments.workloads.records import asset_path, read_prompts

__all__ = ["Workload", "asset_path", "choose", "load_workload", "prompts_hash", "read_prompts"]
