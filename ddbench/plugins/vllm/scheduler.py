"""vLLM's schedulers with KV room for the drafter's block, which may be longer than the tree's budget."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from ddbench.plugins.vllm.server_options import options_of


class _DraftRoom:
    """Mixed in before a scheduler of vLLM's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_lookahead_tokens = options_of(self.vllm_config).lookahead  # type: ignore[attr-defined]


class DDTreeScheduler(_DraftRoom, Scheduler):  # type: ignore[misc]
    """The synchronous one."""


class DDTreeAsyncScheduler(_DraftRoom, AsyncScheduler):  # type: ignore[misc]
    """The asynchronous one."""
