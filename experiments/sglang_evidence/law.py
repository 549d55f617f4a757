"""Have sampled tokens the law of autoregressive sampling, with the tree and with the stock chain?

Two parts of every answer are looked at. Its first three tokens: the prefill's, and those of the first round. And its
tokens 20, 21 and 22, counted from 0: a round emits 16 at most, so they come from the second round or a later one, whose
tree is verified over a cache that earlier rounds have moved. A place's law depends on what was drawn before it, so
draws are told apart by prompt and by the class of the token before the place; one test a place, and the least p-value
times their number (Bonferroni) is what the level is held against.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.evidence.chi_square import two_samples
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.tiny_checks import pair_of

Draws = Sequence[Sequence[int]]

SAMPLES, LEVEL = 6000, 0.001  # fixed beforehand, as are the engines' seeds
IN_FLIGHT, PROMPTS, EARLY = 32, 8, 3
LATER, CLASSES = (20, 21, 22), 4
LENGTH = max(LATER) + 1
LAWS = {
    "plain": {"temperature": 1.0},
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
    """Pearson's test of homogeneity of each arm's early and later tokens with the autoregressive ones, by law."""
    began = time.perf_counter()
    arms = [arm for arm in ARMS if job.arms is None or arm.name in job.arms]
    if job.dtype == "float32":
        arms = [replace(arm, hooks=("float32", *arm.hooks)) for arm in arms]
    result: dict[str, Any] = {
        "samples": SAMPLES,
        "level": LEVEL,
        "length": EARLY,
        "later": list(LATER),
        "dtype": job.dtype,
        "asked": [arm.name for arm in arms],
        "laws": {},
    }
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
            drawn = {name: answer["tokens"] for name, answer in answers.items() if whole(answer)}
            for name in sorted(set(answers) - set(drawn)):
                why = str(answers[name]["errors"])[:500]
                result["failed"][f"{name} at {law}"] = f"{name}: answers are missing: {why}"
            plain = drawn.pop("autoregressive", None)
            if plain is None:
                continue
            found = {name: both(plain, other, len(prompts)) for name, other in drawn.items()}
            result["laws"][law] = {"sampling": sampling, **found}
            for name, test in found.items():
                later = test["later"]
                told = f"cells {test['cells']:4d}  p {test['p']:.3g}; later {later['cells']:4d}  p {later['p']:.3g}"
                say(f"{law:6} {name:22} {told} (level {LEVEL})")
            job.save(result)
    return result


def whole(answer: dict[str, Any]) -> bool:
    """Every request gave all of its tokens."""
    return not answer["errors"] and all(len(tokens) == LENGTH for tokens in answer["tokens"])


def both(one: Draws, other: Draws, prompts: int) -> dict[str, Any]:
    """Tests of the first tokens, and under ``later`` of those of later rounds. Draw i is of prompt ``i % prompts``."""
    early = two_samples(*([(i % prompts, *tokens[:EARLY]) for i, tokens in enumerate(draws)] for draws in (one, other)))
    tests = [
        two_samples(
            *(
                [(i % prompts, tokens[place - 1] % CLASSES, tokens[place]) for i, tokens in enumerate(draws)]
                for draws in (one, other)
            )
        )
        for place in LATER
    ]
    least = min(1.0, len(tests) * min(test["p"] for test in tests))
    places = dict(zip(map(str, LATER), tests, strict=True))
    return {**early, "later": {"cells": sum(test["cells"] for test in tests), "p": least, "places": places}}
