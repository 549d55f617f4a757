"""One SGLang engine, told what to do line by line. Runs in the engine's environment: standard library, SGLang, `cores`.

    python engine.py '{"engine": {...}, "core": null}'

A line on standard input is a request, a line on standard output its answer, both JSON; the first answer is sent once
the engine is up. Whatever SGLang prints goes to standard error. A request that fails is answered with its traceback.
``core``: the one that the scheduler's thread is given, which this process was started off (`cores`); null: any.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from typing import Any

COUNTS = ("spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = Engine(json.loads(sys.argv[1]))
    _send(answers, engine.facts)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = engine.run(request)
        except Exception:  # noqa: BLE001  whatever it is, the asker must hear of it
            answer = {"error": traceback.format_exc()}
        _send(answers, answer)
    engine.end()


def _send(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


class Engine:
    def __init__(self, job: dict[str, Any]) -> None:
        clock = time.perf_counter()
        import sglang

        from experiments.sglang_evidence import cores

        imported = time.perf_counter()
        self._engine = sglang.Engine(**job["engine"])
        core = job.get("core")
        given = core is not None and cores.give(core, cores.schedulers())
        self._loop = self._engine.loop
        self.facts = {
            "sglang": sglang.__version__,
            "core": core if given else None,  # of the scheduler's thread
            "import_s": round(imported - clock, 1),
            "start_s": round(time.perf_counter() - clock, 1),
            **self._memory(),
        }

    def _memory(self) -> dict[str, Any]:
        """What the scheduler said of its pools when it was up, as plain numbers."""
        info = self._engine.get_server_info()
        state = (info.get("internal_states") or [{}])[0]
        names = ("max_total_num_tokens", "max_running_requests", "speculative_algorithm", "attention_backend")
        attention = (state.get("ddtree") or {}).get("attention")  # of a tree's verify pass: the plug-in's or SGLang's
        told = {"memory_usage": state.get("memory_usage"), "verify_attention": attention}
        return {**told, **{name: info.get(name) for name in names}}

    def end(self) -> None:
        self._engine.shutdown()

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        verb = request.get("verb", "generate")
        if verb == "flush":
            return {"done": bool(self._engine.flush_cache())}
        if verb == "info":
            return {"info": _plain(self._engine.get_server_info())}
        if verb == "state":
            return self._set(request["values"])
        if verb == "logprobs":
            return self._logprobs(request["prefixes"], request["path"])
        if verb == "gaps":
            return self._gaps(request["prefixes"], request["pairs"])
        answer: dict[str, Any] = self._loop.run_until_complete(self._closed(request))
        return answer

    def _set(self, values: dict[str, Any]) -> dict[str, Any]:
        """Settings of the running engine."""
        from sglang.srt.managers.io_struct import SetInternalStateReq

        request = SetInternalStateReq(server_args=values)
        taken = self._loop.run_until_complete(self._engine.tokenizer_manager.set_internal_state(request))
        return {"done": True} if taken and all(taken) else {"error": f"refused: {values}"}

    async def _closed(self, request: dict[str, Any]) -> dict[str, Any]:
        """Closed loop over ``prompts`` with ``in_flight`` at a time; ``params`` one for all, or one each.

        ``abort_after_s``: the requests in ``abort`` (indices) are aborted so long after they were sent. ``names``: what
        the engine is to call them.
        """
        prompts, params = request["prompts"], request["params"]
        watched = bool(request.get("moments") or request.get("abort"))  # a stream costs the engine time
        settings = params if isinstance(params, list) else [params] * len(prompts)
        names = request.get("names")
        places = asyncio.Semaphore(request["in_flight"])
        aborted = set(request.get("abort", ()))
        moments: list[list[float]] = [[] for _ in prompts]
        done: list[dict[str, Any]] = [{} for _ in prompts]

        async def one(index: int) -> None:
            async with places:
                name = names[index] if names else f"r{time.monotonic_ns()}-{index}"
                answer = await self._engine.async_generate(
                    input_ids=prompts[index], sampling_params=settings[index], stream=watched, rid=name
                )
                if not watched:
                    done[index] = answer
                    return
                if index in aborted:
                    manager = self._engine.tokenizer_manager
                    self._loop.call_later(request["abort_after_s"], manager.abort_request, name)
                async for chunk in answer:
                    moments[index].append(time.perf_counter())
                    done[index] = chunk

        clock = time.perf_counter()
        results = await asyncio.gather(*(one(index) for index in range(len(prompts))), return_exceptions=True)
        seconds = time.perf_counter() - clock
        errors = {index: repr(each) for index, each in enumerate(results) if isinstance(each, BaseException)}
        metas = [each.get("meta_info", {}) for each in done]
        answer: dict[str, Any] = {
            "seconds": seconds,
            "tokens": [list(each.get("output_ids") or []) for each in done],
            "counts": [{name: meta[name] for name in COUNTS if name in meta} for meta in metas],
            "finish": [(meta.get("finish_reason") or {}).get("type") for meta in metas],
            "retractions": sum(meta.get("num_retractions") or 0 for meta in metas),
            "errors": errors,
        }
        if request.get("moments"):
            answer["moments"] = moments
        return answer

    def _gaps(self, prefixes: list[list[int]], pairs: list[list[int]]) -> dict[str, Any]:
        """Log-probabilities of two tokens after each prefix, from one prefill of it."""
        found = []
        for prefix, pair in zip(prefixes, pairs, strict=True):
            answer = self._engine.generate(
                input_ids=prefix,
                sampling_params={"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
                return_logprob=True,
                token_ids_logprob=pair,
            )
            rows = answer["meta_info"]["output_token_ids_logprobs"]
            told = {int(token): float(value) for value, token, *_ in rows[0]}
            found.append([told[token] for token in pair])
        return {"logprobs": found}

    def _logprobs(self, prefixes: list[list[int]], path: str) -> dict[str, Any]:
        """Log-probabilities of all tokens after each prefix, from one prefill of it, as an array in a file."""
        import numpy as np

        words = int(self._engine.tokenizer_manager.model_config.vocab_size)
        found = np.zeros((len(prefixes), words), dtype=np.float32)
        for row, prefix in enumerate(prefixes):
            answer = self._engine.generate(
                input_ids=prefix,
                sampling_params={"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
                return_logprob=True,
                token_ids_logprob=list(range(words)),
            )
            for value, token, *_ in answer["meta_info"]["output_token_ids_logprobs"][0]:
                found[row, int(token)] = value
        np.save(path, found)
        return {"rows": len(prefixes)}


def _plain(value: Any) -> Any:
    """What JSON can hold, the rest as text."""
    return json.loads(json.dumps(value, default=str))


if __name__ == "__main__":
    main()
