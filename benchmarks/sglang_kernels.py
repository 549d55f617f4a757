"""Time of the SGLang plug-in's kernels on a GPU, at the dimensions of an 8B model.

36 layers of 8 key-value heads of 128, a vocabulary of 151936, five features of 4096 for the drafter, a block of
16, bfloat16. Every number is the time of one launch inside a captured CUDA graph: the median over replays of a graph
that holds many launches, so that launching is not measured.

    python benchmarks/sglang_kernels.py [--kernels build walk ...] [--quick]

`tree` adds what a tree costs a round beside a chain's own steps: build, lay_out, walk and move_kv (goal: build at most
0.1 ms at verify width 64 and batch 32; all of them at most 2 % of a round of about 7 ms at batch 1). `lay_out whole`
and `packed` are the masks of backends that read the context part too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from gpu_timing import graph_ms, host_ms

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout without installing

from ddbench.plugins.sglang.kernels import ops
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk

LAYERS, KV_HEADS, HEAD = 36, 8, 128
VOCABULARY, FEATURES, BLOCK = 151_936, 5 * 4096, 16
TREE = ("build", "lay_out", "walk", "move_kv")
KERNELS = ("candidates", "prepare", *TREE, "lay_out whole", "packed", "gather", "host")
Row = dict[str, Any]


class Round:
    """A batch in which every row verifies a whole random tree, after ``context`` tokens, and accepts a path of it."""

    def __init__(self, batch: int, width: int, context: int, k: int) -> None:
        self.batch, self.width = batch, width
        device, generator = torch.device("cuda"), torch.Generator("cuda").manual_seed(0)

        def table(columns: int) -> torch.Tensor:
            return torch.zeros((batch, columns), dtype=torch.int64, device=device)

        self.trees, self.out = Trees(batch, width, BLOCK, device), Walk(batch, BLOCK, device)
        self.logits = torch.randn(batch * (BLOCK - 1), VOCABULARY, dtype=torch.bfloat16, device=device)
        spread = torch.linspace(12, 5, BLOCK - 1, device=device)[:, None]
        drafts = torch.randn(batch, BLOCK - 1, 4096, generator=generator, device=device) * spread
        best = drafts.log_softmax(-1).topk(min(k, width - 1))
        self.log_probs, self.ids = best.values, best.indices.to(torch.int32)
        self.lens = torch.full((batch,), context, dtype=torch.int64, device=device)
        self.requests = torch.arange(batch, device=device)
        self.slots_in_all = batch * (context + width + BLOCK)
        order = torch.randperm(self.slots_in_all, generator=generator, device=device)
        self.slot_table = order.view(batch, -1).to(torch.int32)
        self.block_ids, self.chain, self.draft_slots = table(BLOCK), table(BLOCK), table(BLOCK)
        self.slots, self.positions, self.choices = table(width), table(width), table(width)
        entries = batch * width * (context + width)
        self.mask = torch.zeros(entries, dtype=torch.uint8, device=device)
        self.packed = torch.zeros(entries // 8 + 8 * batch, dtype=torch.uint8, device=device)
        self.starts = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        self.hidden = torch.randn(batch * width, FEATURES, dtype=torch.bfloat16, device=device)
        self.gathered = torch.empty(batch * BLOCK, FEATURES, dtype=torch.bfloat16, device=device)
        self.prepare()
        self.build()
        self._follow_the_deepest()
        self.walk()

    def _follow_the_deepest(self) -> None:
        """Choices that lead to the deepest node of every tree."""
        parents, tokens = self.trees.parents.tolist(), self.trees.tokens.tolist()
        for row, node in enumerate(self.trees.depths.argmax(1).tolist()):
            while node > 0:
                self.choices[row, parents[row][node]] = tokens[row][node]
                node = parents[row][node]

    def prepare(self) -> None:
        outs = (self.block_ids, self.chain, self.draft_slots, self.slots)
        ops.prepare(self.out.bonus, self.lens, self.requests, self.slot_table, 7, *outs)

    def build(self) -> None:
        ops.build(self.trees, self.log_probs, self.ids, self.block_ids[:, 0])

    def lay_out(self, whole: bool = False) -> None:
        ops.lay_out(self.trees, self.lens, self.positions, self.mask, whole)

    def packed_mask(self) -> None:
        ops.write_packed_mask(self.trees, self.lens, self.packed, self.starts)

    def walk(self) -> None:
        ops.walk(self.trees, self.choices, self.lens, self.out)

    def gather(self) -> None:
        ops.gather_rows(self.out, self.hidden, self.gathered)

    def caches(self) -> list[torch.Tensor]:
        shape = (self.slots_in_all, KV_HEADS, HEAD)
        return [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2 * LAYERS)]


def candidates_row(batch: int, k: int) -> Row:
    shape = (batch * (BLOCK - 1), VOCABULARY)
    logits = [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    return {
        "kernel": "candidates",
        "batch": batch,
        "k": k,
        "ms": graph_ms([lambda at=i % 2: ops.candidates(logits[at], k) for i in range(6)]),  # type: ignore[misc]
        "torch_topk_ms": graph_ms([lambda at=i % 2: logits[at].topk(k) for i in range(4)]),  # type: ignore[misc]
    }


def step_rows(kernels: list[str], batch: int, width: int, context: int, k: int) -> list[Row]:
    case = Round(batch, width, context, k)
    caches = case.caches()  # must outlive the table
    moved = ops.kv_table(caches)
    known: dict[str, Callable[[], Any]] = {
        "prepare": case.prepare,
        "build": case.build,
        "lay_out": case.lay_out,
        "lay_out whole": lambda: case.lay_out(True),
        "packed": case.packed_mask,
        "walk": case.walk,
        "move_kv": lambda: ops.move_kv(case.out, case.slots, moved),
        "gather": case.gather,
    }
    sizes = {"batch": batch, "width": width, "context": context, "k": k}
    rows: list[Row] = [
        {"kernel": name, **sizes, "ms": graph_ms([known[name]] * 20)} for name in known if name in kernels
    ]
    for row in rows:
        if row["kernel"] in ("move_kv", "gather"):
            row["path"] = round(float(case.out.commit_lens.float().mean()), 2)
    times = {row["kernel"]: row["ms"] for row in rows}
    if all(name in times for name in TREE):
        rows.append({"kernel": "tree", **sizes, "ms": sum(times[name] for name in TREE)})
    if "host" in kernels:
        rows.append({"kernel": "host", **sizes} | host_times(case, moved))
    return rows


def host_times(case: Round, moved: ops.KVTable) -> Row:
    """Host time of a round's launches outside the drafter's graph, and of the same as one captured graph."""

    def a_round() -> None:
        case.prepare()
        case.lay_out()
        case.walk()
        ops.move_kv(case.out, case.slots, moved)
        case.gather()

    a_round()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a_round()
    return {"launched_ms": host_ms(a_round), "graph_ms": host_ms(graph.replay)}


def show(rows: list[Row]) -> None:
    for row in rows:
        values = [f"{v:.4f}" if isinstance(v, float) else str(v) for name, v in row.items() if name != "kernel"]
        names = [name for name in row if name != "kernel"]
        print(f"{row['kernel']:<14}" + "  ".join(f"{n} {v:>7}" for n, v in zip(names, values, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024])
    parser.add_argument("--candidates", type=int, help="of a position; without it as many as a tree can use, width - 1")
    parser.add_argument("--quick", action="store_true", help="the smallest and largest batch; widths 16 and 64")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: needs a CUDA device", file=sys.stderr)
        return 2
    batches, widths = options.batches, options.widths
    if options.quick:
        batches, widths = [batches[0], batches[-1]], [16, 64]
    rows: list[Row] = []
    for batch in batches:
        for width in widths:
            k = min(options.candidates or width - 1, width - 1)
            if "candidates" in options.kernels:
                rows.append(candidates_row(batch, k))
            for context in options.contexts:
                rows += step_rows(options.kernels, batch, width, context, k)
    show(rows)
    device = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    rounded = [{name: round(v, 5) if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    print(json.dumps({"benchmark": "sglang_kernels", **device, "rows": rounded}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
