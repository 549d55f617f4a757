"""The DFlash drafter as a tree drafter: it drafts its own block, and the best tree of that block is verified."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.spec_decode.dflash import DFlashProposer

from ddbench.plugins.vllm.ops import operations
from ddbench.plugins.vllm.server_options import options_of
from ddbench.plugins.vllm.state import Slots, TreeState


class DDTreeProposer(DFlashProposer):  # type: ignore[misc]
    """vLLM calls its budget num_speculative_tokens; the drafter's block is the checkpoint's, whatever the budget is."""

    max_query_tokens: int
    max_positions: int
    arange: Tensor
    input_ids: Tensor

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        super().__init__(vllm_config, device, runner)
        self.tree_runner = runner
        self.options = options_of(vllm_config)
        self.tree_ops = operations(device)
        self.state = TreeState(self.max_batch_size, self.options.nodes, device)
        self.slots = Slots(self.max_batch_size)
        self.num_speculative_tokens = self.options.block - 1
        self._top: tuple[Tensor, Tensor] | None = None
        self._room_for(self.max_batch_size * self.options.block)

    def _room_for(self, queries: int) -> None:
        """Buffers that vLLM sized by the budget, for a block that is larger than it."""
        self.max_query_tokens = max(self.max_query_tokens, queries)
        for name in ("positions", "_slot_mapping_buffer"):
            buffer = getattr(self, name)
            if buffer.numel() < queries:
                setattr(self, name, buffer.new_zeros(queries))
        if self.arange.numel() < self.max_num_tokens + queries + 1:
            self.max_positions = self.max_num_tokens + queries
            self.arange = torch.arange(self.max_positions + 1, device=self.device, dtype=self.arange.dtype)
        if self.input_ids.numel() < queries:
            self.input_ids = self.input_ids.new_zeros(queries)

    def _sample_draft_tokens(self, hidden_states: Tensor, sampling_metadata: Any) -> tuple[Tensor, None]:
        logits = self.model.compute_logits(hidden_states)
        self._top = self.tree_ops.candidates(logits, self.options.candidates)
        return self._top[1][:, 0], None

    def propose(self, num_speculative_tokens: int, **kwargs: Any) -> Tensor:
        """Drafts a block for every row and builds its tree: the tokens of the nodes, int32 ``[batch, nodes]``."""
        runner = self.tree_runner
        runner.gather_accepted(kwargs["target_hidden_states"])
        super().propose(self.options.block - 1, **kwargs)
        assert self._top is not None
        log_probs, ids = (part.view(-1, self.options.block - 1, part.shape[-1]) for part in self._top)
        self._top = None
        batch = log_probs.shape[0]
        self.slots.written(runner.input_batch.req_ids[:batch])
        drafted: Tensor = self.tree_ops.write_trees(
            self.state, self.options, log_probs, ids, self.state.row_next[:batch]
        )
        return drafted
