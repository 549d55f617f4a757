"""A round of DDTREE on SGLang 0.5.17."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

from ddbench.plugins.sglang.choose import choose
from ddbench.plugins.sglang.compat import simulated_length
from ddbench.plugins.sglang.kernels.buffers import Walk
from ddbench.plugins.sglang.masks import place_for
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.tables import Lengths
from ddbench.plugins.sglang.verify_input import verify_input
from ddbench.plugins.sglang.worker import TreeWorker


class DDTreeWorker(TreeWorker):
    """Draft a block, build and verify a tree of it, keep the path that the target follows."""

    def __init__(self, server_args: Any, gpu_id: int, ps: Any, nccl_port: int, target_worker: Any) -> None:
        self._set_up(Sizes.of(server_args))
        drafter = deepcopy(server_args)
        drafter.override("ddbench.drafter", speculative_num_draft_tokens=self.sizes.block, speculative_eagle_topk=1)
        vars(drafter).pop("max_speculative_num_draft_tokens", None)  # cached from before
        super().__init__(drafter, gpu_id, ps, nccl_port, target_worker)

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None) -> Any:
        """SGLang's entry: prefill and idle batches are a DFlash server's, a batch that decodes is a round."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            return super().forward_batch_generation(batch, on_publish, grammar_barrier)
        self._check_batch(batch)
        return self._round(batch, on_publish)

    def _round(self, batch: Any, on_publish: Any) -> Any:
        assert self.trees is not None
        assert self.tables is not None
        sizes, tables, ops = self.sizes, self.tables, self.ops
        rows, seq_lens = len(batch.seq_lens), batch.seq_lens
        seq_lens.record_stream(torch.cuda.current_stream())
        draft_input = batch.spec_info
        lens = tables.bound(batch, draft_input, sizes.block)
        stage = self._stage = self._next_stage(rows, lens)
        block, slots = tables.draft_rows(rows), stage.rows(rows).slots
        ops.prepare(
            draft_input.bonus_tokens,
            seq_lens,
            batch.req_pool_indices,
            self.model_runner.req_to_token_pool.req_to_token,
            int(self._mask_token_id),
            block.ids,
            block.chain,
            block.slots,
            slots,
        )
        if stage.drafts:
            self._draft(batch, rows, lens)
        trees = stage.take(self.trees, rows, draft_input.bonus_tokens)
        logits_output, in_graph = self._verify(batch, rows, lens)
        sampling = batch.sampling_info
        if sampling is not None:
            apply_dflash_verify_logits_adjustments(
                next_token_logits=logits_output.next_token_logits,
                sampling_info=sampling,
                draft_token_num=stage.width,
            )
        walk = self._next_walk()
        ops.walk(trees, self._choices(logits_output.next_token_logits, sampling), seq_lens, walk, self._forced(rows))
        ops.move_kv(walk, slots, self._table())
        if self.states is not None:
            self.states.commit(batch, walk, rows)
        if self._trace is not None:
            self._trace.write(batch, trees, walk, in_graph)
        self._record(batch, walk)
        self._look(rows, lens, walk)
        new_seq_lens = walk.new_seq_lens[:rows]
        if on_publish is not None:
            on_publish(new_seq_lens)
        self._extend_drafter_cache(walk, rows, logits_output.hidden_states)
        logits_output.hidden_states = None
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=walk.out_tokens[:rows].reshape(-1),
            accept_lens=walk.commit_lens[:rows],
            can_run_cuda_graph=in_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=walk.bonus[:rows], new_seq_lens=new_seq_lens
            ),
            speculative_num_draft_tokens=sizes.block,  # of the result's rows, whatever was verified
            new_seq_lens=new_seq_lens,
        )

    def _choices(self, logits: Tensor, sampling: Any) -> Tensor:
        """The target's token after every entry, ``[R, N]``: in every version's round, and nowhere else."""
        return self._agreed(choose(logits, sampling, self._stage.width), sampling)

    def _draft(self, batch: Any, rows: int, lens: Lengths) -> None:
        """The drafter's pass over its blocks, and the trees of it: in its graph, or after it where it has none."""
        assert self.tables is not None
        assert self.sampler is not None
        forward_batch = self._block_batch(batch, rows, lens)
        with self._drafting(batch, rows, forward_batch), torch.inference_mode():
            drafted = self.draft_model_runner.forward(forward_batch)
            if not (drafted.can_run_graph and self._draft_sampler is not None):
                self.sampler(drafted.logits_output.hidden_states, self.tables.draft_rows(rows).flat_ids)

    def _block_batch(self, batch: Any, rows: int, lens: Lengths, **more: Any) -> ForwardBatch:
        """The drafter's pass as SGLang is told of it; ``more``: what a version adds."""
        assert self.tables is not None
        block = self.tables.draft_rows(rows)
        embeds = self._embed(block.ids)
        return ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=rows,
            input_ids=block.flat_ids,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=block.flat_slots,
            seq_lens_sum=lens.total,
            seq_lens_cpu=lens.each,
            positions=block.flat_chain,
            input_embeds=embeds.view(-1, embeds.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            **more,
        )

    def _drafting(self, batch: Any, rows: int, forward_batch: ForwardBatch) -> AbstractContextManager[Any]:
        """What is open around the drafter's pass."""
        return nullcontext()

    def _embed(self, block_ids: Tensor) -> Tensor:
        found: Tensor = self.model_runner.model.get_input_embeddings()(block_ids)
        return found

    def _planned(self, batch: Any, slots: Tensor) -> dict[str, Any]:
        """What a version's verify input says beside of a pass that writes ``slots``, ``[R, N]``."""
        return {}

    def _draft_places(self, rows: int) -> Tensor:
        """Cache places of the drafter's blocks, ``[R * B]``."""
        assert self.tables is not None
        return self.tables.draft_rows(rows).flat_slots

    def _verify(self, batch: Any, rows: int, lens: Lengths) -> tuple[Any, bool]:
        """The target's pass over the trees: its output, and whether a graph ran."""
        sizes, stage = self.sizes, self._stage
        window = stage.rows(rows)
        place = place_for(self.model_runner, rows, stage.width, lens.total, window.slots.device)
        place.write(self.ops, stage.trees, batch.seq_lens, window.positions)
        told = verify_input(
            stage.width,
            sizes.top_k,
            place.mask,
            in_place=place.in_place,
            draft_token=window.flat_tokens,
            positions=window.flat_positions,
            retrieve_next_token=window.first_child,
            retrieve_next_sibling=window.next_sibling,
            max_tree_depth=sizes.block,
            **self._planned(batch, window.slots),
        )
        batch.out_cache_loc = window.flat_slots
        lens_cpu, lens_sum = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = lens.each.clone(), lens.total
        with stage.bound(self.model_runner):
            forward_batch, _ = told.prepare_for_verify(batch, self.target_worker)
            batch.seq_lens_cpu, batch.seq_lens_sum = lens_cpu, lens_sum
            out = self.target_worker.forward_batch_generation(
                batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
            )
        in_graph = bool(out.can_run_cuda_graph)
        place.check(in_graph)
        self._check_first(forward_batch, in_graph)
        return out.logits_output, in_graph

    def _forced(self, rows: int) -> Tensor | None:
        """A length of path that holds whatever the target says: of the root alone while a text is recorded, or what
        SGLANG_SIMULATE_ACC_LEN asks for, for synthetic timing."""
        if self.recorder is not None:
            return self.recorder.forced(rows)
        length = simulated_length(self.sizes.block)
        if length is None:
            return None
        return torch.full((rows,), length, dtype=torch.int32, device=self.device)

    def _extend_drafter_cache(self, walk: Walk, rows: int, hidden: Tensor | None) -> None:
        """Target features of the accepted path into the drafter's cache, at the path's new places.

        A step without the drafter verified its roots alone: their features are all there is, and nothing is projected
        for the rest of a block.
        """
        assert self.tables is not None
        if hidden is None:
            raise RuntimeError("ddbench: the verify pass returned no hidden states")
        block = self.sizes.block
        places, positions = self._draft_places(rows).view(rows, block), self.tables.draft_rows(rows).chain
        if self._stage.drafts:
            gathered = torch.empty((rows * block, hidden.shape[-1]), dtype=hidden.dtype, device=hidden.device)
            self.ops.gather_rows(walk, hidden, gathered)
        else:
            gathered, places, positions = hidden, places[:, :1], positions[:, :1]
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=gathered,
            cache_loc=places.reshape(-1),
            cache_loc_2d=places,
            positions=positions.reshape(-1),
            commit_lens=walk.commit_lens[:rows],
        )
