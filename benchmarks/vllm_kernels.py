"""Time of the vLLM plug-in's kernels on a GPU, at the dimensions of an 8B model.

32 heads of 128 over 8 key-value heads, 36 layers, a vocabulary of 151936, five features of 4096 gathered for the
drafter, bfloat16. Every number is the time of one launch (attention: of one layer) inside a captured CUDA graph, as a
server runs them: the median over replays of a graph that holds many launches, so that launching is not measured.
Attention goes round a few layers' caches, so that a context is read from memory where it does not fit into the cache.

    python benchmarks/vllm_kernels.py [--kernels attention walk ...] [--quick] [--tiles]

Beside each attention time stand: torch's scaled dot product with a mask on dense, already gathered and repeated keys
and values (`sdpa_ms`), and the time that reading keys and values once takes at `--bandwidth` (`floor_ms`). `--tiles`
tries other tiles and splits. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from gpu_timing import graph_ms, host_ms

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout without installing

from ddbench.plugins.kernels.device import shared_bytes
from ddbench.plugins.kernels.tiles import Tile, tile_of
from ddbench.plugins.vllm.kernels import ops
from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState

HEADS, KV_HEADS, HEAD, LAYERS = 32, 8, 128, 36
VOCABULARY, FEATURES, DEPTH, PAGE = 151_936, 5 * 4096, 15, 16
KERNELS = ("candidates", "build", "positions", "walk", "move_kv", "gather", "attention", "host")
Row = dict[str, Any]


class Round:
    """A batch in which every row verifies a whole random tree, after ``context`` tokens."""

    def __init__(self, batch: int, width: int, context: int) -> None:
        self.batch, self.width, self.context = batch, width, context
        nodes = width - 1
        generator = torch.Generator("cuda").manual_seed(0)
        device = torch.device("cuda")
        self.options = Options(nodes=nodes, block=DEPTH + 1)
        self.state = TreeState(batch, nodes, device)
        logits = torch.randn(batch, DEPTH, 4096, generator=generator, device=device)
        logits *= torch.linspace(12, 5, DEPTH, device=device)[:, None]
        best = logits.log_softmax(-1).topk(nodes)
        self.log_probs, self.ids = best.values, best.indices.to(torch.int32)
        self.slots = torch.arange(batch, device=device)
        ops.write_trees(self.state, self.options, self.log_probs, self.ids, self.slots)
        self.state.row_slot.copy_(self.slots)
        self.state.row_drafts.fill_(nodes)
        self.query_start = (torch.arange(batch + 1, device=device) * width).to(torch.int32)
        self.tokens = batch * width
        self.lengths = torch.full((batch,), context + width, dtype=torch.int32, device=device)
        self.pages = triton.cdiv(context + width, PAGE)
        blocks = batch * self.pages
        self.blocks = blocks
        self.table = torch.randperm(blocks, generator=generator, device=device).view(batch, -1).to(torch.int32)
        at = context + torch.arange(width, device=device)
        page = self.table[:, at // PAGE].long()
        self.mapping = (page * PAGE + at % PAGE).flatten()
        # The choices follow the best node of every depth, as far as these are a path.
        self.choices = torch.full((batch, width), -1, dtype=torch.int64, device=device)
        for row in range(batch):
            node = int(self.state.depths[row].argmax())
            while node >= 0:
                parent = int(self.state.parents[row, node])
                self.choices[row, parent] = self.state.tokens[row, node]
                node = parent - 1
        self.sampled = (torch.arange(1, batch + 1, device=device) * width).to(torch.int32)
        self.emitted = torch.empty(batch, width, dtype=torch.int32, device=device)
        ops.walk(self.state, batch, self.choices.flatten(), self.sampled, self.emitted)

    def cache(self) -> torch.Tensor:
        return torch.randn(self.blocks, KV_HEADS, PAGE, 2 * HEAD, dtype=torch.bfloat16, device="cuda")


def candidates_row(batch: int, k: int) -> Row:
    logits = [torch.randn(batch * DEPTH, VOCABULARY, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    return {
        "kernel": "candidates",
        "batch": batch,
        "k": k,
        "ms": graph_ms([lambda at=i % 2: ops.candidates(logits[at], k) for i in range(6)]),  # type: ignore[misc]
        "torch_topk_ms": graph_ms([lambda at=i % 2: logits[at].topk(k) for i in range(4)]),  # type: ignore[misc]
    }


def small_rows(kernels: list[str], batch: int, width: int) -> list[Row]:
    case = Round(batch, width, 256)
    start, state = case.query_start, case.state
    positions = torch.arange(case.tokens, device="cuda")
    inputs = torch.zeros(case.tokens, dtype=torch.int32, device="cuda")
    hidden = torch.randn(case.tokens, FEATURES, dtype=torch.bfloat16, device="cuda")
    caches = [case.cache() for _ in range(LAYERS)]
    table = ops.cache_table(caches)
    known: dict[str, Callable[[], Any]] = {
        "build": lambda: ops.write_trees(state, case.options, case.log_probs, case.ids, case.slots),
        "positions": lambda: ops.apply_trees(state, batch, start, positions, inputs),
        "walk": lambda: ops.walk(state, batch, case.choices.flatten(), case.sampled, case.emitted),
        "move_kv": lambda: ops.move_kv(state, batch, start, case.mapping, table),
        "gather": lambda: ops.gather_rows(state, batch, start, hidden),
    }
    rows = []
    for name in (name for name in known if name in kernels):
        row: Row = {"kernel": name, "batch": batch, "width": width, "ms": graph_ms([known[name]] * 20)}
        if name in ("move_kv", "gather"):
            row["rows_moved"] = int((state.path[:batch] > torch.arange(width, device="cuda")).sum())
        rows.append(row)
    return rows


def host_row(batch: int, width: int) -> Row:
    """Host time of all of a round's tree work: enqueued launch by launch, and the same as one captured graph."""
    case = Round(batch, width, 256)
    start, state, k = case.query_start, case.state, case.options.candidates
    positions = torch.arange(case.tokens, device="cuda")
    inputs = torch.zeros(case.tokens, dtype=torch.int32, device="cuda")
    hidden = torch.randn(case.tokens, FEATURES, dtype=torch.bfloat16, device="cuda")
    caches = [case.cache() for _ in range(LAYERS)]  # must outlive the table
    table = ops.cache_table(caches)
    logits = torch.randn(batch * DEPTH, VOCABULARY, dtype=torch.bfloat16, device="cuda")
    host = torch.zeros(3, batch, dtype=torch.int32, pin_memory=True)
    host[:] = state.of_rows.cpu()
    host[2] = torch.arange(batch)

    def a_round() -> None:
        state.of_rows.copy_(host, non_blocking=True)
        ops.apply_trees(state, batch, start, positions, inputs)
        ops.walk(state, batch, case.choices.flatten(), case.sampled, case.emitted, start, positions)
        ops.move_kv(state, batch, start, case.mapping, table)
        ops.gather_rows(state, batch, start, hidden)
        log_probs, ids = (part.view(batch, DEPTH, -1) for part in ops.candidates(logits, k))
        ops.write_trees(state, case.options, log_probs, ids, state.row_next[:batch])

    a_round()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a_round()
    return {
        "kernel": "host",
        "batch": batch,
        "width": width,
        "launched_ms": host_ms(a_round),
        "graph_ms": host_ms(graph.replay),
    }


def attention_call(case: Round, query: torch.Tensor, cache: torch.Tensor, out: torch.Tensor, **rest: Any) -> None:
    ops.tree_attention(
        case.state,
        query,
        cache,
        case.table,
        case.query_start,
        case.lengths,
        HEAD**-0.5,
        out,
        max_query=case.width,
        **rest,
    )


def attention_row(batch: int, width: int, context: int, bandwidth: float, tiles: bool) -> Row:
    case = Round(batch, width, context)
    query = torch.randn(case.tokens, HEADS, HEAD, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(query)
    workspace = ops.AttentionWorkspace.of(max(case.tokens, 512), HEADS, HEAD, 8, "cuda")
    caches = [case.cache() for _ in range(4)]

    def timed(**rest: Any) -> float:
        def launch(at: int) -> Callable[[], None]:
            return lambda: attention_call(case, query, caches[at], out, workspace=workspace, **rest)

        return graph_ms([launch(i % 4) for i in range(12)])

    row: Row = {"kernel": "attention", "batch": batch, "width": width, "context": context, "ms": timed()}
    row["sdpa_ms"] = sdpa_ms(case, query)
    row["floor_ms"] = batch * (context + width) * KV_HEADS * 2 * HEAD * 2 / bandwidth / 1e9
    if tiles:
        row["tiles"] = tried(timed, width, batch)
    return row


def sdpa_ms(case: Round, query: torch.Tensor) -> float:
    length = case.context + case.width
    keys, values = torch.randn(2, case.batch, HEADS, length, HEAD, dtype=torch.bfloat16, device="cuda")
    mask = torch.zeros(case.batch, 1, case.width, length, dtype=torch.bfloat16, device="cuda")
    queries = query.view(case.batch, case.width, HEADS, HEAD).transpose(1, 2).contiguous()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return graph_ms([lambda: sdpa(queries, keys, values, attn_mask=mask)] * 4)


def tried(timed: Callable[..., float], width: int, batch: int) -> dict[str, float]:
    """Times of other tiles and splits, best first."""
    usual = tile_of(width * HEADS // KV_HEADS, HEAD, 2, shared_bytes(torch.device("cuda")))
    times = {}
    for m, n, warps, stages in itertools.product(
        sorted({usual.m, max(16, usual.m // 2)}), (32, 64, 128), (4, 8), (2, 3)
    ):
        tile = Tile(m, n, warps, stages)
        if tile.bytes(HEAD, 2) > shared_bytes(torch.device("cuda")):
            continue
        for splits in (1, 2, 4, 8, 16) if batch < 32 else (1, 2):
            times[f"{m}x{n} warps {warps} stages {stages} splits {splits}"] = timed(tile=tile, splits=splits)
    return dict(sorted(times.items(), key=lambda each: each[1])[:6])


def show(rows: list[Row]) -> None:
    for row in rows:
        values = [
            f"{v:.4f}" if isinstance(v, float) else str(v) for k, v in row.items() if k not in ("kernel", "tiles")
        ]
        names = [k for k in row if k not in ("kernel", "tiles")]
        print(f"{row['kernel']:<11}" + "  ".join(f"{n} {v:>7}" for n, v in zip(names, values, strict=True)))
        for name, ms in row.get("tiles", {}).items():
            print(f"{'':<13}{ms:.4f}  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 2048, 8192])
    parser.add_argument("--bandwidth", type=float, default=4.8, help="of the memory, TB/s (H200: 4.8)")
    parser.add_argument("--quick", action="store_true", help="the smallest and largest of everything")
    parser.add_argument("--tiles", action="store_true", help="try other tiles and splits of attention")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: needs a CUDA device", file=sys.stderr)
        return 2
    batches, widths, contexts = options.batches, options.widths, options.contexts
    if options.quick:
        batches, widths, contexts = ([each[0], each[-1]] for each in (batches, widths, contexts))
    rows: list[Row] = []
    small = set(options.kernels) & {"build", "positions", "walk", "move_kv", "gather"}
    for batch in batches:
        if "candidates" in options.kernels:
            rows += [candidates_row(batch, k) for k in (4, *(width - 1 for width in widths))]
        for width in widths:
            if small:
                rows += small_rows(options.kernels, batch, width)
            if "host" in options.kernels:
                rows.append(host_row(batch, width))
            if "attention" in options.kernels:
                rows += [attention_row(batch, width, each, options.bandwidth, options.tiles) for each in contexts]
    show(rows)
    device = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    for row in rows:
        row |= {name: round(v, 5) for name, v in row.items() if isinstance(v, float) and math.isfinite(v)}
    print(json.dumps({"benchmark": "vllm_kernels", **device, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
