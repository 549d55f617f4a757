"""The worker of each known SGLang."""

from __future__ import annotations

import importlib

from ddbench.plugins.sglang.gate import check_engine

MODULES = {"0.5.17": "worker_0517", "0.5.23": "worker_0523"}


def worker_of() -> type:
    """The worker class for the installed version. Raises Refused."""
    module = importlib.import_module(f"ddbench.plugins.sglang.{MODULES[check_engine()]}")
    found: type = module.DDTreeWorker
    return found
