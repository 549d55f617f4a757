"""Step costs of the reference engine: every step of the grid in turns, in this process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ddbench.cost import Point
from ddbench.decoding.pair import ModelPair
from ddbench.errors import ConfigError
from experiments.engines import engine_of
from experiments.models import resolve
from experiments.progress import counted, duration, say
from experiments.settings import Settings
from experiments.step_cost.fingerprint import fingerprint
from experiments.step_cost.grid import Step, grid
from experiments.step_cost.measured import Measured, Points
from experiments.step_cost.pinned import Timed, prefill_ms, timed_steps
from experiments.step_cost.settings import StepCostSettings
from runners.base import ServerSpec
from runners.machine import machine_facts

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
WARM_STEPS = 2

Turn = dict[Step, Timed]


def measure(settings: Settings, asked: StepCostSettings, save: Callable[[Measured], None]) -> Measured:
    """Measures the whole grid; ``save`` gets what there is after every turn.

    Raises:
        ConfigError: a model that cannot be loaded, a step that it cannot do, or CUDA graphs, of whose rounds none is
            timed here.
    """
    from runners.worker import Engine

    if settings.engine.flags.get("cuda_graphs"):
        raise ConfigError("engine.flags.cuda_graphs", True, "false: steps of the reference engine are timed without")
    steps = grid(settings, asked)
    engine = Engine(_spec(settings))
    setup = fingerprint(
        "reference",
        engine_of("reference").version(settings),
        engine.build,
        engine.gpu,
        machine_facts()["cpu"],
        settings.model,
        {**settings.engine.flags, "dtype": settings.engine.dtype, "threads": settings.engine.threads},
        asked.clock,
    )
    source = {
        "how": "measured",
        "accepted": f"pinned at {asked.accepted} a round, less where a tree is less deep",
        "weights": "of the model, which decide nothing here" if settings.model.kind == "checkpoint" else "random",
    }

    def saved(points: Points) -> Measured:
        found = Measured(setup, points, source)
        save(found)
        return found

    return saved(in_turns(engine.pair, steps, asked, settings.seed, saved))


def in_turns(
    pair: ModelPair, steps: Sequence[Step], asked: StepCostSettings, seed: int, save: Callable[[Points], Any]
) -> Points:
    """The points of ``steps``, measured forwards and backwards by turns so that a drift falls on all alike."""
    text = random_text(pair, steps, seed)
    began = time.perf_counter()
    turn(pair, steps, text, WARM_STEPS, asked.accepted, CLOCKS[asked.clock])
    say(f"warmed up {counted(len(steps), 'point')} in {duration(time.perf_counter() - began)}")
    turns: list[Turn] = []
    for number in range(asked.repeats):
        order = steps if number % 2 == 0 else steps[::-1]
        turns.append(turn(pair, order, text, asked.steps, asked.accepted, CLOCKS[asked.clock]))
        say(f"turn {number + 1} of {asked.repeats} after {duration(time.perf_counter() - began)}")
        if number + 1 < asked.repeats:
            save(points_of(turns))
        if asked.limit_s is not None and time.perf_counter() - began > asked.limit_s * (number + 1) / (number + 2):
            say(f"another turn would go beyond step_cost.limit_s={asked.limit_s:g}: {number + 1} of {asked.repeats}")
            break
    return points_of(turns)


def random_text(pair: ModelPair, steps: Sequence[Step], seed: int) -> list[int]:
    """Tokens for the longest prompt of all."""
    vocabulary = int(pair.target.get_input_embeddings().weight.shape[0])
    draws = random.Random(seed)
    return [draws.randrange(vocabulary) for _ in range(max(step.verify_width + step.context for step in steps))]


def turn(
    pair: ModelPair,
    steps: Sequence[Step],
    text: Sequence[int],
    count: int,
    accepted: int,
    clock: Callable[[], float],
) -> Turn:
    """Each of ``steps`` once, over ``count`` steps."""
    return {step: _once(pair, step, text, count, accepted, clock) for step in steps}


def _spec(settings: Settings) -> ServerSpec:
    """The engine without a prompt: those of a step cost are random tokens."""
    roles = ["target", "dflash"] if settings.model.dflash is not None else ["target"]
    files, _ = resolve(settings.model, roles)
    return ServerSpec(
        model=files,
        device=settings.engine.device,
        dtype=settings.engine.dtype,
        threads=settings.engine.threads,
        template=settings.model.template,
        thinking=settings.model.thinking,
        context_length=settings.model.context_length,
        ignore_eos=True,
        prompts=(),
        warmup=(),
        max_new_tokens=settings.load.max_new_tokens,
        timeout_s=settings.engine.timeout_s,
    )


def _once(
    pair: ModelPair, step: Step, text: Sequence[int], steps: int, accepted: int, clock: Callable[[], float]
) -> Timed:
    if step.kind == "prefill":
        return Timed(prefill_ms(pair, step.strategy, text[: step.verify_width], clock), None, 0.0, 0.0)
    lengths = spread_lengths(step.context, step.batch)
    prompts = [[*text[number % len(text) :], *text, *text][:length] for number, length in enumerate(lengths)]
    return timed_steps(pair, step.strategy, prompts, steps, accepted, clock)


def spread_lengths(context: int, batch: int) -> list[int]:
    """Lengths of the prompts of a batch, from half of ``context`` to one and a half: in use they differ, too, and an
    engine that pads pays for the longest, and for rows that do not end together."""
    if batch == 1:
        return [context]
    return [max(1, round(context * (0.5 + place / (batch - 1)))) for place in range(batch)]


def points_of(turns: Sequence[Turn]) -> Points:
    """Medians over turns."""
    points: Points = {}
    for step in turns[0]:
        timed = [each[step] for each in turns]
        values = [each.ms for each in timed]
        parts = [each.stages for each in timed if each.stages is not None]
        point = Point(
            step.verify_width,
            step.batch,
            round(median(each.context for each in timed), 2),
            round(median(values), 5),
            round(min(values), 5),
            round(max(values), 5),
            len(values),
            {name: round(median(part[name] for part in parts), 5) for name in parts[0]} if parts else None,
        )
        points.setdefault(step.kind, []).append(point)
    return points
