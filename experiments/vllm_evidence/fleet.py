"""Several engines on one GPU: started side by side, since a start is mostly compilation, and measured one at a time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from experiments.vllm_evidence.arms import Arm, Pair, arguments
from runners.base import EngineFailure

ENGINE = Path(__file__).with_name("engine.py")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "OMP_NUM_THREADS": "1",
}


class Engine:
    """A running `engine.py`."""

    def __init__(self, arm: Arm, process: subprocess.Popen[str], log: Path) -> None:
        self.arm, self.log, self.facts = arm, log, dict[str, Any]()
        self._process = process

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer. Raises EngineFailure when the engine is gone."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer will say why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        stream: IO[str] | None = self._process.stdout
        assert stream is not None
        line = stream.readline()
        if not line:
            self._process.wait()
            last = self.log.read_text(errors="replace").strip().splitlines()[-30:]
            raise EngineFailure(f"{self.arm.name}: exit {self._process.returncode}; log {self.log}\n" + "\n".join(last))
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def loaded_gib(self) -> float | None:
        """GiB that target and drafter took when they were loaded, as the engine's log says."""
        found = re.search(r"Model loading took ([\d.]+) GiB", self.log.read_text(errors="replace"))
        return float(found[1]) if found else None

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Fleet:
    """Engines of some arms, by name, while in the context. One that does not start is in ``failed`` with its reason.

    ``gpus[i]`` is the index of the GPU of ``arms[i]``.
    """

    def __init__(
        self, python: str, pair: Pair, arms: Sequence[Arm], gpus: Sequence[int], batches: list[int], logs: Path
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.engines: dict[str, Engine] = {}
        self.failed: dict[str, str] = {}
        self.start_s = 0.0
        self._made: list[Engine] = []
        self._plan = [(arm, gpu, arguments(arm, pair, batches)) for arm, gpu in zip(arms, gpus, strict=True)]
        self._python, self._logs = python, logs

    def __enter__(self) -> Fleet:
        clock = time.perf_counter()
        for arm, gpu, settings in self._plan:
            log = self._logs / f"{arm.name}.log"
            own = {"CUDA_VISIBLE_DEVICES": str(gpu)} | ({} if arm.stock else {"VLLM_USE_V2_MODEL_RUNNER": "0"})
            if arm.in_process:
                own["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            process = subprocess.Popen(
                [self._python, str(ENGINE), json.dumps({"llm": settings})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log.open("w"),
                text=True,
                env=os.environ | ENVIRONMENT | own,
                start_new_session=True,
            )
            self._made.append(Engine(arm, process, log))
        for engine in self._made:
            try:
                engine.facts = engine.answer()
                self.engines[engine.arm.name] = engine
            except EngineFailure as failure:
                self.failed[engine.arm.name] = str(failure)
        self.start_s = time.perf_counter() - clock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in self._made:
            engine.end()
