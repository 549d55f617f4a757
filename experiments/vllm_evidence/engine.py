"""One vLLM engine, told what to do line by line. Runs in the engine's environment: standard library and vLLM alone.

    python engine.py '{"llm": {...}}'

A line on standard input is a request, a line on standard output its answer, both JSON; the first answer is sent once
the engine is up. Whatever vLLM prints goes to standard error.
"""

from __future__ import annotations

import cProfile
import io
import itertools
import json
import os
import pstats
import sys
import time
from collections import Counter, deque
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = Engine(json.loads(sys.argv[1]))
    _send(answers, engine.facts)
    for line in sys.stdin:
        _send(answers, engine.run(json.loads(line)))


def _send(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


class Engine:
    def __init__(self, job: dict[str, Any]) -> None:
        clock = time.perf_counter()
        import vllm
        from vllm import LLM

        self.llm = LLM(**job["llm"])
        self.facts = {
            "vllm": vllm.__version__,
            "start_s": time.perf_counter() - clock,
            "kv_tokens": self._kv_tokens(),
        }
        self._number = 0

    def _kv_tokens(self) -> int:
        cache = self.llm.llm_engine.vllm_config.cache_config
        return int(cache.num_gpu_blocks or 0) * int(cache.block_size)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Closed loop over ``prompts`` with ``in_flight`` at a time; ``params`` one for all, or one each."""
        prompts, params = request["prompts"], request["params"]
        settings = params if isinstance(params, list) else [params] * len(prompts)
        profile = cProfile.Profile() if request.get("profile") else None
        before = self._counters()
        clock = time.perf_counter()
        if profile is not None:
            profile.enable()
        outputs, moments = self._drive(prompts, settings, request["in_flight"])
        if profile is not None:
            profile.disable()
        seconds = time.perf_counter() - clock
        after = self._counters()
        answer: dict[str, Any] = {
            "seconds": seconds,
            "counters": {name: after[name] - before.get(name, 0) for name in after},
            "tokens": [[list(one.token_ids) for one in output.outputs] for output in outputs],
        }
        if request.get("steps"):
            answer["steps_s"] = [later - earlier for earlier, later in itertools.pairwise(moments)]
        if request.get("logprobs"):
            answer["logprobs"] = [_prompt_logprobs(output) for output in outputs]
        if profile is not None:
            text = io.StringIO()
            pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(60)
            answer["profile"] = text.getvalue()
        return answer

    def _drive(
        self, prompts: list[list[int]], settings: list[dict[str, Any]], in_flight: int
    ) -> tuple[list[Any], list[float]]:
        """Final outputs, and the moments at which all of ``in_flight`` requests had got something new."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self.llm.llm_engine
        waiting = deque(zip(prompts, settings, strict=True))
        order: dict[str, int] = {}
        done: dict[str, Any] = {}
        moments: list[float] = []
        running = 0
        while waiting or running:
            while waiting and running < in_flight:
                prompt, setting = waiting.popleft()
                name = str(self._number)
                self._number += 1
                order[name] = len(order)
                wanted = SamplingParams(**setting, output_kind=RequestOutputKind.CUMULATIVE)
                engine.add_request(name, {"prompt_token_ids": prompt}, wanted)
                running += 1
            outputs = engine.step()
            if len(outputs) == in_flight and not any(output.finished for output in outputs):
                moments.append(time.perf_counter())
            for output in outputs:
                if output.finished:
                    done[output.request_id] = output
                    running -= 1
        return [done[name] for name in order], moments

    def _counters(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        for metric in self.llm.get_metrics():
            if not metric.name.startswith(("vllm:spec_decode", "vllm:num_preemptions")):
                continue
            if hasattr(metric, "values"):
                found.update({f"position_{place}": value for place, value in enumerate(metric.values)})
            elif hasattr(metric, "value"):
                found[metric.name.removeprefix("vllm:")] += metric.value
        return dict(found)


def _prompt_logprobs(output: Any) -> list[dict[str, float] | None]:
    """By position of the prompt: log-probability by token id, of those that vLLM returns."""
    rows = output.prompt_logprobs or []
    return [None if row is None else {str(token): one.logprob for token, one in row.items()} for row in rows]


if __name__ == "__main__":
    main()
