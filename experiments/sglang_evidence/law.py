"""Have sampled tokens the law of autoregressive sampling, with the tree and with the stock chain?"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from experiments.evidence.chi_square import two_samples
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.tiny_checks import pair_of

SAMPLES, LEVEL = 6000, 0.001  # fixed beforehand, as are the engines' seeds
IN_FLIGHT, PROMPTS, LENGTH = 32, 8, 3
LAWS = {
    "top_k": {"temperature": 1.0, "top_k": 12},
    "top_p": {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
}
ARMS = (
    Arm("autoregressive", extra={"random_seed": 11}),
    Arm("autoregressive_again", extra={"random_seed": 12}),  # of one law with the first: it must pass as well
    Arm("dflash", "dflash", 15, extra={"random_seed": 13}),
    Arm("ddtree", "ddtree", 63, extra={"random_seed": 14}),
    Arm("planted", "ddtree", 63, hooks=("wrong_rule",), extra={"random_seed": 15}),
)


def measure(job: Job) -> dict[str, Any]:
    """Pearson's test of homogeneity of each arm's triples of tokens with the autoregressive ones, by law."""
    began = time.perf_counter()
    arms = [arm for arm in ARMS if job.arms is None or arm.name in job.arms]
    if job.dtype == "float32":
        arms = [replace(arm, hooks=("float32", *arm.hooks)) for arm in arms]
    result: dict[str, Any] = {"samples": SAMPLES, "level": LEVEL, "length": LENGTH, "dtype": job.dtype, "laws": {}}
    prompts = job.prompts[:PROMPTS]
    asked = [prompts[index % len(prompts)] for index in range(SAMPLES)]
    pair = pair_of(job.assets, job.dtype)
    with Fleet(job.python, pair, arms, [8, IN_FLIGHT], job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        for law, sampling in LAWS.items():
            params = {**sampling, "max_new_tokens": LENGTH, "ignore_eos": True}

            def request(engine: Engine, params: dict[str, Any] = params) -> dict[str, Any]:
                return {"prompts": asked, "params": params, "in_flight": IN_FLIGHT}

            answers = fleet.ask_all(request, job.limit_s - (time.perf_counter() - began))
            drawn = {
                name: [(i % len(prompts), *tokens) for i, tokens in enumerate(answer["tokens"])]
                for name, answer in answers.items()
            }
            if "autoregressive" not in drawn:
                continue
            found = {
                name: two_samples(drawn["autoregressive"], other)
                for name, other in drawn.items()
                if name != "autoregressive"
            }
            result["laws"][law] = {"sampling": sampling, **found}
            for name, test in found.items():
                verdict = "rejected" if test["p"] < LEVEL else "not rejected"
                say(f"{law:6} {name:22} cells {test['cells']:4d}  p {test['p']:.3g}  {verdict} at {LEVEL}")
            job.save(result)
    return result
