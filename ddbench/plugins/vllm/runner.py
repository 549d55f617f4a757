"""A round of DDTree inside vLLM's V1 model runner: where the tree meets positions, sampling, the cache and the drafter.

The engine goes on believing that a chain was drafted: tokens are scheduled, counted and given slots one after another.
Only the target's pass sees the tree (its positions, its mask), and once the walk is done, the accepted path's keys,
values and features are moved to where a chain's would be. From then on the round is a chain round with j accepted
tokens, and scheduler, prefix cache and metrics need no change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput

from ddbench.plugins.vllm.choose import choose
from ddbench.plugins.vllm.context import TreeContext, activate
from ddbench.plugins.vllm.proposer import DDTreeProposer
from ddbench.plugins.vllm.refusals import check_caches
from ddbench.plugins.vllm.warm import warm_up

MISSING = -1
SPLIT_TOKENS = 2048  # tokens times splits: what two programs on each of 188 multiprocessors can leave, and more


class DDTreeRunner:
    """Mixed in before vLLM's model runner class (see `worker`)."""

    drafter: DDTreeProposer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        slots, pinned = self.drafter.state.slots, self.device.type == "cuda"  # type: ignore[attr-defined]
        self._host = torch.full((3, slots), MISSING, dtype=torch.int32, pin_memory=pinned)  # `TreeState.of_rows`
        self._rows = 0
        self._walked = False
        self._caches: list[tuple[int, Any]] | None = None
        self.context = TreeContext(self.drafter.state, workspace=self._workspace())
        activate(self.context)

    def _workspace(self) -> Any:
        """Room for what the splits of the tree's attention leave to be merged; made before the KV cache is sized."""
        if self.device.type != "cuda":  # type: ignore[attr-defined]
            return None
        from ddbench.plugins.kernels.tiles import AttentionWorkspace

        model, parallel = self.model_config, self.parallel_config  # type: ignore[attr-defined]
        heads, size = model.get_num_attention_heads(parallel), model.get_head_size()
        return AttentionWorkspace.of(SPLIT_TOKENS, heads, size, 1, self.device)  # type: ignore[attr-defined]

    # --- before the target's pass -------------------------------------------------------------------------------------

    def _prepare_inputs(self, scheduler_output: Any, num_scheduled_tokens: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens, *args, **kwargs)  # type: ignore[misc]
        self._place_trees(scheduler_output, num_scheduled_tokens)
        return prepared

    def _place_trees(self, scheduler_output: Any, scheduled: Any) -> None:
        """Which slot's tree each row verifies, how many of its nodes were let through, and where its next one goes.

        One copy to the device. The pinned source may be written again at the next step: vLLM waits for the copies of
        the last step before it prepares inputs.
        """
        batch, drafter = self.input_batch, self.drafter  # type: ignore[attr-defined]
        self._rows, self._walked = batch.num_reqs, False
        requests = batch.req_ids[: self._rows]
        drafter.slots.drop(scheduler_output.finished_req_ids)
        held = drafter.slots.take(requests)
        drafted = scheduler_output.scheduled_spec_decode_tokens
        slots, drafts, following = self._host.numpy()
        slots.fill(MISSING)
        drafts.fill(0)
        following.fill(MISSING)
        following[: self._rows] = drafter.slots.give(requests)
        for row, request in enumerate(requests):
            count = len(drafted.get(request, ()))
            drafts[row] = count
            if 0 < count <= drafter.state.nodes and int(scheduled[row]) == count + 1:
                slots[row] = held.get(request, MISSING)
        trees = int(np.count_nonzero(slots[: self._rows] >= 0))
        self.context.rows = "none" if trees == 0 else "all" if trees == self._rows else "some"
        drafter.state.of_rows.copy_(self._host, non_blocking=True)

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The target's pass, at the tree's positions, in the buffer that a CUDA graph reads; the walk restores them."""
        if self.context.rows != "none":
            positions, tokens = self.positions, self.input_ids.gpu  # type: ignore[attr-defined]
            state = self.drafter.state
            self.drafter.tree_ops.apply_trees(state, self._rows, self._bounds(), positions, tokens)
        return super()._model_forward(*args, **kwargs)  # type: ignore[misc]

    def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
        """Warm-up and capture: a uniform decode batch is what is verified, so its graph takes the tree's attention."""
        self.context.rows = "all" if kwargs.get("uniform_decode") else "none"
        self.drafter.state.row_slot.fill_(MISSING)
        try:
            return super()._dummy_run(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.context.rows = "none"

    def _bounds(self) -> Tensor:
        bounds: Tensor = self.query_start_loc.gpu[: self._rows + 1]  # type: ignore[attr-defined]
        return bounds

    # --- after it -----------------------------------------------------------------------------------------------------

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        """The walk in place of the rejection sampler: accepted tokens and the bonus token of every row, then -1."""
        if spec_decode_metadata is None:
            return super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]
        batch = self.input_batch  # type: ignore[attr-defined]
        batch.update_async_output_token_ids()
        choices = choose(logits, batch.sampling_metadata, spec_decode_metadata.num_draft_tokens)
        emitted = torch.empty(
            self._rows, spec_decode_metadata.max_spec_len + 1, dtype=torch.int32, device=logits.device
        )
        ops, state, bounds = self.drafter.tree_ops, self.drafter.state, self._bounds()
        ends = spec_decode_metadata.cu_num_sampled_tokens
        if self.context.rows == "none":
            ops.walk(state, self._rows, choices, ends, emitted)
        else:
            ops.walk(state, self._rows, choices, ends, emitted, bounds, self.positions)  # type: ignore[attr-defined]
            self._walked = True
            for group, caches in self._tree_caches():
                mapping = batch.block_table[group].slot_mapping.gpu
                ops.move_kv(state, self._rows, bounds, mapping, caches)
        if self.drafter.options.trace is not None:
            self._trace(Path(self.drafter.options.trace))
        return SamplerOutput(sampled_token_ids=emitted, logprobs_tensors=None)

    def gather_accepted(self, hidden: Tensor) -> None:
        """The target's features of the accepted path to the front of each row's window, for the drafter's context."""
        if self._walked:
            self.drafter.tree_ops.gather_rows(self.drafter.state, self._rows, self._bounds(), hidden)

    def _tree_caches(self) -> list[tuple[int, Any]]:
        """The target's KV caches with their cache group; the drafter's are left out: it writes its own."""
        if self._caches is None:
            layers = self.compilation_config.static_forward_context  # type: ignore[attr-defined]
            drafts = self.context.draft_layers
            self._caches = []
            for group, spec in enumerate(self.kv_cache_config.kv_cache_groups):  # type: ignore[attr-defined]
                caches = [layers[name].kv_cache for name in spec.layer_names if name not in drafts]
                if caches:
                    self._caches.append((group, self.drafter.tree_ops.cache_table(caches)))
        return self._caches

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        self._caches = None
        super().initialize_kv_cache(*args, **kwargs)  # type: ignore[misc]
        self.context.draft_layers = frozenset(self.drafter._draft_attn_layer_names)
        check_caches(self.kv_cache_config, self.compilation_config, self.device.type)  # type: ignore[attr-defined]

    def capture_model(self, *args: Any, **kwargs: Any) -> Any:
        """Before graphs are captured, and on a GPU alone: the kernels that no graph holds are compiled."""
        drafter, model = self.drafter, self.model_config  # type: ignore[attr-defined]
        warm_up(
            drafter.tree_ops,
            drafter.state,
            drafter.options,
            model.get_vocab_size(),
            model.get_hidden_size(),
            model.dtype,
            [caches for _, caches in self._tree_caches()],
        )
        return super().capture_model(*args, **kwargs)  # type: ignore[misc]

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        if common_attn_metadata is None:
            return False
        needed = common_attn_metadata.max_seq_len + self.drafter.options.lookahead
        return bool(needed <= self.effective_drafter_max_model_len)  # type: ignore[attr-defined]

    def _trace(self, path: Path) -> None:
        """Appends what each row did: its request, the nodes verified, and the path taken."""
        state = self.drafter.state
        slots, drafts = state.row_slot.tolist(), state.row_drafts.tolist()
        with path.open("a", encoding="utf-8") as stream:
            for row, request in enumerate(self.input_batch.req_ids[: self._rows]):  # type: ignore[attr-defined]
                if slots[row] >= 0:
                    taken = [local for local in state.path[row].tolist() if local >= 0]
                    stream.write(json.dumps({"request": request, "nodes": drafts[row], "path": taken}) + "\n")
