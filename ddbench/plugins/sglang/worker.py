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

from ddbench.errors import ConfigError
from ddbench.plugins.sglang import hooks
from ddbench.plugins.sglang.draft_input import DDTreeDraftInput
from ddbench.plugins.sglang.edge import Edge
from ddbench.plugins.sglang.gate import check_engine
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk
from ddbench.plugins.sglang.masks import captured_sizes
from ddbench.plugins.sglang.offers import Offers, Sightings
from ddbench.plugins.sglang.options import POLICY, RECORD, TRACE, Sizes, caps_at_start
from ddbench.plugins.sglang.pilot import Costs, Pilot, Plan
from ddbench.plugins.sglang.recorder import Recorder
from ddbench.plugins.sglang.recurrent import States, attending, attention_pool, is_recurrent
from ddbench.plugins.sglang.refusals import check_target
from ddbench.plugins.sglang.refused import Refused, say
from ddbench.plugins.sglang.sampler import TreeSampler
from ddbench.plugins.sglang.setup import check_adaptive, setup_of
from ddbench.plugins.sglang.stages import Stage, capture
from ddbench.plugins.sglang.tables import Lengths, Tables
from ddbench.plugins.sglang.trace import Trace
from ddbench.plugins.sglang.verify_attention import VerifyAttention, install


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
        self.tables: Tables | None = None
        self.sampler: TreeSampler | None = None
        self.walks: tuple[Walk, ...] = ()
        self.kv_table: Any = None
        self.ops: Any = None
        self.attention: VerifyAttention | None = None  # ours of the verify pass; None: SGLang's
        self._turn = 0
        self._seen_first = False
        self._trace = Trace.to(os.environ.get(TRACE))
        self.recorder: Recorder | None = None
        self.stages: dict[int, Stage] = {}  # by verify width
        self.pilot: Pilot | None = None
        self._stage: Any = None  # of the round that is launched
        self.states: States | None = None  # of a target with recurrent layers

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
        check_target(self.model_runner, self.sizes)
        hooks.edge = Edge(int(self.model_runner.model_config.context_len), self.sizes.window)
        backend = attending(self.model_runner.attn_backend)
        self.attention = install(
            backend, self._most_rows(), self.sizes.verify_width, self.model_runner.dtype, self.device
        )
        with self.drafter_settings():
            super().init_attention_backends()

    def init_cuda_graphs(self) -> None:
        """Makes the round's buffers, and captures the drafter's graph with the trees as its tail."""
        from ddbench.plugins.sglang.kernels import ops

        self.ops = ops
        rows = self._most_rows()
        self.trees = Trees(rows, self.sizes.verify_width, self.sizes.block, self.device)
        self.trees.limit(self.caps)
        self.tables = Tables(rows, self.sizes, self.device)
        self.walks = tuple(Walk(rows, self.sizes.block, self.device) for _ in range(2))
        if is_recurrent(self.model_runner):
            self.states = States(self.target_worker, rows, self.sizes, self.device)
        head = getattr(self.model_runner.model, "lm_head", None)
        self.recorder = Recorder.of(None, rows, self.sizes, self.device)
        self.sampler = TreeSampler(ops, self.trees, self.sizes, head, get_tp_group(), self.recorder)
        self._stage = Stage(self.sizes.verify_width, self.trees, self.tables.slots, self.tables.positions)
        self.stages = {self._stage.width: self._stage}
        self._set_up_pilot(rows)
        with self.drafter_settings():
            super().init_cuda_graphs()
        capture(self.model_runner, [stage for stage in self.stages.values() if stage is not self._stage])
        if self._first_rank():
            say(self.registered())
            if self.states is not None:
                say(self.states.line())

    def _set_up_pilot(self, rows: int) -> None:
        """An adaptive width, where the environment asks for one. Raises ConfigError or Refused."""
        plan = Plan.of(self.sizes)
        if plan is None:
            return
        check_adaptive(self)
        assert self.sampler is not None
        for width in plan.widths[:-1]:
            self.stages[width] = Stage.narrow(width, rows, self.sizes.block, self.device)
        offers = Offers(self.ops, rows, self.sizes, plan.candidates.trees, self.device)
        self.sampler.offers = offers
        sightings = Sightings(offers, self.sizes.block)
        self.pilot = Pilot(plan, sightings, self._costs(plan), self.sizes.block - 1)

    def _costs(self, plan: Plan) -> Costs:
        """Raises ConfigError for costs of another setup."""
        captured = captured_sizes(self.model_runner.decode_cuda_graph_runner)
        return Costs.of(plan, setup_of(self.model_runner), max(captured, default=1))

    def steer(self, width: int | None, policy: int | None) -> None:
        """Pins the verify width (0: no more), or starts the policy anew (1) with the costs read again. Raises
        ConfigError."""
        if self.pilot is None:
            raise ConfigError("ddtree_verify", width, f"none: the server was started without {POLICY}")
        if policy:
            self.pilot.restart(self._costs(self.pilot.plan))
        if width is not None:
            self.pilot.pin(width)
        say(f"the verify width is now {self.pilot.describe()}")

    def registered(self) -> str:
        """What the log says of a server that is ready."""
        assert self.trees is not None
        sizes, backend = self.sizes, type(attending(self.model_runner.attn_backend)).__name__
        graphs = sorted(size for size, masked in hooks.captured.items() if masked)
        return (
            f"DDTREE plugin registered: N={sizes.verify_width} B={sizes.block} K={sizes.top_k} backend={backend} "
            f"attention={self._attention()} mask=on graphs={graphs or 'off'} "
            f"draft_graphs={self._draft_graphs() or 'off'} rows={self.trees.rows} {self.caps}"
            f"{'' if self.pilot is None else f' adaptive={self.pilot.describe()}'}"
            f"{'' if self.recorder is None else f' RECORDING into {self.recorder.folder}'}"
        )

    def _attention(self) -> str:
        """Whose attention passes with a mask run, as the last one did."""
        return "sglang" if self.attention is None else self.attention.ran or "own, not yet run"

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

    def record(self, mode: int) -> None:
        """What is recorded of the rounds that follow. Raises ConfigError."""
        if self.recorder is None:
            raise ConfigError("ddtree_record", mode, f"none: the server was started without {RECORD}")
        self.recorder.set(mode)
        say(f"recording is now {mode}")

    def _next_stage(self, rows: int, lens: Lengths) -> Stage:
        """The verify pass of the round that is launched now."""
        if self.pilot is None:
            return self.stages[self.sizes.verify_width]
        return self.stages[self.pilot.next(rows, lens.mean)]

    def _look(self, rows: int, lens: Lengths, walk: Walk) -> None:
        """Lets the policy see the round that was just walked, when it has arrived."""
        if self.pilot is not None and self._stage.drafts:
            self.pilot.sightings.add(rows, self._stage.width, lens.mean, walk)

    def _record(self, batch: Any, walk: Walk) -> None:
        """Writes the round that was just walked, where that is asked for; one rank speaks for all."""
        if self.recorder is not None and self._first_rank():
            assert self.trees is not None
            self.recorder.write([str(request.rid) for request in batch.reqs], batch.seq_lens, self.trees, walk)

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
            "attention": self._attention(),
            "most_tokens": None if hooks.edge is None else hooks.edge.most,
            "adaptive": None if self.pilot is None else self.pilot.describe(),
            "recording": None if self.recorder is None else self.recorder.mode,
            "recurrent": None if self.states is None else self.states.describe(),
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
            pool = attention_pool(self.model_runner.token_to_kv_pool)
            self.kv_table = self.ops.kv_table([*pool.k_buffer, *pool.v_buffer])
        return self.kv_table

    def _check_first(self, verified: Any, in_graph: bool) -> None:
        """In the first round: the pass took our mask and links, and its graph was captured with a mask."""
        if self._seen_first:
            return
        self._seen_first = True
        if verified.spec_info is None or verified.spec_info.custom_mask is None:
            raise Refused("the first verify pass has no tree mask")
        if in_graph and not (hooks.captured and all(hooks.captured.values())):
            raise Refused(f"the first verify pass runs in a graph without the tree mask: {hooks.captured}")
        if self.states is not None:
            assert self.trees is not None
            self.states.check_links(self.trees, int(verified.batch_size))
        if self._first_rank():
            linked = "" if self.states is None else f", links {'on' if self.states.by_links else 'none, a chain'}"
            graph, width = "on" if in_graph else "off", self._stage.width
            say(f"first verify: width {width}, mask on{linked}, attention {self._attention()}, graph {graph}")

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
