"""At temperature > 0, what a tree emits has the law of the target's own distribution, to a chi-square test's eye.

Sizes, seeds and the level are fixed beforehand; the same test, of the same size, finds two wrong rules of acceptance.
The cells are the sequences of the first three tokens; all but the first come out of verified trees.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from vllm_cases import BASELINE, MIXED, MIXED_4, NEW
from vllm_jobs import ASSETS, Case, EngineHost, Job, Tokens, greedy, prompt_tokens

from ddbench.decoding import load_pair
from ddbench.tree import filtered_probs

pytestmark = pytest.mark.vllm

DRAWS, LEVEL, LENGTH, BRANCHES = 1000, 1e-3, 3, 8
PROMPT = prompt_tokens()[3][:12]  # many continuations, and many of them drafted
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.8},
    "filtered": {"temperature": 1.3, "top_p": 0.9, "top_k": 12},
}


def sampled(name: str, settings: dict[str, Any], plant: str | None = None) -> Case:
    params = {**settings, "max_tokens": LENGTH, "ignore_eos": True}
    return Case(name, (PROMPT,) * DRAWS, (params,) * DRAWS, in_flight=64, plant=plant)


FAIR = tuple(sampled(name, settings) for name, settings in SETTINGS.items())
WRONG = tuple(sampled(rule, SETTINGS["plain"], plant=rule) for rule in ("accepts when likely", "accepts by ratio"))
JOB = Job("tree", (*FAIR, *WRONG), nodes=6, engine={"max_num_seqs": 64, "seed": 20})


@cache
def law(name: str) -> dict[Tokens, float]:
    """Probability of each sequence of likely tokens: after every prefix, the eight likeliest are followed."""
    pair = load_pair(str(ASSETS / "target"), device="cpu", dtype="float32")
    settings = SETTINGS[name]
    found: dict[Tokens, float] = {(): 1.0}
    for _ in range(LENGTH):
        prefixes = list(found)
        rows = torch.tensor([[*PROMPT, *prefix] for prefix in prefixes])
        with torch.inference_mode():
            logits = pair.target(rows).logits[:, -1]
        probs = filtered_probs(logits, settings["temperature"], settings.get("top_p", 1.0), settings.get("top_k", 0))
        best = probs.topk(BRANCHES)
        found = {
            (*prefix, int(token)): found[prefix] * float(probability)
            for prefix, values, tokens in zip(prefixes, best.values, best.indices, strict=True)
            for probability, token in zip(values, tokens, strict=True)
            if probability > 0
        }
    return found


def p_value(sequences: list[Tokens], expected: dict[Tokens, float]) -> float:
    """Chi-square of goodness of fit; cells of fewer than five expected, and all others, are one."""
    seen, total = Counter(sequences), len(sequences)
    cells = {sequence: total * probability for sequence, probability in expected.items() if total * probability >= 5}
    rest = total - sum(cells.values())
    statistic = sum((seen[cell] - mean) ** 2 / mean for cell, mean in cells.items())
    statistic += (total - sum(seen[cell] for cell in cells) - rest) ** 2 / rest
    return float(torch.special.gammaincc(torch.tensor(len(cells) / 2.0), torch.tensor(statistic / 2.0)))


def drawn(engines: EngineHost, name: str) -> list[Tokens]:
    tokens = [one for one in engines.run(JOB)[name].token_ids if one is not None]
    assert len(tokens) == DRAWS
    return tokens


@pytest.mark.parametrize("name", SETTINGS)
def test_emitted_tokens_have_the_law_of_the_target(engines: EngineHost, name: str) -> None:
    outcome = engines.run(JOB)[name]
    assert sum(len(line.path) > 1 for line in outcome.trace) > DRAWS / 4  # the law of what was accepted, too
    assert len([mean for mean in law(name).values() if mean * DRAWS >= 5]) >= 10
    assert p_value(drawn(engines, name), law(name)) > LEVEL


@pytest.mark.parametrize("rule", [case.name for case in WRONG])
def test_a_wrong_rule_is_found(engines: EngineHost, rule: str) -> None:
    assert p_value(drawn(engines, rule), law("plain")) < LEVEL


def test_seeds_and_neighbours(engines: EngineHost) -> None:
    """A seed repeats itself and another differs; greedy requests among sampled ones stay greedy."""

    def seeded(name: str, seed: int) -> Case:
        params = tuple({"temperature": 0.9, "max_tokens": 24, "seed": seed + index} for index in range(6))
        return Case(name, MIXED[:6], params)

    warm = {"temperature": 1.0, "top_p": 0.95, "max_tokens": NEW}
    mixture = tuple(greedy(NEW) if index % 2 else warm for index in range(len(MIXED)))
    cases = (seeded("one", 7), seeded("again", 7), seeded("other", 70), Case("mixture", MIXED, mixture))
    found = engines.run(Job("tree", cases, nodes=16))
    assert found["one"].token_ids == found["again"].token_ids
    assert found["one"].token_ids != found["other"].token_ids
    plain = engines.run(BASELINE)[MIXED_4.name].outputs
    assert found["mixture"].outputs[1::2] == plain[1::2]
    assert found["mixture"].outputs[0::2] != plain[0::2]
