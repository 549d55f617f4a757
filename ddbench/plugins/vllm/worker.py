"""The worker that ``--worker-cls`` names: vLLM's own, with the tree's model runner and drafter in it.

Swapped at run time, all of it here, and only while the worker makes its model runner: the runner class and the drafter
class that vLLM looks up by name in its modules at that moment (it has no door for either). On the CPU the attention
backend CPU_ATTN is overridden as well, through vLLM's own registry. No file is changed, no other worker is touched.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import vllm.v1.worker.gpu_model_runner as gpu_model_runner
from vllm.platforms import current_platform

from ddbench.plugins.vllm.gate import check_engine, say
from ddbench.plugins.vllm.proposer import DDTreeProposer
from ddbench.plugins.vllm.refusals import check_config
from ddbench.plugins.vllm.runner import DDTreeRunner

if current_platform.is_cpu():
    import vllm.v1.worker.cpu_worker as engine_worker
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    Base, RUNNER_MODULE, RUNNER_NAME = engine_worker.CPUWorker, engine_worker, "CPUModelRunner"
    register_backend(AttentionBackendEnum.CPU_ATTN, "ddbench.plugins.vllm.attention_cpu.DDTreeCPUBackend")
else:
    Base = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
    RUNNER_MODULE, RUNNER_NAME = gpu_model_runner, "GPUModelRunner"


class DDTreeWorker(Base):  # type: ignore[misc,valid-type]
    def init_device(self) -> None:
        version = check_engine()
        check_config(self.vllm_config)
        with tree_classes():
            super().init_device()
        say(f"DDTree plug-in for vLLM {version} registered: {self.model_runner.drafter.options}")


@contextmanager
def tree_classes() -> Iterator[None]:
    """While it is open, vLLM makes a tree's runner and drafter where it would make its own."""
    stock = getattr(RUNNER_MODULE, RUNNER_NAME)
    runner: Any = type(f"DDTree{RUNNER_NAME}", (DDTreeRunner, stock), {})
    drafter = gpu_model_runner.DFlashProposer
    setattr(RUNNER_MODULE, RUNNER_NAME, runner)
    gpu_model_runner.DFlashProposer = DDTreeProposer
    try:
        yield
    finally:
        setattr(RUNNER_MODULE, RUNNER_NAME, stock)
        gpu_model_runner.DFlashProposer = drafter
