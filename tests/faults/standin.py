"""A sweep on a small engine server instead of the reference engine: ``python -m ddbench _target_=standin.run ...``.

All else is the real thing: the door, the plan, the run folder, claims, tries, the server's life cycle, the client.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import sweep
from experiments.engines import ENGINES
from experiments.engines.reference import ReferenceEngine
from experiments.hosts import reached
from experiments.settings import Settings
from runners.base import CellJob, CellOutcome, EngineFailure, Prompt, Runner, ServerSpec
from runners.client import Completion
from runners.completions import TokenRequest
from runners.hosts import LOCAL, host_of
from runners.load import ClosedLoop, run_load
from runners.server import Server, ServerCommand
from runners.tables import histogram, write_rows

SERVER = Path(__file__).with_name("standin_server.py")
STUBBORN = 2  # threads with which this engine ends by SIGKILL alone, a second after it is told to


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    ENGINES["reference"] = StandInEngine()
    return sweep.run(config, run_id)


class StandInEngine(ReferenceEngine):
    def version(self, settings: Settings) -> str:
        reached(settings.host)
        return "stand-in 1"

    def runner(self, spec: ServerSpec) -> Runner:
        return StandInRunner(spec)


class StandInRunner:
    """See :class:`runners.base.Runner`. The tables hold what came over the wire."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._server: Server | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="standin-")

    def start(self) -> dict[str, Any]:
        self.stop()
        delay_s = "20" if self.spec.dtype == "bfloat16" else "0"  # a precision that takes this engine long to load
        stubborn = ["stubborn"] if self.spec.threads == STUBBORN else []
        command = ServerCommand(
            [sys.executable, str(SERVER), "{port}", delay_s, *stubborn],
            start_timeout_s=self.spec.start_s,
            grace_s=1.0,
            name="the stand-in",
            host=host_of(self.spec.host or LOCAL),
        )
        self._server = Server.start(command, Path(self._scratch.name) / "server.log")
        return {"engine_threads": 1, "prompt_tokens": [len(prompt.turns[0]) for prompt in self.spec.prompts]}

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        server = self._server
        assert server is not None
        cell, depth = job.cell, job.cell.arm.depth or 0
        requests = [
            TokenRequest(tuple(prompt.turns[0].encode()), cell.max_new_tokens, top_k=depth)
            for prompt in self.spec.prompts
        ]
        result = run_load(
            server.base_url,
            "stand-in",
            requests,
            ClosedLoop(cell.batch_size),
            timeout_s=self.spec.timeout_s,
            stall_s=self.spec.stall_s,
            alive=server.alive,
        )
        server.copy_log(job.folder / "server.log")
        if result.stalled:
            raise EngineFailure(f"the engine hangs: {result.ended}", "hang")
        errors = [each.error for each in result.completions if each.error]
        if errors:
            server.check(patience_s=2.0)
            return CellOutcome("failed", errors[0], kind="lost")
        rows = [
            _row(job, prompt, done, result.start_s, depth)
            for prompt, done in zip(self.spec.prompts, result.completions, strict=True)
        ]
        write_rows(job.folder, cell, rows, None, [])
        return CellOutcome("ok", None)

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        self.spec = replace(self.spec, prompts=prompts)
        return {}

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        return [bytes(each % 256 for each in ids).decode("latin-1") for ids in token_ids]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


def _row(job: CellJob, prompt: Prompt, done: Completion, start_s: float, depth: int) -> dict[str, Any]:
    accepted = [count - 1 for count in done.chunk_tokens[1:]] if depth else []
    assert done.first_token_s is not None
    return {
        "cell_id": job.cell.cell_id,
        "block": job.cell.block,
        "prompt_id": prompt.id,
        "turn": 0,
        "dataset": prompt.dataset,
        "category": prompt.category,
        "repeat": 0,
        "seed": job.cell.seed,
        "prompt_tokens": len(done.request.prompt_ids),
        "output_tokens": len(done.token_ids),
        "rounds": len(accepted),
        "drafted": depth * len(accepted),
        "accepted": sum(accepted),
        "accepted_raw": sum(accepted),
        "accept_histogram": histogram(accepted),
        "start_s": done.start_s - start_s,
        "ttft_s": done.first_token_s - done.start_s,
        "latency_s": done.finish_s - done.start_s,
        "finish_reason": done.finish_reason,
        "cached_tokens": 0,
        "output_token_ids": list(done.token_ids),
        "error": None,
    }
