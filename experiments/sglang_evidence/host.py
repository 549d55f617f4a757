"""Where the host's time of a round goes, for a pair so small that the GPU waits for the host.

Each arm alone with its profile: Python's own profiler around ``ROUNDS`` steps of the scheduler's process, whatever the
strategy. It makes the host slower, so its shares count and not its milliseconds; these are measured without it.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.evidence.timing import kept
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.inside import DUMP
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.timing import step_ms
from experiments.sglang_evidence.tiny_checks import pair_of
from experiments.sglang_evidence.turns import ratios, take_turns

SKIPPED, ROUNDS = 40, 200  # steps before the profile begins, and in it
ANSWERS = 12  # at most, until a profile is there
SHOWN = 40  # functions, of the largest own time
REPEATS, TOKENS = 9, 512
ARMS = (
    Arm("autoregressive"),
    Arm("dflash", "dflash", 15),
    Arm("ddtree_15", "ddtree", 15),
    Arm("ddtree_63", "ddtree", 63),
)
PROFILED = "_profiled"


def measure(job: Job) -> dict[str, Any]:
    """Milliseconds a step of each arm at batch 1, their ratios to the chain's turn by turn, and the profile of the same
    arm in an engine of its own."""
    job.logs.mkdir(parents=True, exist_ok=True)
    plain = [arm for arm in ARMS if job.arms is None or arm.name in job.arms]
    dumps = {arm.name: (job.logs / f"{arm.name}_profile.json").resolve() for arm in plain}
    for dump in dumps.values():
        dump.unlink(missing_ok=True)
    profiled = [
        replace(arm, name=arm.name + PROFILED, hooks=("host_profile",), env={DUMP: str(dumps[arm.name])})
        for arm in plain
    ]
    batches = job.batches or [1]
    result: dict[str, Any] = {"asked": [arm.name for arm in plain], "step_ms": {}, "ratio_vs_dflash": {}, "profile": {}}
    pair, arms = pair_of(job.assets, "bfloat16"), [*plain, *profiled]
    with Fleet(job.python, pair, arms, batches, job.logs, start_s=job.limit_s, own_core=True) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        result["cores"] = fleet.cores()
        for batch in batches:
            timed = partial(step_ms, prompts=job.prompts[:batch], length=TOKENS)
            names = [arm.name for arm in plain if arm.name in fleet.engines]
            values = take_turns(fleet, names, timed, REPEATS)
            result["step_ms"][batch] = {name: kept(found) for name, found in values.items()}
            against = [name for name in values if name != "dflash" and "dflash" in values]
            result["ratio_vs_dflash"][batch] = {name: kept(ratios(values, name, "dflash")) for name in against}
            for kind, unit in (("step_ms", "ms a step"), ("ratio_vs_dflash", "of the chain's")):
                medians = {name: row["median"] for name, row in result[kind][batch].items()}
                say(f"batch {batch}: {medians} {unit}")
            job.save(result)
        for arm in profiled:
            dump = dumps[arm.name.removesuffix(PROFILED)]
            engine = fleet.engines.get(arm.name)
            if engine is not None and not _written(engine, dump, job.prompts[: batches[0]]):
                fleet.failed[arm.name] = f"{arm.name}: wrote no profile in {ANSWERS} answers"
    for name, dump in dumps.items():
        if dump.exists():
            result["profile"][name] = found = json.loads(dump.read_text())
            say(f"{name}: {found['ms_a_step']:.3f} ms a step under the profiler")
            for row in found["functions"][:12]:
                say(f"  {row['own_us']:8.1f} us  {row['calls']:6.1f} calls  {row['name']}")
    return result


def _written(engine: Engine, dump: Path, prompts: list[list[int]]) -> bool:
    """Answers until the engine has seen as many steps as a profile takes; a speculative step emits several tokens."""
    for _ in range(ANSWERS):
        step_ms(engine, prompts, TOKENS)
        if dump.exists():
            return True
    return False


def install() -> None:
    """Inside the engine: profiles steps of the scheduler that decode, and writes what they cost to ``DUMP``."""
    from sglang.srt.managers.scheduler import Scheduler

    watch = Watch(Path(os.environ[DUMP]))
    Scheduler.get_next_batch_to_run = watch.around(Scheduler.get_next_batch_to_run)


class Watch:
    """Python's profiler, on from one batch that decodes to the next, ``ROUNDS`` times after the first ``SKIPPED``.

    All of the scheduler's loop is in it, but for prefills and for the time between answers, when nothing is to be run.
    """

    def __init__(self, dump: Path) -> None:
        self._dump, self._profile = dump, cProfile.Profile()
        self._skipped = self._rounds = 0
        self._seconds = 0.0
        self._began: float | None = None  # of the step that is watched

    def around(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """``stock`` returns a plan with the batch that the scheduler is to run now, or None in its place."""

        def next_plan(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            plan = stock(scheduler, *args, **kwargs)
            self._end()
            batch = plan.batch_to_run
            if batch is not None and batch.forward_mode.is_decode() and self._rounds < ROUNDS:
                self._begin()
            return plan

        return next_plan

    def _begin(self) -> None:
        self._skipped += 1
        if self._skipped > SKIPPED:
            self._began = time.perf_counter()
            self._profile.enable()

    def _end(self) -> None:
        if self._began is None:
            return
        self._profile.disable()
        self._seconds += time.perf_counter() - self._began
        self._began = None
        self._rounds += 1
        if self._rounds == ROUNDS:
            self._dump.write_text(json.dumps(_told(self._profile, self._seconds)))


def _told(profile: cProfile.Profile, seconds: float) -> dict[str, Any]:
    """Per step: calls, own and cumulated microseconds of the functions that took the most time of their own."""
    rows = []
    for (file, line, name), (_, calls, own, total, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        where = "/".join(Path(file).parts[-2:]) + f":{line} " if line else ""
        figures = {"calls": calls / ROUNDS, "own_us": own / ROUNDS * 1e6, "all_us": total / ROUNDS * 1e6}
        rows.append({"name": f"{where}{name}", **{key: round(value, 2) for key, value in figures.items()}})
    rows.sort(key=lambda row: -row["own_us"])
    inclusive = sorted(rows, key=lambda row: -row["all_us"])[: 2 * SHOWN]
    return {"ms_a_step": round(seconds / ROUNDS * 1e3, 4), "functions": rows[:SHOWN], "inclusive": inclusive}
