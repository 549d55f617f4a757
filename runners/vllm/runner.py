"""Drives vLLM: a server an arm, started when its first cell comes, asked over HTTP, counted by its own metrics."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ddbench.records import Cell
from runners import gaps
from runners.base import CellJob, CellOutcome, EngineFailure, Prompt, ServerSpec
from runners.engine_log import LogWatch
from runners.load import ClosedLoop, LoadResult, OpenLoop, run_load
from runners.ports import claim_port
from runners.prompts import Tokenized, lengths
from runners.server import Server
from runners.tables import write_rows
from runners.telemetry import Telemetry
from runners.vllm import attached, pairs
from runners.vllm.command import drafted_tokens
from runners.vllm.counts import tally
from runners.vllm.devices import gpus_of
from runners.vllm.judge import Expected, judge
from runners.vllm.metrics import scrape
from runners.vllm.probe import Environment, check_plugin, probe
from runners.vllm.rows import Sent, cut_short, request_rows, requests_of, round_rows
from runners.vllm.serving import AnyServer, Serving
from runners.vllm.versions import Capabilities, capabilities, cpu_fault, untried
from runners.warmup import Warmup, warm_up

COMPILING = r"JIT compil|[Cc]ompiling|torch\.compile|[Aa]utotun"
WARMUP_S = 120.0  # a new pass of the warm-up begins no later
DYING_S = 30.0
NOTES = "engine.json"  # of a cell: how its server was started, and what it counted


class VllmRunner:
    """See :class:`runners.base.Runner`. A cell whose engine dies is failed; the next one starts a server again."""

    def __init__(self, spec: ServerSpec) -> None:
        assert spec.server is not None
        self.spec, self.options = spec, spec.server
        self._serving: Serving | None = None
        self._scratch: Path | None = None
        self._gpu: str | None = None

    def start(self) -> dict[str, Any]:
        self.stop()
        if self.options.url is None:
            claim_port(self.options.port)  # nothing holds it until a server starts, which then looks again
        environment, able, facts = self._look()
        self._scratch = Path(tempfile.mkdtemp(prefix="ddbench-vllm-"))
        try:
            model = pairs.materialised(self.spec, self._scratch)
            self._asked = pairs.prompts(self.spec, model)
        except BaseException:
            self.stop()
            raise
        self._serving = Serving(self.spec, environment, able, model, self._scratch)
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
            return CellOutcome("failed", serving.tidy(str(failure)), self._gpu)
        finally:
            serving.keep_log(job.folder)

    def ask(self, prompts: tuple[Prompt, ...]) -> dict[str, Any]:
        self._asked = self._asked.with_prompts(prompts)
        self.spec = replace(self.spec, prompts=prompts)
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

    def _look(self) -> tuple[Environment | None, Capabilities, dict[str, Any]]:
        """What there is to run on: the engine's environment, or a server that runs already."""
        options, device = self.options, self.spec.device
        if options.url is not None:
            version = attached.version_at(options.url)
            able, environment = capabilities(version), None
            facts: dict[str, Any] = {"engine_url": options.url}
        else:
            environment = probe(options.python, device, gpus=device != "cpu")
            if "ddtree" in options.strategies:
                check_plugin(environment)
            version, able = environment.version, environment.capabilities
            index = int(device.partition(":")[2] or 0)
            self._gpu = environment.gpus[index] if environment.gpus else None
            facts = {"engine_environment": environment.facts, "engine_gpu": self._gpu}
        warnings = [untried(version), cpu_fault(device, options.strategies)]
        warning = "; ".join(each for each in warnings if each) or None
        return environment, able, facts | {"engine_counting": able.counting, "engine_warning": warning}

    def _measure(
        self, serving: Serving, server: AnyServer, job: CellJob, on_progress: Callable[[int, int], None]
    ) -> CellOutcome:
        """Warms up, measures, counts and writes one cell. Raises EngineFailure when the server is gone."""
        cell = job.cell
        warm = self._warm_up(serving, server, job)
        if warm.failed:
            _check_after_errors(server)
            return CellOutcome("failed", warm.problem, self._gpu)
        if cell.arm.flags["prefix_cache"] and isinstance(server, Server):
            _empty_cache(server)
        sent = [
            each
            for repeat in range(cell.repeats)
            for each in self._requests(cell, self._asked.prompts, repeat, cell.max_new_tokens)
        ]
        gpus = gpus_of(self.spec.device, 1) if server.pid is not None else ()
        before = scrape(server.base_url)
        with Telemetry(gpus[0] if gpus else None, pid=server.pid) as telemetry:
            result = self._load(serving, server, cell, sent, on_progress)
        if any(each.error for each in result.completions):
            _check_after_errors(server)
        if result.ended is not None:
            serving.end()  # what it still computes is nobody's
            return CellOutcome("failed", cut_short(result.completions, result.ended), self._gpu)
        totals = scrape(server.base_url).since(before)
        drafted = drafted_tokens(cell.arm, serving.model)
        counted = tally(result.completions, drafted, totals)
        rounds = round_rows(cell, sent, counted)
        rows = request_rows(cell, sent, result, counted)
        expected = Expected(drafted, fewer=cell.arm.min_log_prob is not None)
        status, reason = judge(expected, result.completions, counted, totals)
        peak = _peak_gib(telemetry, server, bool(gpus))
        note = self._add_gaps(serving, server, cell, sent, rows) if gaps.wanted(self.spec, cell) else None
        write_rows(job.folder, cell, rows, rounds, telemetry.samples)
        notes = {
            **serving.facts,
            "warmup": asdict(warm),
            "counters": asdict(totals),
            "counted_by": counted.source,
            "last_rounds_dealt": counted.guessed,
            "peak_in_flight": result.peak_in_flight,
            "gaps": note,
        }
        (job.folder / NOTES).write_text(json.dumps(notes, indent=2) + "\n", encoding="utf-8")
        serving.say(
            f"{len(warm.step_s)} warm-up passes in {warm.seconds:.3f} s{f' ({warm.problem})' if warm.problem else ''}; "
            f"{len(sent)} requests, {cell.batch_size} in flight, in {result.finish_s - result.start_s:.3f} s"
        )
        return CellOutcome(status, reason, self._gpu, peak)

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
        watch = LogWatch(serving.log, COMPILING).seen if serving.log is not None else list
        return warm_up(
            lambda: self._send(serving, server, sent, ClosedLoop(batch), None),
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
        return self._send(serving, server, sent, load, finished)

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
            alive=server.alive,
            on_finish=on_finish,
        )

    def _requests(self, cell: Cell, items: list[Tokenized], repeat: int, new_tokens: int) -> list[Sent]:
        return requests_of(cell, items, repeat, new_tokens, self._asked.stop_ids, self.spec.ignore_eos)


def _check_after_errors(server: AnyServer) -> None:
    """After requests that failed: raises EngineFailure if the server is dead or dying.

    When vLLM's engine process dies, its HTTP process answers for a while, and the log tells the cause a little later.
    """
    deadline = time.monotonic() + DYING_S
    while isinstance(server, Server) and server.alive() and not server.healthy():
        if time.monotonic() > deadline:
            raise EngineFailure("the server is up but not healthy")
        time.sleep(0.2)
    server.check()


def _empty_cache(server: Server) -> None:
    """So that no cell finds the prompts of an earlier one in the prefix cache."""
    request = urllib.request.Request(f"{server.base_url}/reset_prefix_cache", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30):
            return
    except OSError as error:
        raise EngineFailure(f"the prefix cache cannot be emptied ({error})") from None


def _peak_gib(telemetry: Telemetry, server: AnyServer, gpu: bool) -> float | None:
    """Most memory seen: of the GPU, whoever used it, else of the server's processes; None for a server elsewhere."""
    if not gpu:
        return telemetry.peak_rss_gib if server.pid is not None else None
    return max((value for _, name, value in telemetry.samples if name == "gpu_memory_gib"), default=None)
