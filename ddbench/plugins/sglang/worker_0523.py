"""A round of DDTREE on SGLang 0.5.23, where it differs from 0.5.17: run on a CPU with made-up models, on no GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, enable_num_token_non_padded
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.dflash_worker_v2 import _resolve_dflash_embedding_module
from sglang.srt.speculative.spec_utils import draft_tp_context
from torch import Tensor

from ddbench.plugins.sglang import worker_0517
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.refused import Refused
from ddbench.plugins.sglang.tables import Lengths
from ddbench.plugins.sglang.worker import TreeWorker


class DDTreeWorker(worker_0517.DDTreeWorker):
    """Settings are read from the published ones, and the cache slots of a pass go with it as a plan."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        self._set_up(Sizes.of(get_spec()))
        with self.drafter_settings():
            super(TreeWorker, self).__init__(server_args, gpu_id, nccl_port, target_worker)
        kinds = ("selector", "lilicorr", "_is_domino")
        found = [kind for kind in kinds if vars(self).get(kind)]
        if found:
            raise Refused(f"a drafter with {', '.join(found)}: DDTREE takes no DFlash-2, Domino or LiLiCorr drafter")

    def _first_rank(self) -> bool:
        return bool(get_parallel().tp_rank == 0)

    def _defer_target_verify_gather(self) -> None:
        """Every rank needs the logits of every entry, so their gather is left where the target's pass has it."""
        return

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            return super(TreeWorker, self).forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors
            )
        self._check_batch(batch)
        return self._round(batch, on_publish)

    def _plan(self, batch: Any, slots: Tensor) -> Any:
        """SGLang's plan of a pass that writes ``slots``, ``[R, width]``, and reads as far."""
        known = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else batch.spec_info.nxt_kv_lens_cpu
        return self.model_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=known,
            write_virtual=slots.view(-1),
            read_extent=slots.shape[1],
        )

    def _block_batch(self, batch: Any, rows: int, lens: Lengths, **more: Any) -> ForwardBatch:
        tokens = rows * self.sizes.block
        padded = (
            torch.full((), tokens, dtype=torch.int32, device=self.device) if enable_num_token_non_padded() else None
        )
        return super()._block_batch(
            batch,
            rows,
            lens,
            num_token_non_padded=padded,
            global_num_token_non_padded_cpu=tokens,
            can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
            **more,
        )

    def _drafting(self, batch: Any, rows: int, forward_batch: ForwardBatch) -> AbstractContextManager[Any]:
        assert self.tables is not None
        self._draft_plan = self._plan(batch, self.tables.draft_rows(rows).slots)
        self._draft_plan.bind(forward_batch, self.draft_model_runner.kv_index_translator)
        context: AbstractContextManager[Any] = draft_tp_context(self.draft_parallel_layout)
        return context

    def _embed(self, block_ids: Tensor) -> Tensor:
        if self._full_embed_gpu is not None:
            found: Tensor = torch.nn.functional.embedding(block_ids, self._full_embed_gpu)
        else:
            found = _resolve_dflash_embedding_module(self.draft_model, self.model_runner.model)(block_ids)
        return found if self._noise_embed_scale == 1.0 else found * self._noise_embed_scale

    def _planned(self, batch: Any, slots: Tensor) -> dict[str, Any]:
        return {"kv_loc_plan": self._plan(batch, slots)}

    def _draft_places(self, rows: int) -> Tensor:
        places: Tensor = self._draft_write_ids(self._draft_plan)
        return places
