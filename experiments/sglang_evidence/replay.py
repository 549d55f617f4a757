"""Exact replay on a GPU engine: one recording, its replay, and the same shapes live on the same server.

A server of our plug-in, 63 nodes wide, records the texts of all prompts in rounds of the root alone, what the drafter
offers at each of their tokens with them. Each shape is then set by the limits of its trees and decoded live, its rounds
written too. Beside it stand stock autoregressive decoding, whose text the recorded one must be up to ties, and the
stock chain, whose histogram must be the replayed chain's where their texts are the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddbench.decoding import Strategy
from ddbench.plugins.sglang.dumps import ROOTS, ROUNDS, SUFFIX, rounds_of
from ddbench.plugins.sglang.options import RECORD, RECORD_NODES
from ddbench.replay.engine import SCORES, Incomplete, Live, Spoken, compare, trace_of
from ddbench.replay.shapes import replay
from ddbench.replay.trace import Key, TraceSet
from experiments.progress import say
from experiments.replay.check_sglang import limits_of, totalled
from experiments.sglang_evidence.arms import BLOCK, Arm
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.identity import Judge
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.tiny_checks import CHAIN, LENGTH, pair_of
from runners.base import EngineFailure

NODES, KEPT, BATCH = 63, 127, 32
SECONDS_LEFT = 15.0  # without as many left before the limit, a shape is not begun
DIFFERENCES, ODD = 5, 20  # of a shape that are stored: of those that scores explain, and of rounds they do not give
PLAIN, RECORDER = Arm("autoregressive"), Arm("recorder", "ddtree", NODES)
SHAPES = (
    *(Strategy("ddtree", width=width, nodes=nodes) for width in (None, 2) for nodes in (7, 15, 31, NODES)),
    *(Strategy("ddtree", depth=4, nodes=nodes) for nodes in (15, 31)),
    *(Strategy("ddtree", width=1, depth=depth, nodes=depth) for depth in (7, BLOCK - 1)),
    Strategy("ddtree", width=4, depth=8, nodes=24),
    Strategy("ddtree", nodes=31, force_spine=True),
)

Measured = dict[str, Any]


def measure(job: Job) -> Measured:
    """Totals over the shapes, and each of them; saved after every one."""
    began = time.perf_counter()
    folder = (job.logs / "rounds").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(f"*{SUFFIX}"):
        stale.unlink()
    batch = max(job.batches or [BATCH])
    recorder = replace(RECORDER, env={RECORD: str(folder), RECORD_NODES: str(KEPT)})
    arms = [each for each in (PLAIN, CHAIN, recorder) if job.arms is None or each.name in job.arms]
    if job.dtype == "float32":
        arms = [replace(each, hooks=("float32",)) for each in arms]
    gpus = [index % job.gpus for index in range(len(arms))]
    result: Measured = {"dtype": job.dtype, "batch": batch, "kept": KEPT, "skipped": []}
    with Fleet(job.python, pair_of(job.assets, job.dtype), arms, [batch], job.logs, gpus, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        job.save(result)
        engine = fleet.engines.get(recorder.name)
        if engine is None:
            return result
        clock = time.perf_counter()
        outputs, traces = _recorded(engine, job, batch)
        result |= {"record_seconds": round(time.perf_counter() - clock, 2), "anchors": traces.anchors}
        say(f"recorded {traces.anchors} anchors in {result['record_seconds']} s")
        clock = time.perf_counter()
        outcomes = replay(traces, SHAPES)
        result["replay_seconds"] = round(time.perf_counter() - clock, 3)
        result |= _beside(fleet, job, batch, outputs, traces)
        job.save(result)
        plain, rows = fleet.engines.get(PLAIN.name), list[Measured]()
        judge = None if plain is None else Judge(plain, job.dtype)
        for index, (shape, outcome) in enumerate(zip(SHAPES, outcomes, strict=True)):
            left = job.limit_s - (time.perf_counter() - began)
            if left < SECONDS_LEFT:
                result["skipped"].append(str(shape))
                continue
            seconds, lives = _live(engine, job, batch, shape, f"s{index}")
            try:
                row = {**compare(shape, traces, outcome, lives, job.dtype), "live_seconds": seconds}
            except Incomplete as error:
                result["failed"][str(shape)] = str(error)
                continue
            say(f"{shape}: {row['rounds']} rounds, {row['differing']} differ, {row['explained']} explained")
            try:
                rows.append(_kept(row) | ties(judge, job.prompts, traces, lives, row["odd"]))
            except EngineFailure as failure:
                judge, result["ties_failed"] = None, str(failure)[:500]
                rows.append(_kept(row))
            result |= {**totalled(rows), "shapes": rows}
            job.save(result)
    return result


def _kept(row: Measured) -> Measured:
    """A shape as it is stored: of its differences all that scores do not explain, and some of the others."""
    usual = [each for each in row["differences"] if each["by"] == SCORES][:DIFFERENCES]
    rest = [each for each in row["differences"] if each["by"] != SCORES]
    return {**row, "differences": [*rest, *usual], "odd": row["odd"][:ODD]}


def ties(
    judge: Judge | None,
    prompts: Sequence[Sequence[int]],
    traces: TraceSet,
    lives: Sequence[Live],
    odd: Sequence[Measured],
) -> Measured:
    """Are other texts ties, in outputs and behind them? By the log-probabilities of stock autoregressive decoding.

    Behind the end only a live round that went less far than the recorded text tells where the two texts part. Nothing
    without a judge. Raises EngineFailure when its engine is gone.
    """
    if judge is None:
        return {}
    outputs = [trace.output.tolist() for trace in traces.traces]
    found: Measured = {"other_texts": judge.compare(prompts, [list(live.output) for live in lives], outputs)}
    short = [each for each in odd if each["another_text"] and each["live"] < each["by_own_scores"]]
    if short:
        places = [int(each["prompt_id"]) for each in short]
        begins = [
            [*outputs[place], *traces.traces[place].tail.tolist()][: each["parts_at"]]
            for place, each in zip(places, short, strict=True)
        ]
        ours, theirs = (
            [[*begin, each[word]] for begin, each in zip(begins, short, strict=True)]
            for word in ("live_word", "recorded_word")
        )
        found["behind_end"] = judge.compare([prompts[place] for place in places], ours, theirs)
    return found


def _recorded(engine: Engine, job: Job, batch: int) -> tuple[list[list[int]], TraceSet]:
    """The texts of all prompts in rounds of the root alone, and their traces."""
    engine.ask(verb="state", values={"ddtree_record": ROOTS})
    params = {"temperature": 0.0, "max_new_tokens": LENGTH}
    said = _ask(engine, job.prompts, params, batch, "r")
    longer = [[*prompt, *tokens] for prompt, tokens in zip(job.prompts, said["tokens"], strict=True)]
    behind = {"temperature": 0.0, "max_new_tokens": BLOCK - 2, "ignore_eos": True}
    tails = _ask(engine, longer, behind, batch, "t")["tokens"]
    folder = job.logs.resolve() / "rounds"
    traces = []
    for place, (prompt, output, tail) in enumerate(zip(job.prompts, said["tokens"], tails, strict=True)):
        key = Key(str(place), 0, "shipped", "", 0, 0, 0.0)
        spoken = Spoken(key, len(prompt), said["finish"][place] or "length", tuple(output), tuple(tail))
        traces.append(trace_of(spoken, rounds_of(folder, f"r-{place}")))
    return said["tokens"], TraceSet.of(traces)


def _live(engine: Engine, job: Job, batch: int, shape: Strategy, name: str) -> tuple[float, list[Live]]:
    """Seconds and requests of one shape under the limits of the running server."""
    values = {f"ddtree_{key}": value for key, value in limits_of(shape).items()}
    engine.ask(verb="state", values={**values, "ddtree_record": ROUNDS})
    said = _ask(engine, job.prompts, {"temperature": 0.0, "max_new_tokens": LENGTH}, batch, name)
    folder = job.logs.resolve() / "rounds"
    lives = [
        Live(tuple(tokens), rounds_of(folder, f"{name}-{place}"), _bars(counts))
        for place, (tokens, counts) in enumerate(zip(said["tokens"], said["counts"], strict=True))
    ]
    for stale in folder.glob(f"{name}-*{SUFFIX}"):
        stale.unlink()
    return round(said["seconds"], 2), lives


def _bars(counts: Measured) -> tuple[int, ...] | None:
    found = counts.get("spec_correct_drafts_histogram")
    return None if found is None else tuple(found)


def _beside(fleet: Fleet, job: Job, batch: int, outputs: list[list[int]], traces: TraceSet) -> Measured:
    """The recorded text against stock autoregressive decoding, and the replayed chain against the stock chain."""
    params, found = {"temperature": 0.0, "max_new_tokens": LENGTH}, dict[str, Any]()
    plain, chain = fleet.engines.get(PLAIN.name), fleet.engines.get(CHAIN.name)
    try:
        if plain is not None:
            said = _ask(plain, job.prompts, params, batch, None)
            found["text"] = Judge(plain, job.dtype).compare(job.prompts, outputs, said["tokens"])
        if chain is not None:
            said = _ask(chain, job.prompts, params, batch, None)
            (outcome,) = replay(traces, [Strategy("dflash")])
            same = [place for place, tokens in enumerate(said["tokens"]) if tokens == outputs[place]]
            bars = [[int(each) for each in row] for row in outcome.histogram]
            told = [list(_bars(counts) or ()) for counts in said["counts"]]
            alike = sum(bars[place] == told[place] + [0] * (len(bars[place]) - len(told[place])) for place in same)
            found["stock_chain"] = {"same_text": len(same), "same_histogram": alike}
    except EngineFailure as failure:
        result: Measured = {**found, "beside_failed": str(failure)[:500]}
        return result
    return found


def _ask(
    engine: Engine, prompts: Sequence[Sequence[int]], params: Measured, batch: int, name: str | None
) -> dict[str, Any]:
    """Raises EngineFailure where a request failed."""
    names = {} if name is None else {"names": [f"{name}-{place}" for place in range(len(prompts))]}
    answer = engine.ask(prompts=prompts, params=params, in_flight=batch, **names)
    if answer["errors"]:
        raise EngineFailure(f"{engine.name}: {next(iter(answer['errors'].values()))}")
    return answer
