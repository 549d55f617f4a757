"""The tiny pair on a GPU: is it right, and what does real acceptance give?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.evidence.chi_square import two_samples
from experiments.evidence.identity import TIES, identity_share, summary
from experiments.evidence.reference import decode_all
from experiments.evidence.timing import interleaved, spread
from experiments.vllm_evidence.arms import Arm, Pair
from experiments.vllm_evidence.fleet import Engine, Fleet
from experiments.vllm_evidence.identity import ledger
from experiments.vllm_evidence.timing import acceptance_length, histogram, tokens_per_s

BATCHES = [1, 8, 32]
AR, CHAIN, TREE = Arm("autoregressive"), Arm("dflash", 15), Arm("ddtree", 63, {})
SPINE = Arm("ddtree_spine", 15, {"width": 1})  # a chain, through the tree's mask, walk and moves
EAGER = Arm("ddtree_eager", 63, {}, graphs=False)
SYNC = Arm("ddtree_sync", 63, {}, asynchronous=False)
SMALL, MIDDLE = Arm("ddtree_15", 15, {}), Arm("ddtree_31", 31, {})
CHAIN_SYNC = Arm("dflash_sync", 15, asynchronous=False)
Save = Callable[[dict[str, Any]], None]
LENGTH = 128
SAMPLES, SEED, LEVEL = 6000, 1234, 0.001  # of the chi-square test, fixed beforehand
REPEATS = 5
SPEED_PROMPTS = {1: 8, 8: 32, 32: 64}


def pair_of(assets: Path, dtype: str) -> Pair:
    return Pair(assets / "target", assets / "dflash", dtype, False, 1024, 1.0, 0.03)


def measure(
    python: str, assets: Path, prompts: list[list[int]], dtype: str, logs: Path, gpus: int, save: Save
) -> dict[str, Any]:
    """Correctness. Nothing is timed."""
    arms = [AR, CHAIN, TREE, SMALL, MIDDLE, CHAIN_SYNC, SYNC, SPINE, EAGER]
    places = [i % gpus for i in range(len(arms))]
    with Fleet(python, pair_of(assets, dtype), arms, places, BATCHES, logs) as fleet:
        result: dict[str, Any] = {"start_s": round(fleet.start_s, 1), "failed": fleet.failed, "prompts": len(prompts)}
        outputs = _correctness(fleet.engines, prompts, dtype, result)
        save(result)
        if dtype == "float32":
            result["reference"] = _against_reference(decode_all(assets, prompts, LENGTH, "cuda"), outputs)
    return result


def speed(python: str, assets: Path, prompts: list[list[int]], logs: Path, save: Save) -> dict[str, Any]:
    """Tokens a second in bfloat16, which is what is served; all arms on one GPU, one measured at a time."""
    arms = [AR, CHAIN, TREE, SMALL, MIDDLE]
    with Fleet(python, pair_of(assets, "bfloat16"), arms, [0] * len(arms), BATCHES, logs) as fleet:
        result: dict[str, Any] = {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        return result | _speed(fleet.engines, prompts, lambda found: save(result | found))


def _correctness(
    engines: dict[str, Engine], prompts: list[list[int]], dtype: str, result: dict[str, Any]
) -> dict[int, Any]:
    """Identity with autoregressive decoding, of graphs with eager, of the chain-shaped tree with the chain; T > 0."""
    outputs = {batch: _all(engines, prompts, batch) for batch in BATCHES}
    judge = engines["autoregressive"]

    def compare(one: str, other: str) -> dict[int, Any]:
        return {
            batch: {
                "share": round(identity_share(_tokens(runs[one]), _tokens(runs[other])), 4),
                **summary(ledger(judge, prompts, _tokens(runs[one]), _tokens(runs[other])), dtype),
            }
            for batch, runs in outputs.items()
        }

    result["threshold_logits"] = TIES[dtype]
    result["identity"] = {name: compare(name, "autoregressive") for name in engines if name != "autoregressive"}
    result["acceptance_length"] = {
        name: {batch: acceptance_length(runs[name]["counters"]) for batch, runs in outputs.items()} for name in engines
    }
    result["histogram"] = {name: histogram(outputs[1][name]["counters"]) for name in engines}
    pairs = (("ddtree_spine", "dflash"), ("ddtree_eager", "ddtree"), ("ddtree_sync", "ddtree"))
    result["pairs"] = {
        f"{one}={other}": compare(one, other) for one, other in pairs if one in engines and other in engines
    }
    result["chi_square"] = _chi_square(engines, prompts[:8])
    return outputs


def _against_reference(reference: dict[str, dict[str, Any]], outputs: dict[int, Any]) -> dict[str, Any]:
    """The reference engine's acceptance, and the share of each arm's outputs that equal its autoregressive ones."""
    greedy = reference["autoregressive"]["tokens"]
    return {
        "acceptance_length": {name: one["acceptance_length"] for name, one in reference.items()},
        "histogram": {name: one["histogram"] for name, one in reference.items()},
        "lossless_share": {name: identity_share(one["tokens"], greedy) for name, one in reference.items()},
        "identity_share": {
            batch: {name: round(identity_share(_tokens(found), greedy), 4) for name, found in runs.items()}
            for batch, runs in outputs.items()
        },
    }


def _all(engines: dict[str, Engine], prompts: list[list[int]], batch: int) -> dict[str, dict[str, Any]]:
    """Every engine's greedy outputs; they run side by side, since nothing is timed."""
    params = {"temperature": 0.0, "max_tokens": LENGTH}
    with ThreadPoolExecutor(len(engines)) as pool:
        asked = {
            name: pool.submit(engine.ask, prompts=prompts, params=params, in_flight=batch)
            for name, engine in engines.items()
        }
    return {name: future.result() for name, future in asked.items()}


def _tokens(answer: dict[str, Any]) -> list[list[int]]:
    return [sequences[0] for sequences in answer["tokens"]]


def _chi_square(engines: dict[str, Engine], prompts: list[list[int]]) -> dict[str, Any]:
    """Have sampled tokens the same law with and without the tree? Three tokens of ``SAMPLES`` draws."""
    found = {}
    for name, top_p in (("autoregressive", 1.0), ("ddtree", 1.0), ("planted", 0.9)):
        engine = engines["autoregressive" if name == "planted" else name]
        params = [
            {"temperature": 1.0, "top_k": 12, "top_p": top_p, "max_tokens": 3, "seed": SEED + i, "ignore_eos": True}
            for i in range(SAMPLES)
        ]
        asked = [prompts[i % len(prompts)] for i in range(SAMPLES)]
        answer = engine.ask(prompts=asked, params=params, in_flight=max(BATCHES))
        found[name] = [(i % len(prompts), *tokens) for i, tokens in enumerate(_tokens(answer))]
    return {
        "samples": SAMPLES,
        "level": LEVEL,
        "tree": two_samples(found["autoregressive"], found["ddtree"]),
        "planted_other_law": two_samples(found["autoregressive"], found["planted"]),
    }


def _speed(engines: dict[str, Engine], prompts: list[list[int]], save: Save) -> dict[str, Any]:
    """Tokens a second of a closed loop, arms interleaved, five repeats."""
    result: dict[str, Any] = {"tokens_per_s": {}, "acceptance_length": {}, "ratio_vs_dflash": {}}
    for batch in BATCHES:
        chosen = prompts[: SPEED_PROMPTS[batch]]
        for engine in engines.values():
            tokens_per_s(engine, chosen[:batch], batch, 32)
        speeds: dict[str, list[float]] = {name: [] for name in engines}
        for order in interleaved(list(engines), REPEATS):
            for name in order:
                value, answer = tokens_per_s(engines[name], chosen, batch, LENGTH)
                speeds[name].append(value)
                result["acceptance_length"].setdefault(name, {})[batch] = acceptance_length(answer["counters"])
        result["tokens_per_s"][batch] = {name: spread(values) for name, values in speeds.items()}
        result["ratio_vs_dflash"][batch] = {
            name: spread([a / b for a, b in zip(values, speeds["dflash"], strict=True)])
            for name, values in speeds.items()
            if name != "dflash"
        }
        save(result)
    return result
