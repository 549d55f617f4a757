"""Runs a job in this process: one vLLM engine, stepped by hand, and what each case gave as JSON (see `vllm_jobs`)."""

from __future__ import annotations

import json
from collections import Counter, deque
from pathlib import Path
from typing import Any

import vllm.model_executor.models.qwen3
import vllm.model_executor.models.qwen3_dflash
import vllm.v1.spec_decode.dflash
import vllm.v1.worker.cpu_worker  # noqa: F401 - imported before the fork, so that children need not
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm_jobs import ASSETS
from vllm_mutations import planted

PLUGIN = "ddbench.plugins.vllm"


def run_job(folder: Path) -> None:
    """Reads ``job.json`` and writes ``result.json``."""
    job = json.loads((folder / "job.json").read_text())
    trace = folder / "trace.jsonl"
    trace.touch()
    llm = LLM(**engine_arguments(job, trace))
    watch = Watch(llm)
    results = {case["name"]: run_case(llm, watch, case, trace) for case in job["cases"]}
    (folder / "result.json").write_text(json.dumps(results))


def engine_arguments(job: dict[str, Any], trace: Path) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(ASSETS / "target"),
        "dtype": "float32",
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "enforce_eager": True,
        "disable_log_stats": False,
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "generation_config": "vllm",
    }
    arguments |= job["engine"]
    if job["method"] != "autoregressive":
        drafter = str(ASSETS / "dflash")
        arguments["speculative_config"] = {
            "method": "dflash",
            "model": drafter,
            "num_speculative_tokens": job["nodes"],
        }
    if job["method"] == "tree":
        kind = "Async" if arguments["async_scheduling"] else ""
        arguments |= {
            "worker_cls": f"{PLUGIN}.worker.DDTreeWorker",
            "scheduler_cls": f"{PLUGIN}.scheduler.DDTree{kind}Scheduler",
            "additional_config": {"ddbench": {"trace": str(trace), **job["tree"]}},
        }
    return arguments


class Watch:
    """Looks at every decision of the scheduler: who was left out of a round, and how many ran."""

    def __init__(self, llm: LLM) -> None:
        self.skipped, self.most = 0, 0
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self.lookahead = int(scheduler.num_lookahead_tokens)
        decide = scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            decided = decide(*args, **kwargs)
            running = {request.request_id for request in scheduler.running}
            served = set(decided.num_scheduled_tokens)
            self.skipped += bool(served) and bool(running - served)
            self.most = max(self.most, len(served))
            return decided

        scheduler.schedule = schedule


def run_case(llm: LLM, watch: Watch, case: dict[str, Any], trace: Path) -> dict[str, Any]:
    watch.skipped = watch.most = 0
    before, lines = counters(llm), len(trace.read_text().splitlines())
    with planted(case["plant"]):
        finished, refused = drive(llm, case)
    after = counters(llm)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    numbers = [finished.get(str(index)) for index in range(len(case["prompts"]))]
    return {
        "outputs": [None if one is None else [sequence(output) for output in one.outputs] for one in numbers],
        "cached_tokens": [None if one is None else one.num_cached_tokens for one in numbers],
        "refused": refused,
        "counters": {name: value for name, value in grown.items() if isinstance(name, str)},
        "accepted_per_position": [grown[place] for place in sorted(key for key in grown if isinstance(key, int))],
        "trace": [traced(line) for line in trace.read_text().splitlines()[lines:]],
        "skipped": watch.skipped,
        "most": watch.most,
        "lookahead": watch.lookahead,
    }


def drive(llm: LLM, case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Adds requests as others end, steps the engine until none is left. Returns final outputs and refusals by index."""
    engine = llm.llm_engine
    waiting = deque(enumerate(zip(case["prompts"], case["params"], strict=True)))
    finished: dict[str, Any] = {}
    refused: dict[str, str] = {}
    running: dict[str, int] = {}  # index to the tokens after which it is aborted, -1 for never
    while waiting or running:
        while waiting and len(running) < case["in_flight"]:
            index, (prompt, settings) = waiting.popleft()
            try:
                engine.add_request(
                    str(index), {"prompt_token_ids": prompt}, sampling(settings, str(index) in case["abort"])
                )
            except (ValueError, VLLMValidationError) as error:
                refused[str(index)] = str(error)
                continue
            running[str(index)] = case["abort"].get(str(index), -1)
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
                del running[output.request_id]
            elif 0 <= running[output.request_id] <= len(output.outputs[0].token_ids):
                engine.abort_request([output.request_id])
                del running[output.request_id]
    while engine.has_unfinished_requests():  # a round in flight under asynchronous scheduling
        engine.step()
    return finished, refused


def sampling(settings: dict[str, Any], watched: bool) -> SamplingParams:
    settings = dict(settings)
    if "structured_outputs" in settings:
        settings["structured_outputs"] = StructuredOutputsParams(**settings["structured_outputs"])
    if "logit_bias" in settings:  # JSON has no integer keys
        settings["logit_bias"] = {int(token): bias for token, bias in settings["logit_bias"].items()}
    kind = RequestOutputKind.CUMULATIVE if watched else RequestOutputKind.FINAL_ONLY
    return SamplingParams(**settings, output_kind=kind)


def sequence(output: Any) -> dict[str, Any]:
    return {
        "token_ids": list(output.token_ids),
        "text": output.text,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }


def traced(line: str) -> dict[str, Any]:
    """The trace names requests as the engine does: ours, and a random suffix; the n-th sample of one has a prefix."""
    found = json.loads(line)
    found["request"] = int(found["request"].rsplit("-", 1)[0].rpartition("_")[2])
    return found


def counters(llm: LLM) -> dict[str | int, float]:
    """The engine's counters by name, and accepted tokens by position in the path."""
    found: Counter[str | int] = Counter()
    for metric in llm.get_metrics():
        if hasattr(metric, "values"):
            found.update(dict(enumerate(metric.values)))
        elif hasattr(metric, "value"):
            found[metric.name] += metric.value
    return dict(found)
