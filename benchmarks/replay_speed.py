"""Engine time saved by exact replay for 150 tree shapes, on the packaged tiny pair and prompts held out from training.

Three things are timed in one process, with the same number of threads:

* recording: the text of all prompts, the drafter at every place where a round may begin, the files written;
* replay of all 150 shapes from those files;
* sampled shapes decoded live, at the batch size of the table, spread evenly over the 150. What all 150 would take is
  **extrapolated** from them, as 150 times their mean; it was not measured.

    ratio = extrapolated live seconds / (recording + replay) seconds

Seconds are CPU seconds of this process (one thread: what an idle core would need), since on a shared machine the wall
clock measures the others; wall seconds are given beside them. The recording is made before the live runs and again
among them, so that a machine that slows down slows both. Every live run is also compared with its replay.

    python benchmarks/replay_speed.py                               # all prompts
    python benchmarks/replay_speed.py --prompts 24 --samples 10     # some minutes
    python benchmarks/replay_speed.py --evidence docs/evidence/replay.json

The last line on standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ddbench
from ddbench.decoding import ModelPair, Request, Sampling, Strategy, load_pair
from ddbench.replay import Outcome, Trace, TraceSet, load_trace, replay, save_trace
from ddbench.replay.record import record
from ddbench.replay.trace import Key
from experiments.replay.check import compare, totalled
from experiments.shapes import Shape, why_not

ASSETS = Path(ddbench.__file__).parent / "assets"
WIDTHS, DEPTHS, NODES = (2, 3, 4, 6, 8, None), (4, 7, 10, 15), (8, 16, 32, 48, 64, 96, 128)
SHAPES = 150

T = TypeVar("T")


@dataclass
class Timer:
    """CPU and wall seconds of what is called, by name."""

    cpu: dict[str, list[float]] = field(default_factory=dict)
    wall: dict[str, list[float]] = field(default_factory=dict)

    def __call__(self, name: str, work: Callable[[], T]) -> T:
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        self.cpu.setdefault(name, []).append(time.process_time() - cpu)
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        return result


def grid(count: int) -> list[Strategy]:
    """``count`` shapes that can be, spread evenly over width x depth x nodes."""
    shapes = [Shape(*axes) for axes in product(WIDTHS, DEPTHS, NODES)]
    able = [shape for shape in shapes if why_not("ddtree", shape, 16) is None]
    return [Strategy("ddtree", each.width, each.depth, each.nodes) for each in spread(able, count)]


def spread(items: Sequence[T], count: int) -> list[T]:
    return [items[int(place)] for place in np.linspace(0, len(items) - 1, min(count, len(items))).round()]


def requests_of(pair: ModelPair, prompts: int | None, tokens: int) -> list[Request]:
    lines = [json.loads(line) for line in (ASSETS / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    ends = frozenset([pair.tokenizer.eos_token_id])
    return [
        Request(each["id"], tuple(pair.tokenizer(each["turns"][0])["input_ids"]), tokens, Sampling(), ends)
        for each in (lines if prompts is None else spread(lines, prompts))
    ]


def recorded(pair: ModelPair, requests: Sequence[Request], nodes: int, batch_size: int, folder: Path) -> list[Path]:
    """Records into files, one a request, in order."""
    paths = []
    for start in range(0, len(requests), batch_size):
        group = requests[start : start + batch_size]
        for request, found in zip(group, record(pair, group, nodes, batch_size), strict=True):
            trace = Trace(
                key=Key(request.prompt_id, 0, "shipped", "any", 0, 0, 0.0),
                prompt_tokens=len(request.token_ids),
                finish_reason=found.generation.finish_reason,
                disagreements=found.disagreements,
                log_probs=found.log_probs,
                ranks=found.ranks,
                output=np.asarray(found.generation.output_token_ids),
                tail=np.asarray(found.tail),
            )
            paths.append(folder / f"{len(paths)}.safetensors")
            save_trace(paths[-1], trace, "benchmark")
    return paths


def replayed(paths: Sequence[Path], shapes: Sequence[Strategy]) -> tuple[TraceSet, dict[Strategy, Outcome]]:
    traces = TraceSet.of([load_trace(path) for path in paths])
    return traces, dict(zip(shapes, replay(traces, shapes), strict=True))


def measure(pair: ModelPair, options: argparse.Namespace) -> dict[str, Any]:
    requests = requests_of(pair, options.prompts, options.tokens)
    shapes, timer = grid(SHAPES), Timer()
    folder, batch_size = Path(options.scratch), options.record_batch
    replayed(recorded(pair, requests[:8], max(NODES), batch_size, folder), shapes)  # warm-up
    rows: list[dict[str, Any]] = []

    def once() -> tuple[TraceSet, dict[Strategy, Outcome]]:
        paths = timer("record", lambda: recorded(pair, requests, max(NODES), batch_size, folder))
        return timer("replay", lambda: replayed(paths, shapes))

    traces, outcomes = once()
    timed = spread(shapes, options.samples)
    chains = [Strategy("dflash", depth=depth) for depth in (7, 15)]
    outcomes |= dict(zip(chains, replay(traces, chains), strict=True))
    further = [each for each in spread(shapes, options.checks) if each not in timed] + chains
    plan = [(each, 1) for each in timed] + [(each, options.batch) for each in further]
    for number, (strategy, batch) in enumerate(plan):
        row = timer(
            f"live batch {batch}" if strategy.name == "ddtree" else "chains",
            lambda strategy=strategy, batch=batch: compare(pair, strategy, requests, traces, outcomes[strategy], batch),
        )
        rows.append({"batch_size": batch, **row})
        say(f"{number + 1}/{len(plan)} {strategy} batch {batch} equal={row['equal']}")
        if number + 1 == len(timed):
            once()  # again, in the middle
    return {
        **summary(timer, rows, options.batch),
        "prompts": len(requests),
        "output_tokens": sum(len(trace.output) for trace in traces.traces),
        "anchors": traces.anchors,
        "disagreements": sum(trace.disagreements or 0 for trace in traces.traces),
        **thousands(traces, timer),
        "rows": rows,
    }


def thousands(traces: TraceSet, timer: Timer) -> dict[str, Any]:
    """Every shape up to 128 nodes at eight widths and all depths: how long a surface takes."""
    widths = (1, 2, 3, 4, 6, 8, 16, None)
    shapes = [
        Strategy("ddtree", width, depth, nodes)
        for width, depth, nodes in product(widths, range(1, traces.depth + 1), range(1, 1 + max(NODES)))
    ]
    timer("surface", lambda: replay(traces, shapes))
    return {"surface_shapes": len(shapes), "surface_cpu_s": round(timer.cpu["surface"][0], 2)}


def summary(timer: Timer, rows: Sequence[dict[str, Any]], batch: int) -> dict[str, Any]:
    """Ratios of CPU seconds. ``gpu_seconds_ratio`` is the name that was asked for: there is no GPU in it."""
    once = float(np.mean(timer.cpu["record"])) + float(np.mean(timer.cpu["replay"]))
    live = {size: np.asarray(timer.cpu.get(f"live batch {size}", [])) for size in (1, batch)}
    found: dict[str, Any] = {
        **{key: value for key, value in totalled(rows).items() if key != "live_seconds"},
        "shapes": SHAPES,
        "record_cpu_s": [round(each, 2) for each in timer.cpu["record"]],
        "record_wall_s": [round(each, 2) for each in timer.wall["record"]],
        "replay_cpu_s": [round(each, 3) for each in timer.cpu["replay"]],
    }
    for size, seconds in live.items():
        if len(seconds):
            found |= {
                f"live_cells_batch_{size}": len(seconds),
                f"live_cpu_s_mean_batch_{size}": round(float(seconds.mean()), 2),
                f"live_cpu_s_extrapolated_batch_{size}": round(SHAPES * float(seconds.mean()), 1),
                f"ratio_batch_{size}": round(SHAPES * float(seconds.mean()) / once, 1),
            }
    return {**found, "gpu_seconds_ratio": found["ratio_batch_1"]}


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def write_evidence(path: Path, measured: dict[str, Any], threads: int) -> None:
    rows = measured.pop("rows")
    differing = [row for row in rows if not row["equal"]]
    data = {
        "command": shlex.join(["python", "benchmarks/replay_speed.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": None,
        "driver": None,
        "versions": {"python": platform.python_version(), "torch": version("torch"), "numpy": version("numpy")},
        "measured": {**measured, "threads": threads, "not_equal": differing},
        "notes": (
            "Measured on a CPU, on the reference engine in float32 with the tiny pair: gpu_seconds_ratio is a ratio of "
            "CPU seconds of one process with one thread, not of GPU seconds. Live seconds of all shapes are "
            "extrapolated from the sampled cells, which were measured. A shape counts as equal if every request's "
            "text, rounds, drafted and accepted tokens and acceptance histogram are those of its live run."
        ),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, help="how many of the shipped prompts; default: all")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--samples", type=int, default=10, help="shapes decoded live at batch size 1, and timed")
    parser.add_argument("--checks", type=int, default=30, help="shapes compared with live runs, the samples included")
    parser.add_argument("--batch", type=int, default=8, help="batch size of the shapes that are not samples")
    parser.add_argument("--record-batch", type=int, default=64, help="requests in flight while recording")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evidence", type=Path, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pair = load_pair(ASSETS / "target", ASSETS / "dflash")
    with TemporaryDirectory() as options.scratch:
        measured = measure(pair, options)
    measured["machine"] = {
        "cpus": os.cpu_count(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "processor": platform.processor() or platform.machine(),
    }
    for row in measured["rows"]:
        seconds, shape = row["live_seconds"], [row[name] for name in ("strategy", "width", "depth", "nodes")]
        print(f"{shape!s:32} batch {row['batch_size']}: {seconds:7.2f} s wall, equal: {row['equal']}")
    print("extrapolated from the cells at each batch size, not measured:")
    for size in (1, options.batch):
        if f"ratio_batch_{size}" in measured:
            print(
                f"  {SHAPES} shapes live at batch {size}: {measured[f'live_cpu_s_extrapolated_batch_{size}']} CPU s; "
                f"recording and replay: {measured['record_cpu_s']} + {measured['replay_cpu_s']}; "
                f"ratio {measured[f'ratio_batch_{size}']}"
            )
    line = json.dumps({key: value for key, value in measured.items() if key != "rows"})
    if options.evidence is not None:
        write_evidence(options.evidence, measured, options.threads)
    print(line)


if __name__ == "__main__":
    main()
