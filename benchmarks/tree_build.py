"""How long it takes to build the trees of a batch: the published heap against the included forms, on this machine.

    python benchmarks/tree_build.py [--device cuda] [--json PATH] [--evidence PATH]

The tree is built once a round, between the drafter's pass and the target's, so that its time adds to every round. The
heap works through the batch one sequence after another on the host; `build_tree` builds all trees at once where the
log-probabilities are, and on a GPU can be part of a captured CUDA graph. Each form starts from log-probabilities on
the device; the heap's copy to the host is part of its time, as is the return copy of the compiled form. The forms
take turns within every repeat, and the median over the repeats is shown.

The drafts are synthetic: 15 positions over a vocabulary of 4096, logits normal with a standard deviation that falls
with depth. "typical" drafts (12 down to 5) are as sure as a good DFlash drafter: the tree of 256 nodes holds about 7.5
expected accepted tokens. "flat" drafts (4 down to 2) are nearly undecided and give shallow, broad trees. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout without installing

from benchmarks.heap_baseline import heap_baseline
from ddbench.errors import ConfigError
from ddbench.tree import Tree, build_tree, build_tree_compiled, build_tree_heap

DEPTH, VOCABULARY = 15, 4096
BATCHES, BUDGETS = (1, 8, 32), (16, 64, 256, 1024)
DRAFTS = {"typical": (12.0, 5.0), "flat": (4.0, 2.0)}
GOAL_BATCH, GOAL_BUDGET = 32, 256
GOALS = {"torch": 2.0, "compiled": 10.0}  # times as fast as the heap, on a CPU


def drafts(kind: str, batch: int, nodes: int, device: str) -> torch.Tensor:
    """Sorted log-probabilities ``[batch, 15, nodes]``, the same for every run."""
    first, last = DRAFTS[kind]
    generator = torch.Generator().manual_seed(batch * 10_000 + nodes)
    logits = torch.randn(batch, DEPTH, VOCABULARY, generator=generator)
    spread = torch.linspace(first, last, DEPTH)[:, None]
    return (logits * spread).log_softmax(-1).topk(nodes).values.to(device)


def captured(log_probs: torch.Tensor, nodes: int) -> tuple[Callable[[], None], Tree]:
    """A replay of `build_tree` as one CUDA graph, and the tree it writes into."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            build_tree(log_probs, nodes)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tree = build_tree(log_probs, nodes)
    return graph.replay, tree


def equal_trees(one: Tree, other: Tree) -> bool:
    parts = ("scores", "parents", "depths", "ranks")
    return all(torch.equal(getattr(one, part).cpu(), getattr(other, part).cpu()) for part in parts)


def medians_ms(forms: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, float]:
    """Median time of each form; they take turns, for about ``seconds`` in all and at least five times each."""

    def timed(form: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        form()
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin)

    for form in forms.values():
        timed(form)
    times: dict[str, list[float]] = {name: [] for name in forms}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 5:
        for name, form in forms.items():
            times[name].append(timed(form))
    return {name: statistics.median(each) for name, each in times.items()}


def measure(kind: str, batch: int, nodes: int, device: str, seconds: float, compiled: bool) -> dict[str, Any]:
    """One row: medians, and whether all forms gave the tree of the exact heap."""
    log_probs = drafts(kind, batch, nodes, device)
    forms: dict[str, Callable[[], Any]] = {
        "heap": lambda: heap_baseline(log_probs, nodes),
        "torch": lambda: build_tree(log_probs, nodes),
    }
    expected = build_tree_heap(log_probs, nodes)
    equal = equal_trees(build_tree(log_probs, nodes), expected)
    if compiled:
        forms["compiled"] = lambda: build_tree_compiled(log_probs, nodes)
        equal &= equal_trees(build_tree_compiled(log_probs, nodes), expected)
    if device == "cuda":
        forms["graph"], tree = captured(log_probs, nodes)
        forms["graph"]()
        torch.cuda.synchronize()
        equal &= equal_trees(tree, expected)
    times = {f"{name}_ms": round(median, 4) for name, median in medians_ms(forms, device, seconds).items()}
    accepted = float(expected.scores.exp().sum(1).mean())
    return {
        "draft": kind,
        "batch": batch,
        "nodes": nodes,
        **times,
        "equal": equal,
        "expected_accepted": round(accepted, 2),
    }


def machine(device: str) -> dict[str, Any]:
    info: dict[str, Any] = {
        "device": device,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        info["gpu"] = torch.cuda.get_device_name()
        info["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return info


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def numba_found() -> bool:
    try:
        build_tree_compiled(torch.zeros(1, 1, 1), 1)
    except ConfigError as error:
        print(f"without the compiled form: {error}", file=sys.stderr)
        return False
    return True


def print_table(rows: list[dict[str, Any]]) -> None:
    names = [key.removesuffix("_ms") for key in rows[0] if key.endswith("_ms")]
    print(f"{'draft':>8} {'batch':>5} {'nodes':>5} " + " ".join(f"{name + ' ms':>12}" for name in names), end=" ")
    print(" ".join(f"{'heap/' + name:>14}" for name in names[1:]) + "  equal")
    for row in rows:
        times = [row[f"{name}_ms"] for name in names]
        print(
            f"{row['draft']:>8} {row['batch']:>5} {row['nodes']:>5} " + " ".join(f"{t:12.3f}" for t in times), end=" "
        )
        print(" ".join(f"{times[0] / t:14.2f}" for t in times[1:]) + f"  {row['equal']}")


def summary(rows: list[dict[str, Any]], info: dict[str, Any]) -> dict[str, Any]:
    """What the rows say of the goals (CPU), or of growth with the batch (GPU)."""
    found = {(row["draft"], row["batch"], row["nodes"]): row for row in rows}
    point = found["typical", GOAL_BATCH, GOAL_BUDGET]
    ratios = {
        f"heap_over_{form}_{kind}": round(row["heap_ms"] / row[f"{form}_ms"], 2)
        for kind in DRAFTS
        for row in [found[kind, GOAL_BATCH, GOAL_BUDGET]]
        for form in ("torch", "compiled", "graph")
        if f"{form}_ms" in row
    }
    said: dict[str, Any] = {
        "batch": GOAL_BATCH,
        "nodes": GOAL_BUDGET,
        **ratios,
        "all_equal": all(r["equal"] for r in rows),
    }
    if info["device"] == "cpu":
        said["goals"] = GOALS
        said["goals_met"] = {
            form: point["heap_ms"] / point[f"{form}_ms"] >= goal
            for form, goal in GOALS.items()
            if f"{form}_ms" in point
        }
    else:
        one = found["typical", 1, GOAL_BUDGET]
        said["graph_ms_batch_32_over_1"] = round(point["graph_ms"] / one["graph_ms"], 2)
        said["torch_ms_batch_32_over_1"] = round(point["torch_ms"] / one["torch_ms"], 2)
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row of the table")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; more do not help arrays this small")
    parser.add_argument("--json", type=Path, help="write the last line to this file too")
    parser.add_argument("--evidence", type=Path, help="write what was measured as a file for docs/evidence")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("--device=cuda: no CUDA device is visible; use --device cpu", file=sys.stderr)
        return 2
    torch.set_num_threads(arguments.threads)

    compiled = numba_found()
    points = [("typical", batch, nodes) for batch in BATCHES for nodes in BUDGETS]
    points.append(("flat", GOAL_BATCH, GOAL_BUDGET))
    rows = [measure(*point, arguments.device, arguments.seconds, compiled) for point in points]
    info = machine(arguments.device)
    said = summary(rows, info)
    print(f"{info.get('gpu', info['processor'])}, torch {torch.__version__}, {info['threads']} threads; medians")
    print_table(rows)

    command = f"python benchmarks/tree_build.py --device {arguments.device} --seconds {arguments.seconds:g}"
    if arguments.evidence:
        evidence = {
            "command": command,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "gpu": info.get("gpu"),
            "driver": info.get("driver"),
            "versions": info["versions"],
            "measured": {"summary": said, "rows": rows},
            "notes": "Time to build draft trees from synthetic drafts; the heap runs on the host of the same machine.",
        }
        arguments.evidence.parent.mkdir(parents=True, exist_ok=True)
        arguments.evidence.write_text(json.dumps(evidence, indent=1) + "\n")
    line = json.dumps({"benchmark": "tree_build", "command": command, **info, "summary": said, "rows": rows})
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(line + "\n")
    print(line)
    return 0 if said["all_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
