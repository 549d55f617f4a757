"""A STAND-IN for SGLang 0.5.17, for tests on machines without a GPU: our reference engine behind SGLang's doors.

It is no SGLang. What it answers comes from real models and real trees, decoded by `ddbench.decoding`; its fields and
their order in time are those of SGLang 0.5.17 as its source has them:

- `Engine` with `generate`, `async_generate`, `loop`: ``sglang/srt/entrypoints/engine.py``, class ``Engine``;
- ``POST /generate``, ``/flush_cache``, ``/health``, ``/server_info``: ``sglang/srt/entrypoints/http_server.py``,
  ``generate_request``, ``flush_cache``, ``health_generate``, ``server_info``;
- one chunk a scheduler step, ``output_ids`` of the whole text so far, or of the chunk alone with
  ``--incremental-streaming-output``; ``meta_info``, whose ``spec_*`` come with the last chunk:
  ``sglang/srt/managers/tokenizer_manager.py``, ``_handle_batch_output`` and ``_calculate_spec_decoding_metrics``;
- a DFLASH server that is told ``--speculative-eagle-topk`` above 1 serves a chain with no more than a line in its log:
  ``sglang/srt/arg_groups/speculative_hook.py``, ``_handle_dflash``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sglang.core import Core
from sglang.srt.managers.io_struct import SetInternalStateReq

__version__ = "0.5.17"


class _Config:
    vocab_size = 4096


class _Manager:
    def __init__(self, core: Core) -> None:
        self.aborted: set[str] = set()
        self.model_config = _Config()
        self._core = core

    async def set_internal_state(self, request: SetInternalStateReq) -> list[bool]:
        return self._core.set_state(request.server_args)

    def abort_request(self, rid: str = "") -> None:
        self.aborted.add(rid)


class Engine:
    def __init__(self, **server_args: Any) -> None:
        self._core = Core(server_args)
        for line in self._core.says:
            sys.stderr.write(line + "\n")
        self.loop = asyncio.new_event_loop()
        self.tokenizer_manager = _Manager(self._core)

    def generate(self, *, input_ids: list[int], sampling_params: dict[str, Any], **asked: Any) -> dict[str, Any]:
        return list(self._core.chunks("r", input_ids, sampling_params, **asked))[-1]

    async def async_generate(
        self, *, input_ids: list[int], sampling_params: dict[str, Any], stream: bool = False, rid: str = "r"
    ) -> Any:
        chunks = self._core.chunks(rid, input_ids, sampling_params)
        return self._stream(rid, chunks) if stream else list(chunks)[-1]

    async def _stream(self, rid: str, chunks: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks:
            await asyncio.sleep(0.001)
            if rid in self.tokenizer_manager.aborted:
                chunk["meta_info"]["finish_reason"] = {"type": "abort", "message": "Aborted"}
                yield chunk
                return
            yield chunk

    def flush_cache(self) -> bool:
        return True

    def get_server_info(self) -> dict[str, Any]:
        return self._core.info()

    def shutdown(self) -> None:
        self.loop.close()
