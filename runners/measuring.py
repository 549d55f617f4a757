"""Drives an engine that is a server: one an arm, started when its first cell comes, asked over HTTP, then counted."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ddbench.records import Arm, Cell
from runners import completions, gaps, pairs
from runners.base import CellJob, CellOutcome, EngineFailure, ModelFiles, Prompt, ServerSpec
from runners.client import Completion
from runners.completions import Wire
from runners.counts import SpecCounters, Tally
from runners.devices import gpus_of
from runners.engine_log import LogWatch, last_lines, read_tail
from runners.hosts import LOCAL, host_of
from runners.hosts.shipping import model_there
from runners.judge import Expected, judge
from runners.load import GONE, ClosedLoop, LoadResult, OpenLoop, run_load
from runners.prompts import Tokenized, lengths
from runners.rows import Sent, cut_short, request_rows, requests_of, round_rows
from runners.server import Server
from runners.serving import AnyServer, Serving
from runners.tables import write_rows
from runners.telemetry import Telemetry, open_source, wait_until_cool
from runners.telemetry.late import late_client
from runners.telemetry.outcome import noted
from runners.warmup import Warmup, warm_up

WARMUP_S = 120.0  # a new pass of the warm-up begins no later
DYING_S = 30.0
NOTES = "engine.json"  # of a cell: how its server was started, and what it counted


class ServerRunner(ABC):
    """See :class:`runners.base.Runner`. A cell whose engine dies is failed; the next one starts a server again.

    ``compiling``: lines of the server's log that tell of a compilation. ``wire``: how requests are put.
    """

    name: str
    compiling: str
    wire: Wire = completions

    def __init__(self, spec: ServerSpec) -> None:
        assert spec.server is not None
        self.spec, self.options = spec, spec.server
        self._serving: Serving | None = None
        self.host = host_of(spec.host or LOCAL)
        self._scratch: Path | None = None
        self._gpu: str | None = None

    def start(self) -> dict[str, Any]:
        self.stop()
        if self.options.url is None:
            self.host.claim_port(self.options.port)  # nothing holds it until a server starts, which then looks again
        facts = self.look()
        self._scratch = Path(tempfile.mkdtemp(prefix=f"ddbench-{self.name}-"))
        try:
            model = pairs.materialised(self.spec, self._scratch)
            self._asked = pairs.prompts(self.spec, model)
        except BaseException:
            self.stop()
            raise
        self._serving = self.serving(model_there(self.host, model), self._scratch)
        return {**facts, "prompt_tokens": lengths(self._asked.prompts)}

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        if self._serving is None:
            self.start()
        serving = self._serving
        assert serving is not None
        try:
            server = serving.server_for(job.cell.arm)
            return self._measure(serving, server, job, on_progress)
        except EngineFailure as failure:
            serving.end()
            return CellOutcome("failed", serving.tidy(str(failure)), self._gpu, kind=failure.kind)
        finally:
            serving.keep_log(job.folder)

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        warmup = self.spec.warmup if warmup is None else warmup
        self._asked = self._asked.with_prompts(prompts, warmup)
        self.spec = replace(self.spec, prompts=prompts, warmup=warmup)
        return {"prompt_tokens": lengths(self._asked.prompts)}

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        return self._asked.texts(token_ids)

    def stop(self) -> None:
        if self._serving is not None:
            self._serving.end()
            self._serving = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    @abstractmethod
    def look(self) -> dict[str, Any]:
        """Looks at what there is to run on, the engine's environment or a server that runs already; facts of it.

        Raises:
            ConfigError: an environment, or a server, that cannot be used.
        """

    @abstractmethod
    def serving(self, model: ModelFiles, scratch: Path) -> Serving:
        """What starts the servers."""

    @abstractmethod
    def drafted(self, arm: Arm, model: ModelFiles) -> int:
        """Tokens that a round of an arm drafts, 0 for autoregressive decoding."""

    def tells_drafted(self, arm: Arm, model: ModelFiles) -> bool:
        """Whether the engine's number of drafted tokens is that of the nodes that an arm's trees had."""
        return True

    def doubts(self, serving: Serving, server: AnyServer, arm: Arm) -> list[str]:
        """What was seen of the server of a measured cell that makes it suspect."""
        return []

    @abstractmethod
    def empty_cache(self, server: Server, arm: Arm) -> None:
        """So that no cell finds the prompts of an earlier one in the prefix cache. Raises EngineFailure."""

    @abstractmethod
    def counters(self, server: AnyServer) -> SpecCounters | None:
        """The server's own totals since its start; None where it keeps none. Raises EngineFailure."""

    @abstractmethod
    def count(self, completions: Sequence[Completion], drafted: int, totals: SpecCounters | None) -> Tally:
        """Rounds and accepted tokens of every request. ``totals``: what the server counted meanwhile."""

    def describe(self, server: AnyServer) -> dict[str, Any]:
        """Further facts of a server for the notes of a cell."""
        return {}

    def _measure(
        self, serving: Serving, server: AnyServer, job: CellJob, on_progress: Callable[[int, int], None]
    ) -> CellOutcome:
        """Warms up, measures, counts and writes one cell. Raises EngineFailure when the server is gone."""
        cell, watched = job.cell, self.spec.telemetry
        wanted = cell.arm.flags.get("tensor_parallel") or 1
        gpus = gpus_of(self.spec.device, wanted, self.spec.host) if server.pid is not None else ()
        start = wait_until_cool([open_source(gpu, self.host) for gpu in gpus], watched)
        warm = self._warm_up(serving, server, job)
        if warm.failed:
            _check_after_errors(server)
            return CellOutcome("failed", warm.problem, self._gpu)
        if isinstance(server, Server):
            self.empty_cache(server, cell.arm)
        sent = [
            each
            for repeat in range(cell.repeats)
            for each in self._requests(cell, self._asked.prompts, repeat, cell.max_new_tokens)
        ]
        before = self.counters(server)
        with Telemetry(gpus, watched.interval_s, server.pid, self.host) as telemetry:
            result = self._load(serving, server, cell, sent, on_progress)
        if any(each.error for each in result.completions):
            _check_after_errors(server)
        if result.ended is not None:
            serving.end()  # what it still computes is nobody's
            outcome = CellOutcome("failed", cut_short(result.completions, result.ended), self._gpu)
            return replace(outcome, kind="lost") if result.ended.startswith(GONE) else outcome
        after = self.counters(server)
        counted_there = None if before is None or after is None else after.since(before)
        drafted = self.drafted(cell.arm, serving.model)
        counted = self.count(result.completions, drafted, counted_there)
        if not self.tells_drafted(cell.arm, serving.model):
            counted = counted.without_drafted()
        totals = counted.sums if counted_there is None else counted_there
        rounds = round_rows(cell, sent, counted)
        rows = request_rows(cell, sent, result, counted)
        expected = Expected(drafted, fewer=cell.arm.min_log_prob is not None)
        status, reason = judge(expected, result.completions, counted, counted_there)
        peak = _peak_gib(telemetry, server, bool(gpus))
        note = self._add_gaps(serving, server, cell, sent, rows) if gaps.wanted(self.spec, cell) else None
        samples = telemetry.samples + result.lag.samples(watched.interval_s)
        write_rows(job.folder, cell, rows, rounds, samples)
        notes = {
            **serving.facts,
            **self.describe(server),
            "warmup": asdict(warm),
            "counters": asdict(totals),
            "counted_by": counted.source,
            "last_rounds_dealt": counted.guessed,
            "peak_in_flight": result.peak_in_flight,
            "client_lag_ms": result.lag.described(),
            "gaps": note,
        }
        (job.folder / NOTES).write_text(json.dumps(notes, indent=2) + "\n", encoding="utf-8")
        serving.say(
            f"{len(warm.step_s)} warm-up passes in {warm.seconds:.3f} s{f' ({warm.problem})' if warm.problem else ''}; "
            f"{len(sent)} requests, {cell.batch_size} in flight, in {result.finish_s - result.start_s:.3f} s"
        )
        late = late_client(result, watched.client_lag_rounds)
        doubts = self.doubts(serving, server, cell.arm)
        return noted(CellOutcome(status, reason, self._gpu, peak, serving.plugin), start, late, *doubts)

    def _add_gaps(
        self, serving: Serving, server: AnyServer, cell: Cell, sent: list[Sent], rows: list[dict[str, Any]]
    ) -> str:
        """Repeats the first repeat's requests and puts ``output_gaps`` into their rows; returns what came of it.

        The measurement stands whatever happens here: where the server goes, the next cell starts another.
        """
        first = [index for index, each in enumerate(sent) if each.repeat == 0]
        asked = [replace(sent[index], request=replace(sent[index].request, gaps=True)) for index in first]
        again = self._send(serving, server, asked, ClosedLoop(cell.batch_size), None)
        if again.ended is not None:
            serving.end()
        for index, done in zip(first, again.completions, strict=True):
            if done.error is None:
                rows[index]["output_gaps"] = gaps.of_another_run(
                    rows[index]["output_token_ids"], done.token_ids, done.gaps
                )
        known = sum(rows[index].get("output_gaps") is not None for index in first)
        errors = [each.error for each in again.completions if each.error]
        return f"{known} of {len(first)} outputs" + (f"; {errors[0]}" if errors else "")

    def _warm_up(self, serving: Serving, server: AnyServer, job: CellJob) -> Warmup:
        """On prompts that are not measured, at the cell's concurrency, until the steps are steady."""
        batch, warm = job.cell.batch_size, self._asked.warmup
        items = [warm[index % len(warm)] for index in range(batch)]
        sent = self._requests(job.cell, items, 0, job.warmup_tokens)
        watch = LogWatch(serving.log, self.compiling).seen if serving.log is not None else list
        return warm_up(
            lambda: self._progressed(serving, self._send(serving, server, sent, ClosedLoop(batch), None)),
            watch,
            max_s=min(WARMUP_S, self.spec.timeout_s),
        )

    def _load(
        self,
        serving: Serving,
        server: AnyServer,
        cell: Cell,
        sent: list[Sent],
        on_progress: Callable[[int, int], None],
    ) -> LoadResult:
        done = 0

        def finished(*_: object) -> None:
            nonlocal done
            done += 1
            on_progress(done, len(sent))

        rate, batch = self.options.rate, cell.batch_size
        load = ClosedLoop(batch) if rate is None else OpenLoop(rate, cell.seed + cell.block, batch)
        return self._progressed(serving, self._send(serving, server, sent, load, finished))

    def _progressed(self, serving: Serving, result: LoadResult) -> LoadResult:
        """The result of a load in which the server went on to give tokens. Raises EngineFailure if it hung."""
        if result.stalled:
            last = "" if serving.log is None else f"; its last lines: {last_lines(read_tail(serving.log))}"
            raise EngineFailure(f"the engine hangs: {result.ended}{last}", "hang")
        return result

    def _send(
        self,
        serving: Serving,
        server: AnyServer,
        sent: list[Sent],
        load: ClosedLoop | OpenLoop,
        on_finish: Callable[..., None] | None,
    ) -> LoadResult:
        return run_load(
            server.base_url,
            serving.model_name,
            [each.request for each in sent],
            load,
            timeout_s=self.spec.timeout_s,
            limit_s=self.spec.timeout_s,
            stall_s=self.spec.stall_s,
            alive=server.alive,
            on_finish=on_finish,
            wire=self.wire,
        )

    def _requests(self, cell: Cell, items: list[Tokenized], repeat: int, new_tokens: int) -> list[Sent]:
        return requests_of(cell, items, repeat, new_tokens, self._asked.stop_ids, self.spec.ignore_eos)


def _check_after_errors(server: AnyServer) -> None:
    """After requests that failed: raises EngineFailure if the server is dead or dying.

    When an engine's process dies, its HTTP process may answer for a while, and the log tells the cause a little later.
    """
    deadline = time.monotonic() + DYING_S
    while isinstance(server, Server) and server.alive() and not server.healthy():
        if time.monotonic() > deadline:
            raise EngineFailure("the server is up but not healthy", "hang")
        time.sleep(0.2)
    server.check()


def _peak_gib(telemetry: Telemetry, server: AnyServer, gpu: bool) -> float | None:
    """Most memory seen: of the GPU, whoever used it, else of the server's processes; None for a server elsewhere."""
    if not gpu:
        return telemetry.peak_rss_gib if server.pid is not None else None
    return max((value for _, name, value in telemetry.samples if name == "gpu_memory_gib"), default=None)
