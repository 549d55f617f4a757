"""vLLM's schedulers with KV room for the drafter's block, which may be longer than the tree's budget."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from ddbench.plugins.vllm.server_options import options_of


class DDTreeScheduler(Scheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_lookahead_tokens = options_of(self.vllm_config).lookahead


class DDTreeAsyncScheduler(AsyncScheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_lookahead_tokens = options_of(self.vllm_config).lookahead
