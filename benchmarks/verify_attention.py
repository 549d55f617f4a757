"""Attention of a layer's verify pass on a GPU: SGLang's unmasked and masked, ours by its rule and ours otherwise cut.

    python benchmarks/verify_attention.py [--widths 16 64] [--batches 1 8] [--contexts 256] [--limit 80] [--no-grid]
        [--evidence PATH]

Run by a Python that has SGLang 0.5.17 or 0.5.23. Dimensions of Qwen3-8B: 32 heads over 8 key-value heads of 128,
bfloat16. `chain` is what stock DFLASH pays: SGLang's extend attention, causal, no mask. `masked` is the same under a
random tree's mask, `rule` the plug-in's kernel as `attention_plan.plan` cuts it, `best` the best of a grid of tiles,
warps, stages and splits.

Each time is of one launch (with its merge) in a captured graph of many, the median of ten replays between events. Every
launch reads another part of the cache, twice the GPU's last cache in all, so keys and values of the context come from
memory, as they do in a model; queries and the window's keys stay in the cache, where a model has just written them.
Kernels are compiled by several processes first. Ours is compared with SGLang's masked attention at every point before
it is timed. ``--limit`` ends the measuring, not the compiling. The last line is JSON;
``--evidence`` writes it as a file for docs/evidence.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attention_grid import (
    HEAD,
    HEADS,
    KV_HEADS,
    Device,
    Plan,
    Point,
    Row,
    copies_of,
    evidence_of,
    judged,
    name_of,
    points,
    rule,
    table,
    to_compile,
    tried,
)

REPLAYS = 10
TOLERANCE = 2e-2  # of outputs near 1 in bfloat16: two roundings of eight bits
STOCK = ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops")


class Inputs:
    """Of one point: queries and window, a random tree's mask, and one set of slots a launch."""

    def __init__(self, point: Point, copies: int) -> None:
        import torch

        self.point, self.copies = point, copies
        batch, width, context = point.batch, point.width, point.context
        generator = torch.Generator("cuda").manual_seed(0)
        tokens = batch * width

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)

        self.query, self.out = normal(tokens, HEADS, HEAD), torch.empty_like(normal(tokens, HEADS, HEAD))
        self.window = (normal(tokens, KV_HEADS, HEAD), normal(tokens, KV_HEADS, HEAD))
        slots = copies * batch * context
        self.cache = (normal(slots, KV_HEADS, HEAD), normal(slots, KV_HEADS, HEAD))
        self.slots = torch.arange(slots, device="cuda").view(copies, -1).unbind()
        rows = torch.arange(batch + 1, device="cuda")
        self.kv_indptr = (rows * context).to(torch.int32)
        self.qo_indptr = (rows * width).to(torch.int32)
        self.mask_indptr = rows * width * (context + width)
        self.mask = torch.ones(batch, width, context + width, dtype=torch.uint8, device="cuda")
        self.mask[:, :, context:] = random_tree(width).to(self.mask)
        self.mask = self.mask.flatten()

    def stock(self, attention: Callable[..., Any], masked: bool, at: int) -> None:
        mask = (self.mask, True, self.mask_indptr) if masked else (None, True, None)
        slots = (self.qo_indptr, self.kv_indptr, self.slots[at])
        attention(
            self.query, *self.window, self.out, *self.cache, *slots, *mask, self.point.width, 1.0, 1.0, HEAD**-0.5
        )

    def ours(self, workspace: Any, cut: Plan, at: int) -> None:
        from ddbench.plugins.sglang.kernels.attention_launch import verify_attention

        slots = (self.kv_indptr, self.slots[at], self.mask, self.mask_indptr)
        sizes = (self.point.width, HEAD**-0.5, self.out)
        verify_attention(self.query, *self.window, *self.cache, *slots, *sizes, workspace=workspace, cut=cut)


def random_tree(width: int) -> Any:
    """What every node of a random tree sees of its window."""
    import torch

    generator = torch.Generator().manual_seed(width)
    seen = torch.eye(width, dtype=torch.uint8)
    for node in range(1, width):
        seen[node] |= seen[int(torch.randint(node, (1,), generator=generator))]
    return seen


def workspace_of(width: int, batch: int, plans: list[Plan]) -> Any:
    from ddbench.plugins.kernels.tiles import AttentionWorkspace

    most = max(each.splits for each in plans)
    return AttentionWorkspace.of(width * batch, HEADS, HEAD, most, "cuda")


def graph_us(launch: Callable[[int], None], copies: int) -> float:
    """Median microseconds of one of ``copies`` launches in a captured graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(copies):
            launch(at)
    times = []
    for turn in range(REPLAYS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if turn:
            times.append(1000 * begin.elapsed_time(end) / copies)
    return statistics.median(times)


def measured(point: Point, device: Device, stock: Callable[..., Any], grid: bool) -> Row:
    """Microseconds of every attention at one point. Raises ValueError where ours and SGLang's masked one differ."""
    import torch

    copies = copies_of(point, device)
    given = Inputs(point, copies)
    plans = tried(point, device) if grid else [rule(point, device)]
    workspace = workspace_of(point.width, point.batch, plans)
    row: Row = {"width": point.width, "batch": point.batch, "context": point.context, "copies": copies}
    row["chain_us"] = graph_us(lambda at: given.stock(stock, False, at), copies)
    row["masked_us"] = graph_us(lambda at: given.stock(stock, True, at), copies)
    given.stock(stock, True, 0)
    expected = given.out.float()
    row["us"], row["apart"] = {}, 0.0
    for cut in plans:
        given.out.fill_(torch.nan)
        given.ours(workspace, cut, 0)
        apart = float((given.out.float() - expected).abs().max())
        if not apart <= TOLERANCE:
            raise ValueError(f"{point}: {name_of(cut)} is {apart} from SGLang's masked attention")
        row["apart"] = max(row["apart"], apart)
        row["us"][name_of(cut)] = graph_us(lambda at, cut=cut: given.ours(workspace, cut, at), copies)  # type: ignore[misc]
    row["rule"] = name_of(rule(point, device))
    row["rule_us"] = row["us"][row["rule"]]
    return row


def compile_share(asked: list[Point], device: Device, at: int, of: int) -> None:
    """Launches every ``of``-th kernel once, on a small batch: its compiled form stays in Triton's cache on disk."""
    for width, cut in to_compile(asked, device)[at::of]:
        Inputs(Point(width, 1, 64), 1).ours(workspace_of(width, 1, [cut]), cut, 0)


def compile_all(options: argparse.Namespace) -> None:
    own = [sys.executable, __file__, *sys.argv[1:]]
    ran = [subprocess.Popen([*own, "--compile-only", str(at), str(options.workers)]) for at in range(options.workers)]
    if any(each.wait() for each in ran):
        raise RuntimeError("a process that compiles kernels failed; its message is above")


def device_of() -> Device:
    import torch

    from ddbench.plugins.kernels.device import processors, shared_bytes

    here = torch.device("cuda")
    return Device(processors(here), shared_bytes(here), int(torch.cuda.get_device_properties(0).L2_cache_size))


def stock_attention() -> tuple[Callable[..., Any], str]:
    """SGLang's extend attention and its version. Raises ImportError without SGLang."""
    version = str(importlib.import_module("sglang.version").__version__)
    for package in STOCK:
        try:
            return importlib.import_module(f"{package}.extend_attention").extend_attention_fwd, version
        except ModuleNotFoundError:
            continue
    raise ImportError(f"SGLang {version} has no extend attention in {' or '.join(STOCK)}")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 16, 32, 128])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--workers", type=int, default=8, help="processes that compile; each takes 0.5 GB of the GPU")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of measuring after which no point is begun")
    parser.add_argument("--no-grid", action="store_true", help="SGLang's and the rule's plan alone")
    parser.add_argument("--evidence", type=Path, help="file to write for docs/evidence")
    parser.add_argument("--compile-only", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if min(*options.widths, *options.batches, *options.contexts, options.workers, 1) < 1:
        parser.error("widths, batches, contexts and workers: at least 1")
    return options


def main() -> int:
    options = arguments()
    try:
        import torch
        import triton
    except ImportError as error:
        print(f"error: needs torch and Triton, of SGLang's environment: {error}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("error: needs a CUDA device", file=sys.stderr)
        return 2
    asked = points(options.widths, options.batches, options.contexts)
    device = device_of()
    if options.compile_only:
        compile_share(asked, device, *options.compile_only)
        return 0
    try:
        stock, version = stock_attention()
    except ImportError as error:
        print(f"error: needs SGLang 0.5.17 or 0.5.23 beside it: {error}", file=sys.stderr)
        return 2
    began = time.perf_counter()
    if not options.no_grid:
        compile_all(options)
    compiled_s = time.perf_counter() - began
    rows: list[Row] = []
    skipped: list[str] = []
    began = time.perf_counter()
    for point in asked:
        if time.perf_counter() - began > options.limit:
            skipped.append(str(point))
        else:
            rows.append(measured(point, device, stock, not options.no_grid))
    verdicts = [] if options.no_grid else list(judged(rows, device))
    for line in table(rows, verdicts):
        print(line)
    if skipped:
        print(f"not measured, for lack of time: {', '.join(skipped)}")
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    facts |= {"sglang": version, "compile_s": compiled_s, "skipped": skipped}
    data = rounded({"benchmark": "verify_attention", **facts, "verdicts": verdicts, "rows": rows})
    print(json.dumps(data))
    if options.evidence is not None:
        write_evidence(options.evidence, data)
    return 0


def write_evidence(path: Path, data: Row) -> None:
    from ddbench.storage import write_whole
    from runners.machine import machine_facts

    command = shlex.join(["python", "benchmarks/verify_attention.py", *sys.argv[1:]])
    date, driver = datetime.now(UTC).date().isoformat(), machine_facts()["driver"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(evidence_of(data, command, date, driver, platform.python_version()), indent=1) + "\n")


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
