"""Several engines on one GPU: started side by side, since a start is mostly compilation, and measured one at a time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.evidence.child import Child
from experiments.evidence.places import VISIBLE, claimed_ports, visible_gpu
from experiments.vllm_evidence.arms import Arm, Pair, arguments
from runners.base import EngineFailure

ENGINE = Path(__file__).with_name("engine.py")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "OMP_NUM_THREADS": "1",
}


class Engine(Child):
    """A running `engine.py`."""

    def __init__(self, arm: Arm, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(arm.name, argv, environment, log)
        self.arm, self.facts = arm, dict[str, Any]()

    @property
    def loaded_gib(self) -> float | None:
        """GiB that target and drafter took when they were loaded, as the engine's log says."""
        found = re.search(r"Model loading took ([\d.]+) GiB", self.log_text())
        return float(found[1]) if found else None


class Fleet:
    """Engines of some arms, by name, while in the context. One that does not start is in ``failed`` with its reason.

    ``gpus[i]`` is the index of the GPU of ``arms[i]`` among those that this program may see. Every engine searches its
    ports from one of its own.
    """

    def __init__(
        self, python: str, pair: Pair, arms: Sequence[Arm], gpus: Sequence[int], batches: list[int], logs: Path
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.engines: dict[str, Engine] = {}
        self.failed: dict[str, str] = {}
        self.start_s = 0.0
        self._made: list[Engine] = []
        self._held = ExitStack()
        self._plan = [(arm, gpu, arguments(arm, pair, batches)) for arm, gpu in zip(arms, gpus, strict=True)]
        self._python, self._logs = python, logs

    def __enter__(self) -> Fleet:
        clock = time.perf_counter()
        places = [visible_gpu(gpu) for _, gpu, _ in self._plan]
        ports = self._held.enter_context(claimed_ports(len(self._plan)))
        for (arm, _, settings), place, port in zip(self._plan, places, ports, strict=True):
            log = self._logs / f"{arm.name}.log"
            own = {VISIBLE: place, "VLLM_PORT": str(port)} | ({} if arm.stock else {"VLLM_USE_V2_MODEL_RUNNER": "0"})
            if arm.in_process:
                own["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            argv = [self._python, str(ENGINE), json.dumps({"llm": settings})]
            self._made.append(Engine(arm, argv, ENVIRONMENT | own, log))
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
        self._held.close()
