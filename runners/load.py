"""How requests are put to a server: a closed loop, or an open one with Poisson arrivals."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runners import completions
from runners.client import Client, Completion, not_sent
from runners.completions import TokenRequest, Wire
from runners.loop_lag import LoopLag

WATCH_S = 0.25
GONE = "the engine is gone"

OnFinish = Callable[[int, Completion], None]  # index of the request, its result; called as requests end


@dataclass(frozen=True)
class ClosedLoop:
    """``in_flight`` requests at any time: the next one enters as one ends."""

    in_flight: int


@dataclass(frozen=True)
class OpenLoop:
    """Arrivals at random, ``rate`` a second on average (exponential gaps, seeded), however long the answers take.

    ``max_in_flight``: an arrival beyond it waits for its turn; None: no limit. ``Completion.start_s`` is when a
    request was sent; :attr:`LoadResult.waits_s` holds how much later than its arrival that was.
    """

    rate: float
    seed: int
    max_in_flight: int | None = None


@dataclass(frozen=True)
class Watch:
    """What ends a run early; see :func:`run_load`."""

    alive: Callable[[], bool]
    limit_s: float | None
    stall_s: float | None


@dataclass(frozen=True)
class LoadResult:
    """Results in the order of the requests. Times are of ``time.perf_counter``, in seconds.

    ``ended``: why the run ended before its last request was sent or answered (the requests it cost have an ``error``);
    None for a whole run. ``stalled``: it ended since no token came. ``waits_s``: delay of each sent request behind its
    arrival, 0 in a closed loop.
    """

    completions: tuple[Completion, ...]
    waits_s: tuple[float, ...]
    start_s: float
    finish_s: float
    peak_in_flight: int
    ended: str | None = None
    stalled: bool = False
    lag: LoopLag = field(default_factory=LoopLag)  # of the client's event loop meanwhile


def arrivals(load: OpenLoop, count: int) -> list[float]:
    """Arrival times of ``count`` requests in seconds after the start, the first at 0: a Poisson process."""
    draws = random.Random(load.seed)
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + draws.expovariate(load.rate))
    return times[:count]


def run_load(
    base_url: str,
    model: str,
    requests: Sequence[TokenRequest],
    load: ClosedLoop | OpenLoop,
    *,
    timeout_s: float,
    limit_s: float | None = None,
    stall_s: float | None = None,
    alive: Callable[[], bool] = lambda: True,
    on_finish: OnFinish | None = None,
    wire: Wire = completions,
) -> LoadResult:
    """Sends all requests under ``load`` and waits for their ends.

    Args:
        timeout_s: for each request.
        limit_s: for the whole run, which then ends with what there is; None: no limit.
        stall_s: longest time without a token while requests are in flight; then the run ends too.
        alive: asked four times a second; once it says no, or a connection is refused, the run ends with what there is.
        on_finish: called between chunks of other streams, so it must be quick.
        wire: the language of the server.
    """
    return asyncio.run(
        _run(Client(base_url, model, timeout_s, wire), requests, load, Watch(alive, limit_s, stall_s), on_finish)
    )


async def _run(
    client: Client,
    requests: Sequence[TokenRequest],
    load: ClosedLoop | OpenLoop,
    watch: Watch,
    on_finish: OnFinish | None,
) -> LoadResult:
    async with client:
        run = _Run(client, requests, on_finish)
        watcher = asyncio.create_task(run.watch(watch))
        lag_watch = asyncio.create_task(run.lag.watch())
        try:
            await (run.closed(load) if isinstance(load, ClosedLoop) else run.open(load))
        finally:
            watcher.cancel()
            lag_watch.cancel()
    return run.result()


class _Run:
    """The state of one run: what has been sent, what has come, and why it ended early."""

    def __init__(self, client: Client, requests: Sequence[TokenRequest], on_finish: OnFinish | None) -> None:
        self._client, self._requests, self._on_finish = client, requests, on_finish
        self._results: list[Completion | None] = [None] * len(requests)
        self._waits_s: list[float] = [0.0] * len(requests)
        self._in_flight = self._peak = 0
        self._ended: str | None = None
        self._stalled = False
        self._over = asyncio.Event()
        self.lag = LoopLag()
        self._start_s = time.perf_counter()

    async def closed(self, load: ClosedLoop) -> None:
        waiting = iter(range(len(self._requests)))

        async def worker() -> None:
            for index in waiting:  # shared: each takes the next one that nobody has taken
                await self._send(index)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(load.in_flight, len(self._requests))):
                group.create_task(worker())

    async def open(self, load: OpenLoop) -> None:
        limit = load.max_in_flight or max(len(self._requests), 1)
        places = asyncio.Semaphore(limit)

        async def sent(index: int) -> None:
            await self._send(index)
            places.release()

        async with asyncio.TaskGroup() as group:
            for index, after_s in enumerate(arrivals(load, len(self._requests))):
                due_s = self._start_s + after_s
                await self._pause(due_s - time.perf_counter())
                await places.acquire()
                self._waits_s[index] = max(time.perf_counter() - due_s, 0.0)
                group.create_task(sent(index))

    async def watch(self, watch: Watch) -> None:
        chunks, since_s = 0, time.monotonic()
        while True:
            now_s, before = time.monotonic(), chunks
            chunks = self._client.chunks()
            if chunks != before or not self._in_flight:
                since_s = now_s
            if not watch.alive():
                await self._end(GONE)
            elif watch.limit_s is not None and time.perf_counter() - self._start_s > watch.limit_s:
                await self._end(f"not done within {watch.limit_s:g} s")
            elif watch.stall_s is not None and now_s - since_s > watch.stall_s:
                self._stalled = self._ended is None
                await self._end(f"no token for {watch.stall_s:g} s with {self._in_flight} requests in flight")
            await asyncio.sleep(WATCH_S)

    def result(self) -> LoadResult:
        now_s = time.perf_counter()
        pairs = zip(self._requests, self._results, strict=True)
        completions = tuple(found or not_sent(request, self._ended or GONE, now_s) for request, found in pairs)
        return LoadResult(
            completions, tuple(self._waits_s), self._start_s, now_s, self._peak, self._ended, self._stalled, self.lag
        )

    async def _send(self, index: int) -> None:
        if self._ended:
            return
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)
        completion = await self._client.complete(self._requests[index])
        self._in_flight -= 1
        self._results[index] = completion
        if completion.refused:
            await self._end(f"{GONE}: {completion.error}")
        elif self._on_finish is not None:
            self._on_finish(index, completion)

    async def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
            self._over.set()
            await self._client.abort(why)

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not beyond the end of the run."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), max(seconds, 0.0))
