"""Several engines on one GPU: started side by side, since a start is mostly compilation; asked together or in turn."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.evidence.child import Child
from experiments.evidence.places import VISIBLE, claimed_ports, visible_gpu
from experiments.progress import say
from experiments.sglang_evidence import cores
from experiments.sglang_evidence.arms import Arm, Pair, arguments, variables
from runners.base import EngineFailure

ENGINE = Path(__file__).with_name("engine.py")
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
INSIDE = "ddbench_inside = experiments.sglang_evidence.inside:install"
PLUGIN = "ddtree = ddbench.plugins.sglang.plugin:register"
START_S = 400.0


class Engine(Child):
    """A running `engine.py`."""

    def __init__(self, arm: Arm, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        super().__init__(arm.name, argv, environment, log)
        self.arm, self.facts = arm, dict[str, Any]()

    def ask(self, *, timeout_s: float | None = None, **request: Any) -> dict[str, Any]:
        """As of `Child`. Raises EngineFailure too when the engine could not do what it was asked."""
        answer = super().ask(timeout_s=timeout_s, **request)
        if "error" in answer:
            raise EngineFailure(f"{self.name}: {answer['error']}")
        return answer


class Fleet:
    """Engines of some arms, by name, while in the context. One that does not start is in ``failed`` with its reason.

    ``gpus[i]`` is the index of the GPU of ``arms[i]``, or of its first, among those that this program may see. Every
    engine has a port of its own, at which its processes meet. Starts are given ``start_s`` seconds together.
    ``own_core``: their schedulers share a core that all else of the fleet stays off, for engines that are timed one at
    a time; ``core`` is the one, or None. It is of no use to an engine of several ranks, which has several schedulers
    at a time: a fleet with one has no such core.
    """

    def __init__(
        self,
        python: str,
        pair: Pair,
        arms: Sequence[Arm],
        batches: list[int],
        logs: Path,
        gpus: Sequence[int] | None = None,
        start_s: float = START_S,
        own_core: bool = False,
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.engines: dict[str, Engine] = {}
        self.failed: dict[str, str] = {}
        self.start_s = 0.0
        self._made: list[Engine] = []
        self._held = ExitStack()
        self._limit_s, self._own_core = start_s, own_core and all(arm.ranks == 1 for arm in arms)
        self.core: int | None = None
        self._plan = list(zip(arms, gpus or [0] * len(arms), strict=True))
        self._python, self._pair, self._batches, self._logs = python, pair, batches, logs

    def __enter__(self) -> Fleet:
        clock = time.perf_counter()
        paths = search_path(self._python, self._logs)
        places = [",".join(visible_gpu(gpu + rank) for rank in range(arm.ranks)) for arm, gpu in self._plan]
        ports = self._held.enter_context(claimed_ports(len(self._plan)))
        if self._own_core:
            self.core = self._held.enter_context(cores.claimed())
        for (arm, _), place, port in zip(self._plan, places, ports, strict=True):
            settings = {"nccl_port": port} | arguments(arm, self._pair, self._batches)
            own = {VISIBLE: place, "PYTHONPATH": paths, **variables(arm, self._pair)}
            argv = [self._python, str(ENGINE), json.dumps({"engine": settings, "core": self.core})]
            self._made.append(Engine(arm, argv, ENVIRONMENT | own, self._logs / f"{arm.name}.log"))
        for engine in self._made:
            try:
                engine.facts = engine.answer(self._limit_s - (time.perf_counter() - clock))
                self.engines[engine.name] = engine
                say(f"{engine.name}: up after {time.perf_counter() - clock:.0f} s")
            except EngineFailure as failure:
                self.lose(engine, failure)
        self.start_s = time.perf_counter() - clock
        return self

    def cores(self) -> dict[str, Any]:
        """Hardware threads that all but the schedulers stay off, and the one that each engine's scheduler was given."""
        kept_off = [] if self.core is None else sorted(cores.hardware_threads(self.core))
        return {"kept_off": kept_off, "given": {name: engine.facts["core"] for name, engine in self.engines.items()}}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in self._made:
            engine.end()
        self._held.close()

    def lose(self, engine: Engine, failure: EngineFailure) -> None:
        """An engine that failed is told of, with the end of its log, ended, and asked no more: the others go on."""
        say(f"{engine.name} FAILED: {failure}")
        self.failed[engine.name] = str(failure)
        self.engines.pop(engine.name, None)
        engine.end()

    def ask_all(
        self, request: Callable[[Engine], dict[str, Any]], timeout_s: float | None = None
    ) -> dict[str, dict[str, Any]]:
        """The answers of all engines, asked at the same time, by name; those that fail are lost."""
        engines = dict(self.engines)
        if not engines:
            return {}
        with ThreadPoolExecutor(len(engines)) as pool:
            asked = {
                name: pool.submit(engine.ask, timeout_s=timeout_s, **request(engine))
                for name, engine in engines.items()
            }
        answers = {}
        for name, future in asked.items():
            try:
                answers[name] = future.result()
            except EngineFailure as failure:
                self.lose(engines[name], failure)
        return answers


def search_path(python: str, folder: Path) -> str:
    """``PYTHONPATH`` of engines: this checkout, `inside.py` as an entry point, and the plug-in if it is not installed.

    SGLang finds plug-ins by the entry points of distributions, so a folder with one is made.
    """
    code = "import importlib.metadata as m; print([e.value for e in m.entry_points(group='sglang.srt.plugins')])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    lines = [INSIDE] if "ddbench.plugins.sglang" in found else [INSIDE, PLUGIN]
    site = (folder / "entry_points").resolve()
    info = site / "ddbench_inside-0.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddbench-inside\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[sglang.srt.plugins]", *lines, ""]))
    return os.pathsep.join(filter(None, [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]))
