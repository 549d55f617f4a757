"""What the client costs: the part of a round that measuring adds, and the rate of tokens that one client can take.

An engine that computes nothing (``instant_engine.py``, a process of its own) sends an event to every open stream at
each beat of a clock; the client that sweeps use reads them, under the same closed loop. The engine knows when it sent
each event. Hence, without any guess:

    added        time of a round by the client's clocks (first to last event of a request, over its rounds) less the
                 same by the engine's, mean over requests, as a share of the round
    delay        from the engine's sending of an event to the client's clock for it, as a share of the round
    idle         share of the closed loop's places that were empty at a beat, from the first full beat to the coming of
                 the last request: what the client's turn from an answer to the next request costs
    processor    processor time of the client's process, as a share of the round
    beat         the engine's own round over the one asked for: well above 100 %, the machine is too busy to tell more
    binds        tokens a second of that processor time: the rate at which the client has no time left

    python benchmarks/client_cost.py                  # 256 in flight, rounds of 20, 10 and 5 ms, and at once
    python benchmarks/client_cost.py --in-flight 64 --round-ms 8

The round of 20 ms is a short one for 256 requests: autoregressive decoding of Qwen3-8B on an H200 takes 7.0 ms at 64
(``docs/evidence/vllm.json``), and every further request adds to it; a tree of 16 takes 32.7 ms at 64. With
``--round-ms 0`` the engine sends as fast as it can. Requests have half to one and a half times ``--rounds`` rounds, so
that they do not end all at once. The last line on standard output is one JSON object with every number of the table.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from runners import completions
from runners.completions import TokenRequest
from runners.load import ClosedLoop, LoadResult, run_load
from runners.ports import free_port
from runners.sglang import wire as native

ENGINE = Path(__file__).with_name("instant_engine.py")
WIRES: dict[str, Any] = {"vllm": completions, "sglang": native}
PROMPT_TOKENS = 200
LIMIT_S = 120.0

Clocks = dict[str, Any]  # see instant_engine.py


def main() -> int:
    arguments = _arguments()
    rows = [
        measure(name, wire, round_ms / 1000, arguments)
        for name, wire in WIRES.items()
        if name in arguments.wire
        for round_ms in arguments.round_ms
    ]
    print(f"{arguments.in_flight} in flight, {arguments.tokens} tokens an event, {arguments.requests} requests")
    print(f"of about {arguments.rounds} rounds, median of {arguments.repeats}\n")
    heads = "".join(f"{name:>9}" for name in ("added", "delay", "p99", "idle", "beat"))
    print(f"{'wire':8}{'round':>8}{heads}{'processor':>11}{'tokens/s':>12}{'binds':>12}")
    for row in rows:
        shares = [row[key] for key in ("added", "delay_p50", "delay_p99", "idle", "beat")]
        told = "".join(f"{'-' if share is None else f'{share:.2%}':>9}" for share in shares)
        beat = f"{row['round_ms']:g} ms" if row["round_ms"] else "at once"
        rates = f"{row['tokens_per_s']:>12,.0f}{row['binds_at']:>12,.0f}"
        print(f"{row['wire']:8}{beat:>8}{told}{row['processor']:>11.1%}{rates}")
    print()
    facts = {"python": platform.python_version(), "platform": platform.platform()}
    given = {key: getattr(arguments, key) for key in ("in_flight", "tokens", "requests", "rounds", "repeats")}
    print(json.dumps({**given, **facts, "rows": rows}, allow_nan=False))
    return 0


def measure(name: str, wire: ModuleType, round_s: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row: medians over the repeats, each against an engine of its own."""
    tries = [_try(wire, round_s, arguments) for _ in range(arguments.repeats)]
    row = {key: _median([each[key] for each in tries]) for key in tries[0]}
    return {"wire": name, "round_ms": 1000 * round_s, **row}


def _try(wire: ModuleType, round_s: float, arguments: argparse.Namespace) -> dict[str, float | None]:
    about = range(arguments.rounds // 2, 3 * arguments.rounds // 2 + 1)
    lengths = random.Random(0).choices(about, k=arguments.requests)
    prompt = tuple(range(PROMPT_TOKENS))
    requests = [TokenRequest(prompt, arguments.tokens * each, seed=index) for index, each in enumerate(lengths)]
    with engine(round_s, arguments.tokens) as url:
        clock = time.process_time()
        done = run_load(url, "ddbench", requests, ClosedLoop(arguments.in_flight), timeout_s=LIMIT_S, wire=wire)
        busy_s = time.process_time() - clock
        with urllib.request.urlopen(f"{url}/clocks") as answer:
            clocks: Clocks = json.load(answer)
    errors = [each.error for each in done.completions if each.error]
    if errors:
        raise SystemExit(f"{len(errors)} requests failed: {errors[0]}")
    wall_s = done.finish_s - done.start_s
    rate = sum(len(each.token_ids) for each in done.completions) / wall_s
    costs = {"processor": busy_s / wall_s, "tokens_per_s": rate, "binds_at": rate * wall_s / busy_s}
    if not round_s:
        return {"added": None, "delay_p50": None, "delay_p99": None, "idle": None, "beat": None, **costs}
    delays = sorted(delays_of(done, clocks))
    return {
        "added": statistics.mean(added_of(done, clocks)) / round_s,
        "delay_p50": delays[len(delays) // 2] / round_s,
        "delay_p99": delays[int(0.99 * len(delays))] / round_s,
        "idle": idle_of(clocks, arguments.in_flight),
        "beat": beat_of(clocks) / round_s,
        **costs,
    }


def added_of(done: LoadResult, clocks: Clocks) -> list[float]:
    """Seconds a round that each request took longer by the client's clocks than by the engine's."""
    added = []
    for index, each in enumerate(done.completions):
        sent, times = clocks["requests"][str(index)][1], each.chunk_times_s
        added.append(((times[-1] - times[0]) - (sent[-1] - sent[0])) / (len(sent) - 1))
    return added


def delays_of(done: LoadResult, clocks: Clocks) -> list[float]:
    """Seconds from each event's sending to the client's clock for it."""
    return [
        came - sent
        for index, each in enumerate(done.completions)
        for came, sent in zip(each.chunk_times_s, clocks["requests"][str(index)][1], strict=True)
    ]


def idle_of(clocks: Clocks, in_flight: int) -> float | None:
    """Share of the loop's places that were empty at a beat while requests were waiting; None if it never was full."""
    last_came_s = max(came_s for came_s, _ in clocks["requests"].values())
    full_s = next((at_s for at_s, count in clocks["beats"] if count == in_flight), None)
    if full_s is None:
        return None
    counts = [count for at_s, count in clocks["beats"] if full_s <= at_s <= last_came_s]
    return 1 - statistics.mean(counts) / in_flight if counts else 0.0


def beat_of(clocks: Clocks) -> float:
    """Mean seconds between two rounds of the engine."""
    begun = [at_s for at_s, _ in clocks["beats"]]
    return float((begun[-1] - begun[0]) / (len(begun) - 1))


@contextmanager
def engine(round_s: float, tokens: int) -> Iterator[str]:
    """Its address, once it answers."""
    port = free_port()
    command = [sys.executable, str(ENGINE), str(port), "--round-ms", str(1000 * round_s), "--tokens", str(tokens)]
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--round-ms", type=float, nargs="+", default=[20.0, 10.0, 5.0, 0.0], help="0: at once")
    parser.add_argument("--tokens", type=int, default=4, help="tokens of an event")
    parser.add_argument("--rounds", type=int, default=100, help="of a request")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wire", nargs="+", choices=sorted(WIRES), default=sorted(WIRES))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
