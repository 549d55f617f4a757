"""Mixed requests under SGLang's strict memory checks, with aborts and retraction; and NaN in all rejected slots.

A pool too small for all requests makes the scheduler retract some; prompts are longer than a prefill chunk, share
prefixes in the radix cache, and more requests run than graphs were captured for.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from typing import Any

from experiments.evidence.identity import TIES
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.identity import Judge
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.tiny_checks import pair_of
from runners.base import EngineFailure

REQUESTS, RUNNING, ABORTED = 192, 24, 24
GRAPHS = [1, 4, 8]
SMALL_POOL, CHUNK = 4096, 128
STRICT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_IS_IN_CI": "1",
}
TIGHT = {
    "max_total_tokens": SMALL_POOL,
    "chunked_prefill_size": CHUNK,
    "schedule_conservativeness": 0.05,  # lets in more than the pool can hold to their ends
    "max_running_requests": RUNNING,
    "cuda_graph_bs_decode": GRAPHS,
}
ARMS = (
    Arm("autoregressive", extra={"max_running_requests": RUNNING}),
    Arm("dflash_stress", "dflash", 15, radix=True, extra=TIGHT, env=STRICT),
    Arm("ddtree_stress", "ddtree", 63, radix=True, extra=TIGHT, env=STRICT),
    Arm("ddtree_poison", "ddtree", 63, hooks=("poison",), extra={"max_running_requests": RUNNING}),
    Arm("ddtree_stress_poison", "ddtree", 31, radix=True, hooks=("poison",), extra=TIGHT, env=STRICT),
)
WHOLE = ("stop", "length")
JUDGED = ("share", "differences", "widest_gap_logits", "unexplained")
TROUBLE = re.compile(r"leak|AssertionError|Traceback|illegal memory|token_to_kv_pool|mem(?:ory)? check", re.IGNORECASE)


def measure(job: Job) -> dict[str, Any]:
    """Outputs of requests that ran to their end against autoregressive ones, and what the engines' logs say."""
    began = time.perf_counter()
    arms = [arm for arm in ARMS if job.arms is None or arm.name in ("autoregressive", *job.arms)]
    if job.dtype == "float32":
        arms = [replace(arm, hooks=("float32", *arm.hooks)) for arm in arms]
    prompts, params, aborted = mixed(job.prompts)
    result: dict[str, Any] = {"dtype": job.dtype, "requests": len(prompts), "aborted": len(aborted), "arms": {}}
    result |= {"threshold_logits": TIES[job.dtype], "asked": [arm.name for arm in arms]}
    pair = pair_of(job.assets, job.dtype)
    with Fleet(job.python, pair, arms, [1, 8, RUNNING], job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        request = {"prompts": prompts, "params": params, "in_flight": 2 * RUNNING}
        breaks = {"abort": aborted, "abort_after_s": 0.05}

        def asked(engine: Engine) -> dict[str, Any]:
            return request | ({} if engine.name == "autoregressive" else breaks)

        answers = fleet.ask_all(asked, job.limit_s - (time.perf_counter() - began))
        for name, answer in answers.items():
            if name not in fleet.engines:
                continue
            engine = fleet.engines[name]
            try:
                engine.ask(verb="info", timeout_s=60.0)  # the engine lives, and has checked its memory when idle
            except EngineFailure as failure:
                fleet.lose(engine, failure)
                continue
            found = counted(answer)
            if name != "autoregressive":
                found |= _identity(fleet, prompts, answer, answers.get("autoregressive"), job.dtype)
            lines = [line for line in engine.log_text().splitlines() if TROUBLE.search(line)]
            result["arms"][name] = found | {"retractions": answer["retractions"], "trouble": lines[:20]}
            say(f"{name:22} {found}  retractions {answer['retractions']}  lines of trouble {len(lines)}")
            for line in lines[:3]:
                say(f"    {line[:200]}")
            job.save(result)
    return result


def mixed(shipped: list[list[int]]) -> tuple[list[list[int]], list[dict[str, Any]], list[int]]:
    """Prompts of 5 to some hundred tokens, answers of 1 to 200, some with stop tokens; indices of those to abort."""
    draws = random.Random(7)
    prompts: list[list[int]] = []
    params: list[dict[str, Any]] = []
    for index in range(REQUESTS):
        parts = [shipped[draws.randrange(len(shipped))] for _ in range(draws.choice((1, 1, 1, 3, 6)))]
        prompt = [token for part in parts for token in part][:500]
        prompts.append(prompt[: draws.choice((5, 40, 500))] if index % 4 else prompts[-1][:] if prompts else prompt)
        asked: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": draws.choice((1, 7, 60, 120, 200))}
        asked |= {"ignore_eos": True} if draws.random() < 0.5 else {"stop_token_ids": [draws.randrange(4096)]}
        params.append(asked)
    return prompts, params, draws.sample(range(REQUESTS), ABORTED)


def counted(answer: dict[str, Any]) -> dict[str, Any]:
    """How requests ended: whole, aborted, lost (in no way that they may), and with an error."""
    ends = answer["finish"]
    lost = sum(reason not in (*WHOLE, "abort") for reason in ends)
    whole, aborted = len(_whole(answer)), ends.count("abort")
    return {"whole": whole, "aborted": aborted, "lost": lost, "errors": len(answer["errors"])}


def _whole(answer: dict[str, Any]) -> list[int]:
    """Indices of the requests that ran to their end."""
    return [index for index, reason in enumerate(answer["finish"]) if reason in WHOLE]


def _identity(
    fleet: Fleet, prompts: list[list[int]], answer: dict[str, Any], plain: dict[str, Any] | None, dtype: str
) -> dict[str, Any]:
    """Of whole requests: share of outputs that equal autoregressive ones, and the ledger. None without that engine."""
    engine, whole = fleet.engines.get("autoregressive"), _whole(answer)
    if engine is None or plain is None or not whole:
        return dict.fromkeys(JUDGED)
    ours, theirs = ([each["tokens"][index] for index in whole] for each in (answer, plain))
    try:
        return Judge(engine, dtype).compare([prompts[index] for index in whole], ours, theirs)
    except EngineFailure as failure:
        fleet.lose(engine, failure)
        return dict.fromkeys(JUDGED)
