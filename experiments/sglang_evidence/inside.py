"""What the evidence changes inside an engine: loaded by SGLang through its own entry points, in every process of it.

``DDBENCH_INSIDE`` names the changes, none by default. Each is for a proof, and none is part of the plug-in. Those of
the plug-in's worker are made when SGLang asks the plug-in for it, in the scheduler's process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

VARIABLE = "DDBENCH_INSIDE"
DUMP = "DDBENCH_DUMP"  # file that `random_tree` and `stages` write
SHARPER = 0.8  # what `wrong_rule` divides logits by
TREES = 4  # rounds whose trees `random_tree` replaces and records
ROUNDS = 400  # rounds that `stages` times


def install() -> None:
    """Entry point in ``sglang.srt.plugins``."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        (CHANGES | _hybrid())[name]()


def _hybrid() -> dict[str, Callable[[], Any]]:
    """Those of hybrid targets."""
    from experiments.sglang_evidence.hybrid_inside import CHANGES as FOUND

    return FOUND


def float32() -> None:
    """PyTorch's own operators in the place of fused ones, some of which are built for 16-bit numbers alone."""
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
    from sglang.srt.models import utils

    for kind in (SiluAndMul, RMSNorm, RotaryEmbedding):
        kind.dispatch_forward = lambda self: self.forward_native
    utils.can_use_fused_inplace_qknorm = lambda *_: False
    _keep_embeddings()


def _keep_embeddings() -> None:
    """SGLang casts given embeddings, which a DFlash drafter's pass is fed with, to bfloat16 outside of graphs."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    stock = ModelRunner._extend_forward_kwargs

    def uncast(self: Any, forward_batch: Any, pp_proxy_tensors: Any) -> Any:
        found = stock(self, forward_batch, pp_proxy_tensors)
        if forward_batch.input_embeds is not None:
            found["input_embeds"] = forward_batch.input_embeds
        return found

    ModelRunner._extend_forward_kwargs = uncast


def poison() -> None:
    """NaN in every cache slot of a verify window that was not accepted, target's and drafter's, after every round."""

    def around(worker: Any) -> None:
        stock = worker._round

        def poisoned(self: Any, batch: Any, on_publish: Any) -> Any:
            found = stock(self, batch, on_publish)
            _fill_rejected(self, len(batch.seq_lens))
            return found

        worker._round = poisoned

    _on_worker(around)


def _fill_rejected(worker: Any, rows: int) -> None:
    import torch

    taken = worker.walks[worker._turn].commit_lens[:rows, None]
    for slots, runner in (
        (worker.windows.slots[:rows], worker.model_runner),
        (worker.windows.draft_slots[:rows], worker.draft_model_runner),
    ):
        places = torch.arange(slots.shape[1], device=slots.device)
        rejected = torch.where(places[None] >= taken, slots, 0).view(-1)  # slot 0 is the engine's padding
        pool = runner.token_to_kv_pool
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            keep = buffer[0].clone()
            buffer[rejected] = float("nan")
            buffer[0] = keep


def wrong_rule() -> None:
    """A law that is not the target's: its distribution is sharpened before every draw."""

    def around(worker: Any) -> None:
        stock = worker._choices
        worker._choices = lambda self, logits, sampling: stock(self, logits / SHARPER, sampling)

    _on_worker(around)


def random_tree() -> None:
    """Replaces the first trees by random ones and records prefix, tree and the target's logits of row 0 in ``DUMP``.

    For an engine without overlap, whose requests know their last token.
    """

    def around(worker: Any) -> None:
        stock = worker._verify
        found: list[dict[str, Any]] = []

        def recorded(self: Any, batch: Any, rows: int, host_lens: Any) -> Any:
            if len(found) >= TREES:
                return stock(self, batch, rows, host_lens)
            _plant(self, rows, seed=len(found))
            output, in_graph = stock(self, batch, rows, host_lens)
            found.append(_record(self, batch, output, in_graph))
            if len(found) == TREES:
                _write(found)
            return output, in_graph

        worker._verify = recorded

    _on_worker(around)


def _plant(worker: Any, rows: int, seed: int) -> None:
    """Random candidates with random probabilities, built by the plug-in's own kernel."""
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    levels, width = worker.sizes.block - 1, worker.sizes.top_k
    words = worker.model_runner.model_config.vocab_size
    log_probs = torch.rand(rows, levels, width, generator=generator).mul_(8.0).neg_().sort(dim=-1, descending=True)[0]
    ids = torch.stack([torch.randperm(words, generator=generator)[:width] for _ in range(rows * levels)]).view(
        rows, levels, width
    )
    device = worker.trees.tokens.device
    roots = worker.trees.tokens[:rows, 0].clone()
    worker.ops.build(worker.trees, log_probs.float().to(device), ids.to(torch.int32).to(device), roots)


def _record(worker: Any, batch: Any, output: Any, in_graph: bool) -> dict[str, Any]:
    request, width = batch.reqs[0], worker.sizes.verify_width
    return {
        "prefix": [*request.origin_input_ids, *request.output_ids],
        "tokens": worker.trees.tokens[0].tolist(),
        "parents": worker.trees.parents[0].tolist(),
        "depths": worker.trees.depths[0].tolist(),
        "graph": in_graph,
        "logits": output.next_token_logits[:width].float().cpu(),
    }


def _write(found: list[dict[str, Any]]) -> None:
    import torch

    torch.save(found, os.environ[DUMP])


def stages() -> None:
    """CUDA events around the parts of a round; medians in milliseconds by batch size go to ``DUMP``."""

    def around(worker: Any) -> None:
        import torch

        clock = _Stages(torch.cuda.Event)
        for name in ("_draft", "_verify", "_extend_drafter_cache"):
            setattr(worker, name, clock.timed(name.strip("_"), getattr(worker, name)))
        stock, set_up = worker._round, worker.init_cuda_graphs

        def with_ops(self: Any) -> None:
            set_up(self)
            self.ops = _Timed(self.ops, clock)

        def round_(self: Any, batch: Any, on_publish: Any) -> Any:
            with clock.round(len(batch.seq_lens)):
                return stock(self, batch, on_publish)

        worker.init_cuda_graphs, worker._round = with_ops, round_

    _on_worker(around)


class _Timed:
    """The plug-in's kernels, with events around those that a round launches outside graphs."""

    def __init__(self, ops: Any, clock: _Stages) -> None:
        self._ops = ops
        for name in ("prepare", "walk", "move_kv"):
            setattr(self, name, clock.timed(name, getattr(ops, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


class _Stages:
    """Pairs of events by batch size and stage; read and written once ``ROUNDS`` rounds of a size are there."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self._rows = 0
        self._pairs: dict[int, dict[str, list[Any]]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start, end = (self._event(enable_timing=True) for _ in range(2))
            start.record()
            found = function(*args, **kwargs)
            end.record()
            self._pairs.setdefault(self._rows, {}).setdefault(name, []).append((start, end))
            return found

        return wrapped

    def round(self, rows: int) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def measured() -> Any:
            self._rows = rows
            start, end = (self._event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            pairs = self._pairs.setdefault(rows, {}).setdefault("round", [])
            pairs.append((start, end))
            if len(pairs) % 100 == 0:
                self._write()

        return measured()

    def _write(self) -> None:
        import json
        import statistics

        import torch

        torch.cuda.synchronize()
        found: dict[int, dict[str, float]] = {}
        for rows, names in self._pairs.items():
            kept = {name: pairs[len(pairs) // 2 :] for name, pairs in names.items()}
            found[rows] = {
                name: statistics.median(start.elapsed_time(end) for start, end in pairs)
                for name, pairs in kept.items()
                if pairs
            }
        with open(os.environ[DUMP], "w") as stream:  # noqa: PTH123  runs inside the engine
            json.dump(found, stream)


def memory() -> None:
    """Bytes that tensors hold once graphs have been captured go to ``DUMP``."""

    def around(worker: Any) -> None:
        set_up = worker.init_cuda_graphs

        def counted(self: Any) -> None:
            import json

            import torch

            set_up(self)
            torch.cuda.synchronize()
            found = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
            with open(os.environ[DUMP], "w") as stream:  # noqa: PTH123  runs inside the engine
                json.dump(found, stream)

        worker.init_cuda_graphs = counted

    _on_worker(around)


def host_profile() -> None:
    """Python's profiler around steps of the scheduler; what they cost goes to ``DUMP``."""
    from experiments.sglang_evidence.host import install as profile

    profile()


def _on_worker(change: Callable[[Any], None]) -> None:
    """Has ``change`` made to the plug-in's worker class when SGLang asks for it."""
    from ddbench.plugins.sglang import workers

    stock = workers.worker_of

    def worker_of() -> type:
        found = stock()
        change(found)
        return found

    workers.worker_of = worker_of


CHANGES: dict[str, Callable[[], Any]] = {
    "float32": float32,
    "poison": poison,
    "wrong_rule": wrong_rule,
    "random_tree": random_tree,
    "stages": stages,
    "memory": memory,
    "host_profile": host_profile,
}
