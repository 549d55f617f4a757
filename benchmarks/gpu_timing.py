"""Time of launches on a GPU: on the device inside a captured graph, and on the host that enqueues them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def graph_ms(launches: list[Callable[[], Any]], replays: int = 15) -> float:
    """Median time of one launch within a captured graph of them, in milliseconds."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for launch in launches[:4]:
            launch()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    times = []
    for turn in range(replays + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if turn >= 2:
            times.append(begin.elapsed_time(end) / len(launches))
    return statistics.median(times)


def host_ms(enqueue: Callable[[], Any], turns: int = 200) -> float:
    """Median time that the host takes to enqueue; the device is idle each time, so that no queue is waited for."""
    times = []
    for _ in range(turns):
        torch.cuda.synchronize()
        clock = time.perf_counter()
        enqueue()
        times.append(time.perf_counter() - clock)
    return 1000 * statistics.median(times)
