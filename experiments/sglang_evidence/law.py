"""Have sampled tokens the law of autoregressive sampling, with the tree and with the stock chain?

Two parts of every answer are looked at. Its first three tokens: the prefill's, and those of the first round. And its
tokens 20, 21 and 22, counted from 0: a round emits 16 at most, so they come from the second round or a later one, whose
tree is verified over a cache that earlier rounds have moved. A place's law depends on what was drawn before it, so
draws are told apart by prompt and by the class of the token before the place; one test a place, and the least p-value
times their number (Bonferroni) is what the level is held against.

Both are true of a right implementation where logits are as good as exact. In bfloat16 they are not for a nucleus: its
edge may lie between two roundings of the same logits at a text that every draw of a prompt passes, and all that follows
differs. Of the shipped prompts one is such: the best of its tokens after six has 0.9020 in float32, by one step of
bfloat16 more or less 0.896 or 0.910, with ``top_p`` 0.9. So draws are also compared token by token (`law_steps`), and
which tests decide is a rule of dtype and law (`deciding`). It was made after a bfloat16 run whose later tokens failed
under ``top_p`` (p 1.5e-6 of the tree, and the stock chain failed as well), and before the float32 run that it judges.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.evidence.chi_square import two_samples
from experiments.evidence.identity import TIES
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.law_filters import next_of
from experiments.sglang_evidence.law_reference import logits_after, target_of
from experiments.sglang_evidence.law_steps import against, followed, often, steps
from experiments.sglang_evidence.tiny_checks import pair_of

Draws = Sequence[Sequence[int]]

SAMPLES, LEVEL = 6000, 0.001  # fixed beforehand, as are the engines' seeds
IN_FLIGHT, PROMPTS, EARLY = 32, 8, 3
LATER, CLASSES = (20, 21, 22), 4
LENGTH = max(LATER) + 1
LAWS = {  # in the order of value: the last is what a short run leaves out
    "top_p": {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "plain": {"temperature": 1.0},
    "top_k": {"temperature": 1.0, "top_k": 12},
}
ARMS = (
    Arm("autoregressive", extra={"random_seed": 11}),
    Arm("autoregressive_again", extra={"random_seed": 12}),  # of one law with the first: it must pass as well
    Arm("dflash", "dflash", 15, extra={"random_seed": 13}),
    Arm("ddtree", "ddtree", 63, extra={"random_seed": 14}),
    Arm("planted", "ddtree", 63, hooks=("wrong_rule",), extra={"random_seed": 15}),
)
FLASHINFER = Arm("ddtree_flashinfer", "ddtree", 63, backend="flashinfer", extra={"random_seed": 16})  # where named
USUAL = tuple(arm.name for arm in ARMS)
PAIR = ("dflash", "ddtree")  # compared with each other too: both verify windows, a decoding step is another kernel


def measure(job: Job) -> dict[str, Any]:
    """Pearson's tests of each arm's draws with the autoregressive ones, by law; then token by token."""
    began = time.perf_counter()
    arms = [arm for arm in (*ARMS, FLASHINFER) if arm.name in (job.arms or USUAL)]
    if job.dtype == "float32":
        arms = [replace(arm, hooks=("float32", *arm.hooks)) for arm in arms]
    prompts = job.prompts[:PROMPTS]
    result: dict[str, Any] = {
        "samples": SAMPLES,
        "level": LEVEL,
        "length": EARLY,
        "later": list(LATER),
        "dtype": job.dtype,
        "slack_logits": TIES[job.dtype],
        "asked": [arm.name for arm in arms],
        "laws": {},
    }
    asked = [prompts[index % len(prompts)] for index in range(SAMPLES)]
    pair = pair_of(job.assets, job.dtype)
    drawn: dict[str, dict[str, Draws]] = {}
    with Fleet(job.python, pair, arms, [8, IN_FLIGHT], job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        for law, sampling in LAWS.items():
            params = {**sampling, "max_new_tokens": LENGTH, "ignore_eos": True}

            def request(engine: Engine, params: dict[str, Any] = params) -> dict[str, Any]:
                return {"prompts": asked, "params": params, "in_flight": IN_FLIGHT}

            answers = fleet.ask_all(request, job.limit_s - (time.perf_counter() - began))
            drawn[law] = {name: answer["tokens"] for name, answer in answers.items() if whole(answer)}
            for name in sorted(set(answers) - set(drawn[law])):
                why = str(answers[name]["errors"])[:500]
                result["failed"][f"{name} at {law}"] = f"{name}: answers are missing: {why}"
            if "autoregressive" in drawn[law]:
                result["laws"][law] = {"sampling": sampling, **compared(drawn[law], len(prompts))}
                _tell(law, result["laws"][law])
            job.save(result)
    target = target_of(job.assets)
    for law in result["laws"]:
        by_step(target, prompts, drawn[law], result["laws"][law], job.dtype)
        _tell_steps(law, result["laws"][law])
        job.save(result)
    return result


def pairs(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """What is compared, by the name of the comparison: each arm with the first, and the two that verify windows."""
    found = {name: ("autoregressive", name) for name in names if name != "autoregressive"}
    return found | ({"=".join(PAIR): PAIR} if set(PAIR) <= set(names) else {})


def compared(drawn: Mapping[str, Draws], prompts: int) -> dict[str, Any]:
    """:func:`both` of every pair."""
    return {name: both(drawn[one], drawn[other], prompts) for name, (one, other) in pairs(drawn).items()}


def by_step(
    target: Any, prompts: Sequence[Sequence[int]], drawn: Mapping[str, Draws], law: dict[str, Any], dtype: str
) -> None:
    """Adds to a law's tests those after the same text, what decides, and every arm's against the reference's own law.

    Texts are those that autoregressive sampling gave often.
    """
    at = often(drawn["autoregressive"], len(prompts))
    logits = logits_after(target, prompts, at)
    texts = {each: next_of(row, law["sampling"], TIES[dtype]) for each, row in logits.items()}
    after = {name: followed(draws, len(prompts), texts) for name, draws in drawn.items()}
    for name, (one, other) in pairs(drawn).items():
        law[name]["steps"] = steps(after[one], after[other], texts)
        law[name]["decided_by"] = list(deciding(law["sampling"], dtype))
        law[name]["agrees"] = agrees(law[name])
    law["against_reference"] = {name: against(sample, texts) for name, sample in after.items()}


def deciding(sampling: Mapping[str, Any], dtype: str) -> tuple[str, ...]:
    """The tests that a law's verdict rests on: all, but for a nucleus in bfloat16 that of steps alone."""
    return ("steps",) if dtype == "bfloat16" and "top_p" in sampling else ("early", "later", "steps")


def agrees(test: Mapping[str, Any]) -> bool | None:
    """Nothing that decides is below the level, and nothing was drawn that no rounding allows; None with too few draws
    to compare any."""
    if not any(test["steps"][part]["texts"] for part in ("first", "later")):
        return None
    p_values = {"early": test["p"], "later": test["later"]["p"], "steps": test["steps"]["p"]}
    return not any(test["steps"]["outside"]) and all(p_values[name] >= LEVEL for name in test["decided_by"])


def _tell(law: str, found: Mapping[str, Any]) -> None:
    for name, test in found.items():
        if name != "sampling":
            later = test["later"]
            told = f"cells {test['cells']:4d}  p {test['p']:.3g}; later {later['cells']:4d}  p {later['p']:.3g}"
            say(f"{law:6} {name:22} {told} (level {LEVEL})")


def _tell_steps(law: str, found: Mapping[str, Any]) -> None:
    for name, test in found.items():
        if name in ("sampling", "against_reference"):
            continue
        step = test["steps"]
        parts = "  ".join(f"{part} {step[part]['cells']} cells p {step[part]['p']:.3g}" for part in ("first", "later"))
        say(f"{law:6} {name:22} steps: {parts}  outside {step['outside']}  agrees {test['agrees']}")
    told = {name: f"{test['p']:.2g}" for name, test in found["against_reference"].items()}
    say(f"{law:6} against the reference: {told}")


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
