"""A round of DDTREE on SGLang 0.5.23, where it differs from 0.5.17: run on a CPU with made-up models, on no GPU."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.dflash_worker_v2 import _resolve_dflash_embedding_module
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import draft_tp_context
from torch import Tensor

from ddbench.plugins.sglang import worker_0517
from ddbench.plugins.sglang.kernels.buffers import Walk
from ddbench.plugins.sglang.masks import place_for
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.refused import Refused
from ddbench.plugins.sglang.verify_input import verify_input
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

    def _draft(self, batch: Any, rows: int, host_lens: Tensor) -> None:
        assert self.windows is not None
        assert self.sampler is not None
        block_ids, slots = self.windows.block_ids[:rows], self.windows.draft_slots[:rows]
        tokens = rows * self.sizes.block
        embeds = self._embed(block_ids)
        self._draft_plan = self._plan(batch, slots)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=rows,
            input_ids=block_ids.view(-1),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=slots.view(-1),
            seq_lens_sum=int(host_lens.sum()),
            seq_lens_cpu=host_lens,
            positions=self.windows.chain[:rows].view(-1),
            input_embeds=embeds.view(-1, embeds.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            num_token_non_padded=(
                torch.full((), tokens, dtype=torch.int32, device=self.device) if enable_num_token_non_padded() else None
            ),
            global_num_token_non_padded_cpu=tokens,
            can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
        )
        self._draft_plan.bind(forward_batch, self.draft_model_runner.kv_index_translator)
        with torch.inference_mode(), draft_tp_context(self.draft_parallel_layout):
            drafted = self.draft_model_runner.forward(forward_batch)
            if not (drafted.can_run_graph and self._draft_sampler is not None):
                self.sampler(drafted.logits_output.hidden_states, block_ids.view(-1))

    def _embed(self, block_ids: Tensor) -> Tensor:
        if self._full_embed_gpu is not None:
            found: Tensor = torch.nn.functional.embedding(block_ids, self._full_embed_gpu)
        else:
            found = _resolve_dflash_embedding_module(self.draft_model, self.model_runner.model)(block_ids)
        return found if self._noise_embed_scale == 1.0 else found * self._noise_embed_scale

    def _verify(self, batch: Any, rows: int, host_lens: Tensor) -> tuple[Any, bool]:
        assert self.trees is not None
        assert self.windows is not None
        sizes, trees, windows = self.sizes, self.trees, self.windows
        positions, slots = windows.positions[:rows], windows.slots[:rows]
        place = place_for(self.model_runner, rows, sizes.verify_width, int(host_lens.sum()), positions.device)
        place.write(self.ops, trees, batch.seq_lens, positions)
        told = verify_input(
            sizes.verify_width,
            sizes.top_k,
            place.mask,
            in_place=place.in_place,
            draft_token=trees.tokens[:rows].view(-1),
            positions=positions.view(-1),
            retrieve_next_token=trees.first_child[:rows],
            retrieve_next_sibling=trees.next_sibling[:rows],
            max_tree_depth=sizes.block,
            kv_loc_plan=self._plan(batch, slots),
        )
        batch.out_cache_loc = slots.view(-1)
        lens_cpu, lens_sum = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lens.clone(), int(host_lens.sum())
        forward_batch, _ = told.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = lens_cpu, lens_sum
        out = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )
        in_graph = bool(out.can_run_cuda_graph)
        place.check(in_graph)
        self._check_first(forward_batch, in_graph)
        return out.logits_output, in_graph

    def _extend_drafter_cache(self, walk: Walk, rows: int, hidden: Tensor | None) -> None:
        assert self.windows is not None
        if hidden is None:
            raise RuntimeError("ddbench: the verify pass returned no hidden states")
        gathered = torch.empty((rows * self.sizes.block, hidden.shape[-1]), dtype=hidden.dtype, device=hidden.device)
        self.ops.gather_rows(walk, hidden, gathered)
        places = self._draft_write_ids(self._draft_plan)
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=gathered,
            cache_loc=places,
            cache_loc_2d=places.view(rows, self.sizes.block),
            positions=self.windows.chain[:rows].view(-1),
            commit_lens=walk.commit_lens[:rows],
        )
