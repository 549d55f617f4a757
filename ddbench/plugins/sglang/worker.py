"""SGLang's DFlash worker with trees: the parts of it that are the same in every version that the plug-in knows.

Inherited as they are: prefill, the drafter's construction, the write of target features into the drafter's cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from torch import Tensor

from ddbench.plugins.sglang import hooks
from ddbench.plugins.sglang.draft_input import DDTreeDraftInput
from ddbench.plugins.sglang.edge import Edge
from ddbench.plugins.sglang.gate import check_engine
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk
from ddbench.plugins.sglang.masks import captured_sizes
from ddbench.plugins.sglang.options import TRACE, Sizes, caps_at_start
from ddbench.plugins.sglang.refusals import check_target
from ddbench.plugins.sglang.refused import Refused, say
from ddbench.plugins.sglang.sampler import TreeSampler
from ddbench.plugins.sglang.trace import Trace
from ddbench.plugins.sglang.window import Windows


class TreeWorker(DFlashWorkerV2):  # type: ignore[misc]
    """Sizes, buffers and limits of a DDTREE server. A version's own worker adds the round.

    The base class hands unknown attributes on to the target's worker, so every attribute here is set in ``__init__``.
    """

    def _set_up(self, sizes: Sizes) -> None:
        """Before the base class's ``__init__``."""
        check_engine()
        hooks.check_installed()
        self.sizes = sizes
        self.caps: Caps = caps_at_start(sizes)
        self.trees: Trees | None = None
        self.windows: Windows | None = None
        self.sampler: TreeSampler | None = None
        self.walks: tuple[Walk, ...] = ()
        self.kv_table: Any = None
        self.ops: Any = None
        self._turn = 0
        self._seen_first = False
        self._trace = Trace.to(os.environ.get(TRACE))

    @contextmanager
    def drafter_settings(self) -> Iterator[None]:
        """While it is open, SGLang's settings are those of the drafter's own pass: a block, and no tree."""
        with get_spec().override(
            speculative_num_draft_tokens=self.sizes.block, speculative_eagle_topk=1, speculative_num_steps=1
        ):
            yield

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        with self.drafter_settings():
            super().alloc_memory_pool(*args, **kwargs)

    def init_attention_backends(self) -> None:
        check_target(self.model_runner)
        hooks.edge = Edge(int(self.model_runner.model_config.context_len), self.sizes.window)
        with self.drafter_settings():
            super().init_attention_backends()

    def init_cuda_graphs(self) -> None:
        """Makes the round's buffers, and captures the drafter's graph with the trees as its tail."""
        from ddbench.plugins.sglang.kernels import ops

        self.ops = ops
        rows = self._most_rows()
        self.trees = Trees(rows, self.sizes.verify_width, self.sizes.block, self.device)
        self.trees.limit(self.caps)
        self.windows = Windows(rows, self.sizes, self.device)
        self.walks = tuple(Walk(rows, self.sizes.block, self.device) for _ in range(2))
        head = getattr(self.model_runner.model, "lm_head", None)
        self.sampler = TreeSampler(ops, self.trees, self.sizes, head, get_tp_group())
        with self.drafter_settings():
            super().init_cuda_graphs()
        if self._first_rank():
            say(self.registered())

    def registered(self) -> str:
        """What the log says of a server that is ready."""
        assert self.trees is not None
        sizes, backend = self.sizes, type(self.model_runner.attn_backend).__name__
        graphs = sorted(size for size, masked in hooks.captured.items() if masked)
        return (
            f"DDTREE plugin registered: N={sizes.verify_width} B={sizes.block} K={sizes.top_k} backend={backend} "
            f"mask=on graphs={graphs or 'off'} draft_graphs={self._draft_graphs() or 'off'} "
            f"rows={self.trees.rows} {self.caps}"
        )

    def _draft_graphs(self) -> list[int]:
        """Batch sizes for which the drafter has a graph. SGLang goes on without any where little memory is left."""
        return captured_sizes(self.draft_model_runner.decode_cuda_graph_runner)

    def _first_rank(self) -> bool:
        return bool(self.ps.tp_rank == 0)

    def _most_rows(self) -> int:
        """More than any batch has: the requests that the pool can hold, and the largest captured batch."""
        captured = get_exec().graph.cuda_graph_config.decode.bs or [0]
        return max(int(self.model_runner.req_to_token_pool.size), *(int(size) for size in captured), 1)

    def _maybe_build_draft_sampler(self) -> TreeSampler | None:
        """What the base class captures as the tail of the drafter's graph."""
        return self.sampler

    def limit_trees(self, caps: Caps) -> None:
        """Lets all rounds that are launched from now on keep to ``caps``, which were checked."""
        assert self.trees is not None
        torch.cuda.synchronize()
        self.trees.limit(caps)
        torch.cuda.synchronize()
        self.caps = caps
        say(f"limits are now {caps}")

    def describe(self) -> dict[str, Any]:
        """Sizes and limits of this server, for its state."""
        caps, sizes = self.caps, self.sizes
        return {
            "verify_width": sizes.verify_width,
            "block": sizes.block,
            "top_k": sizes.top_k,
            "nodes": caps.nodes,
            "width": caps.width,
            "depth": caps.depth,
            "min_log_prob": caps.min_log_prob,
            "force_spine": caps.force_spine,
            "graphs_with_mask": sorted(size for size, masked in hooks.captured.items() if masked),
            "draft_graphs": self._draft_graphs(),
            "most_tokens": None if hooks.edge is None else hooks.edge.most,
        }

    def _next_walk(self) -> Walk:
        """Results outlive one more round (its tokens are copied to the host meanwhile): two in turn."""
        self._turn = 1 - self._turn
        return self.walks[self._turn]

    def _agreed(self, choices: Tensor, sampling: Any) -> Tensor:
        """Draws of the first rank on every rank of a tensor-parallel group; greedy choices agree as they are."""
        group = get_tp_group()
        if group.world_size > 1 and sampling is not None and not sampling.is_all_greedy:
            group.broadcast(choices, src=0)
        return choices

    def _table(self) -> Any:
        """The target's keys and values, as `kernels.ops.move_kv` takes them; made when the pool has its final size."""
        if self.kv_table is None:
            pool = self.model_runner.token_to_kv_pool
            self.kv_table = self.ops.kv_table([*pool.k_buffer, *pool.v_buffer])
        return self.kv_table

    def _check_first(self, verified: Any, in_graph: bool) -> None:
        """In the first round: the pass took our mask, and its graph was captured with one."""
        if self._seen_first:
            return
        self._seen_first = True
        if verified.spec_info is None or verified.spec_info.custom_mask is None:
            raise Refused("the first verify pass has no tree mask")
        if in_graph and not (hooks.captured and all(hooks.captured.values())):
            raise Refused(f"the first verify pass runs in a graph without the tree mask: {hooks.captured}")
        if self._first_rank():
            say(f"first verify: width {self.sizes.verify_width}, mask on, graph {'on' if in_graph else 'off'}")

    def _check_batch(self, batch: Any) -> None:
        """Requests like these are refused when they come; one that came through would be answered wrongly."""
        if not isinstance(batch.spec_info, DFlashDraftInputV2):
            raise RuntimeError(f"ddbench: a batch that decodes carries {type(batch.spec_info).__name__}")
        if batch.return_logprob or batch.has_grammar:
            raise Refused("a batch with logprobs or a grammar reached the DDTREE worker")

    def _make_next_draft_input_prefill(self, *, bonus_tokens: Tensor, seq_lens: Tensor) -> DDTreeDraftInput:
        return DDTreeDraftInput.of(bonus_tokens, seq_lens)

    def _make_next_draft_input_decode(self, *, bonus_tokens: Tensor, new_seq_lens: Tensor) -> DDTreeDraftInput:
        return DDTreeDraftInput.of(bonus_tokens, new_seq_lens)
