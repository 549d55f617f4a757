"""Hybrid targets on a GPU: does every node of a tree have its parent's state, in the engine, with graphs and overlap?

A pair of random weights is written on the spot, and the target's own greedy text is planted into the trees
(`hybrid_inside`), so that paths are deep and leave the first branch. What is measured, in float32 and with some arms in
bfloat16 at the same time:

- greedy text against SGLang's autoregressive decoding, batch 1 and 8;
- logits of every node of planted trees against autoregressive prefills of their paths;
- a planted chain through the tree's kernels against the same chain in stock DFLASH: texts and accepted lengths;
- that every round's links were in the buffers that the graph reads;
- the same with links of a star, and with the first round's links: both must be caught.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.state_memory import Recurrent, state_parts
from experiments.evidence.identity import TIES
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm, Pair
from experiments.sglang_evidence.counts import acceptance_length, histogram
from experiments.sglang_evidence.fleet import Fleet
from experiments.sglang_evidence.hybrid_inside import DUMP, LINKS, TEXTS
from experiments.sglang_evidence.hybrid_pair import (
    BLOCK,
    DELTA,
    KERNEL,
    KEY_HEADS,
    STATE,
    VALUE_HEADS,
    WORDS,
    Family,
    seen_by_sglang,
    write_pair,
)
from experiments.sglang_evidence.identity import Judge
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.node_logits import compare
from runners.base import EngineFailure

Measured = dict[str, Any]

WIDTH, TOP_K = 16, 4
PROMPTS, LENGTH, CONTEXT, TOKENS = 16, 64, 1024, 16_384
BATCHES = [8, 1]
TRACE = "DDTREE_TRACE"
PLAIN, PLAIN_16, PLAIN_STATE = "autoregressive", "autoregressive_bf16", "autoregressive_bf16_state"
TREE = Arm("ddtree", "ddtree", WIDTH - 1, width=TOP_K, hooks=("plant",))
SYNC = replace(TREE, name="ddtree_sync", overlap=False)  # knows its text, so its trees' logits can be recorded
NO_BUFFER = {"mamba_radix_cache_strategy": "no_buffer", "max_mamba_cache_size": 64}
ROUNDED = {"mamba_ssm_dtype": "bfloat16"}  # after every token, in decoding and in trees alike
ARMS = (
    Arm(PLAIN),
    Arm("dflash", "dflash", WIDTH - 1, hooks=("plant_chain",)),
    TREE,
    SYNC,
    replace(TREE, name="ddtree_spine", hooks=("plant_spine",)),
    replace(TREE, name="ddtree_k1", width=1, hooks=("plant_spine",)),
    replace(SYNC, name="ddtree_star", hooks=("plant", "star")),
    replace(SYNC, name="ddtree_stale", hooks=("plant", "stale")),
    replace(TREE, name="ddtree_eager", graphs=False),
    replace(SYNC, name="ddtree_radix", radix=True, extra=NO_BUFFER),
    Arm(PLAIN_STATE, extra=ROUNDED),
    replace(TREE, name="ddtree_bf16_state", extra=ROUNDED),
    Arm(PLAIN_16),
    replace(TREE, name="ddtree_bf16"),
)
FIRST = (PLAIN, "dflash", "ddtree", "ddtree_sync", "ddtree_spine", "ddtree_star", PLAIN_16, "ddtree_bf16")
CONTROLS = ("ddtree_star", "ddtree_stale")
DUMPED = ("ddtree_sync", *CONTROLS)
PAIRS = (("ddtree_spine", "dflash"), ("ddtree_k1", "dflash"), ("ddtree_sync", "ddtree"), ("ddtree_eager", "ddtree"))
SPINES = ("ddtree_spine", "ddtree_k1")
FIRST_TINY = (PLAIN, "dflash", "ddtree", "ddtree_spine", "ddtree_star")
SHARDS: dict[str, Family | None] = {"hybrid": "qwen3_5", "hybrid_next": "qwen3_next", "hybrid_tiny": None}


def sixteen(arm: str) -> bool:
    return arm.endswith("_bf16")


def arms_of(names: Sequence[str] | None, folder: Path, family: Family | None) -> list[Arm]:
    """The named arms, None for the usual ones, with all that they need around them.

    ``family`` None: the trained tiny hybrid, whose drafter drafts what is verified.
    """
    usual = FIRST_TINY if family is None else FIRST
    arms = [_around(arm, folder, family) for arm in ARMS if arm.name in (names or usual)]
    return arms if family is not None else [_unplanted(arm) for arm in arms]


def _unplanted(arm: Arm) -> Arm:
    """A spine is then the drafter's own."""
    env = {name: value for name, value in arm.env.items() if name != DUMP}
    if arm.name == "ddtree_spine":
        env["DDTREE_WIDTH"] = "1"
    return replace(arm, hooks=tuple(hook for hook in arm.hooks if not hook.startswith("plant")), env=env)


def _around(arm: Arm, folder: Path, family: Family | None) -> Arm:
    half, env = sixteen(arm.name), {TEXTS: str(texts_of(arm.name, folder))}
    hooks = arm.hooks if half else ("float32", "float32_states", *arm.hooks)
    if not half:
        # Products in 32 bits, not in TF32; compiled kernels of the other kind are kept apart.
        env |= {"SGLANG_MAMBA_CONV_DTYPE": "float32", "TRITON_F32_DEFAULT": "ieee"}
        env["TRITON_CACHE_DIR"] = str((folder.parent / "triton_float32").resolve())
    if arm.name in DUMPED:
        env[DUMP] = str((folder / f"{arm.name}.pt").resolve())
        env[TRACE] = str((folder / f"{arm.name}.jsonl").resolve())
    extra = {"dtype": "bfloat16" if half else "float32", **arm.extra}
    if family != "qwen3_next":
        extra |= {"enable_multimodal": False, "mm_attention_backend": "sdpa"}
    return replace(arm, hooks=hooks, env=env, extra=extra)


def plain_of(arm: str) -> str:
    """The autoregressive arm of the same arithmetic."""
    return next(plain for plain in (PLAIN_STATE, PLAIN_16, PLAIN) if arm.endswith(plain.removeprefix(PLAIN)))


def texts_of(arm: str, folder: Path) -> Path:
    """Each arithmetic has its own greedy text."""
    return (folder / f"texts_{plain_of(arm)}.json").resolve()


def prompts_of(seed: int = 3) -> list[list[int]]:
    """Random tokens; lengths on both sides of the 64 tokens that SGLang's prefill of delta nets takes at once."""
    rng = random.Random(seed)
    return [[rng.randrange(3, WORDS) for _ in range(rng.randrange(6, 140))] for _ in range(PROMPTS)]


def pair_of(job: Job, family: Family | None) -> tuple[Pair, list[list[int]]]:
    """Models and prompts. Raises ConfigError where the trained tiny hybrid is not there."""
    if family is None:
        trained = job.assets / "hybrid"
        if not (trained / "target").exists():
            raise ConfigError("shard", job.shard, f"not without the trained pair in {trained}")
        target = seen_by_sglang(trained / "target", job.logs / "seen")
        return Pair(target, trained / "dflash", trained, "float32", False, CONTEXT, TOKENS), job.prompts[:32]
    models = job.logs / "pair"
    write_pair(models, family, "float32")
    pair = Pair(models / "target", models / "dflash", models / "eagle3", "float32", False, CONTEXT, TOKENS)
    return pair, prompts_of()


def measure(job: Job) -> Measured:
    """See the module; saved after every part."""
    began, family = time.perf_counter(), SHARDS[job.shard]
    job.logs.mkdir(parents=True, exist_ok=True)
    for old in (*job.logs.glob("*.pt*"), *job.logs.glob("*.json*"), *job.logs.glob("*.npy")):
        old.unlink()
    pair, prompts = pair_of(job, family)
    batches = sorted(job.batches or BATCHES, reverse=True)
    arms = arms_of(job.arms, job.logs, family)
    result: Measured = {
        "family": family or "tiny_hybrid",
        "prompts": len(prompts),
        "length": LENGTH,
        "verify_width": WIDTH,
        "threshold_logits": {"float32": TIES["float32"], "bfloat16": TIES["bfloat16"]},
        "asked": [arm.name for arm in arms],
    }
    with Fleet(job.python, pair, arms, batches, job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        job.save(result)
        texts = _texts(fleet, prompts, batches[0], job.logs)
        for batch in batches:
            left = job.limit_s - (time.perf_counter() - began)
            _batch(fleet, prompts, texts, batch, left, result)
            job.save(result)
        _states(fleet, family, batches, result)
        _logits(fleet, job.logs, result)
        result["rounds"] = {name: paths_of(job.logs / f"{name}.jsonl") for name in DUMPED if name in result["asked"]}
        result["links"] = {name: _links(job.logs / f"{name}.pt") for name in DUMPED if name in result["asked"]}
        result["verdict"] = verdict(result)
        job.save(result)
    for key, value in result["verdict"].items():
        say(f"{key}: {value}")
    return result


def _texts(fleet: Fleet, prompts: list[list[int]], batch: int, folder: Path) -> dict[str, list[list[int]]]:
    """Autoregressive texts by the engine that said them, written for the planted arms; longer than what these say."""
    found = {}
    for name in (PLAIN, PLAIN_16, PLAIN_STATE):
        if name not in fleet.engines:
            continue
        params = {"temperature": 0.0, "max_new_tokens": LENGTH + WIDTH, "ignore_eos": True}
        try:
            answer = fleet.engines[name].ask(prompts=prompts, params=params, in_flight=batch)
        except EngineFailure as failure:
            fleet.lose(fleet.engines[name], failure)
            continue
        found[name] = answer["tokens"]
        lines = [[len(prompt), [*prompt, *text]] for prompt, text in zip(prompts, answer["tokens"], strict=True)]
        texts_of(name, folder).write_text(json.dumps(lines))
    return found


def _batch(
    fleet: Fleet,
    prompts: list[list[int]],
    texts: Mapping[str, list[list[int]]],
    batch: int,
    left_s: float,
    result: Measured,
) -> None:
    """Asks all engines whose arithmetic has a text, and compares."""
    for engine in list(fleet.engines.values()):
        if plain_of(engine.name) not in texts:
            fleet.lose(engine, EngineFailure("no autoregressive text to plant"))
    params = {"temperature": 0.0, "max_new_tokens": LENGTH, "ignore_eos": True}
    request = {"prompts": prompts, "params": params, "in_flight": batch}
    answers = fleet.ask_all(lambda engine: request, left_s)
    tokens = {name: answer["tokens"] for name, answer in answers.items() if not answer["errors"]}
    for name, answer in answers.items():
        if answer["errors"]:
            result["failed"][f"{name} at {batch}"] = str(answer["errors"])[:2000]
        result.setdefault("acceptance_length", {}).setdefault(name, {})[batch] = acceptance_length(answer["counts"])
        result.setdefault("histogram", {}).setdefault(name, {})[batch] = histogram(answer["counts"])
    for plain in (PLAIN, PLAIN_16, PLAIN_STATE):
        if plain not in fleet.engines or plain not in tokens:
            continue
        judge = Judge(fleet.engines[plain], "bfloat16" if sixteen(plain) else "float32")
        for name in tokens:
            if name != plain and plain_of(name) == plain:
                found = judge.compare(prompts, tokens[name], tokens[plain])
                result.setdefault("identity", {}).setdefault(name, {})[batch] = found
                tau = result["acceptance_length"][name][batch]
                say(f"batch {batch} {name}: {found}, accepted length {tau}")
        for one, other in PAIRS if plain == PLAIN else ():
            if one in tokens and other in tokens:
                found = judge.compare(prompts, tokens[one], tokens[other])
                result.setdefault("pairs", {}).setdefault(f"{one}={other}", {})[batch] = found


def _states(fleet: Fleet, family: Family | None, batches: Sequence[int], result: Measured) -> None:
    """What each tree server says of its states, and what `ddbench` computes for such a target before a start."""
    for name, engine in list(fleet.engines.items()):
        if engine.arm.strategy != "ddtree":
            continue
        try:
            info = engine.ask(verb="info")["info"]
        except EngineFailure as failure:
            fleet.lose(engine, failure)
            continue
        told = (info["internal_states"][0].get("ddtree") or {}).get("recurrent")
        result.setdefault("states", {})[name] = told
        if told and family is not None:
            told["predicted_bytes"] = _predicted(told, engine.arm, max(batches))


def _predicted(told: Mapping[str, Any], arm: Arm, rows: int) -> dict[str, int]:
    sizes = Sizes(arm.verify_width, BLOCK, arm.width or 1)
    element, conv_element = 4 if told["dtype"] == "float32" else 2, 2 if sixteen(arm.name) else 4
    layers = DELTA["layer_types"].count("linear_attention")
    recurrent = Recurrent(layers, KEY_HEADS, VALUE_HEADS, STATE, STATE, KERNEL, element, conv_element)
    return state_parts(recurrent, told["slots"] - 1, rows, sizes)


def _logits(fleet: Fleet, folder: Path, result: Measured) -> None:
    judge = fleet.engines.get(PLAIN)
    for name in DUMPED:
        dump = folder / f"{name}.pt"
        if judge is None or not dump.exists():
            continue
        try:
            found = compare(judge, dump, TIES["float32"])
        except EngineFailure as failure:
            fleet.lose(judge, failure)
            return
        result.setdefault("node_logits", {})[name] = found
        say(f"node logits of {name}: {found}")


def paths_of(trace: Path) -> dict[str, Any] | None:
    """Of the rounds in a trace: how many, how deep, and how many accepted a node that is not its parent's first."""
    if not trace.exists():
        return None
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    branched = sum(_leaves_first(line["parents"], line["path"]) for line in rounds)
    accepted = [len(line["path"]) - 1 for line in rounds]
    return {
        "rounds": len(rounds),
        "mean_accepted": round(sum(accepted) / len(accepted), 3),
        "deepest": max(accepted),
        "on_other_branches": branched,
        "in_graph": sum(line["graph"] for line in rounds),
    }


def _leaves_first(parents: Sequence[int], path: Sequence[int]) -> bool:
    first = {parent: entry for entry, parent in reversed(list(enumerate(parents))) if parent >= 0}
    return any(first[parent] != entry for parent, entry in pairwise(path))


def _links(dump: Path) -> dict[str, int] | None:
    file = dump.with_name(dump.name + LINKS)
    found: dict[str, int] | None = json.loads(file.read_text()) if file.exists() else None
    return found


def verdict(result: Mapping[str, Any]) -> dict[str, bool | None]:
    """The claims: false where anything shows so, true where all that was asked for does, None else."""
    identity, logits, links = (result.get(key, {}) for key in ("identity", "node_logits", "links"))
    trees = [name for name in result["asked"] if name.startswith("ddtree") and name not in CONTROLS]
    spines = [one for one in SPINES if f"{one}=dflash" in result.get("pairs", {})]
    own, pairs = links.get("ddtree_sync"), result.get("pairs", {})
    same_counts = {
        one: result["histogram"][one] == result["histogram"]["dflash"]
        for one in SPINES
        if one in result.get("histogram", {}) and "dflash" in result["histogram"]
    }
    return {
        "greedy_is_autoregressive": _all(
            [not found["unexplained"] for name in trees for found in identity.get(name, {}).values()],
            whole=all(identity.get(name) for name in trees),
        ),
        "node_logits_agree": logits["ddtree_sync"]["within_threshold"] if "ddtree_sync" in logits else None,
        "spine_is_dflash": _all(
            [not found["unexplained"] for one in spines for found in pairs[f"{one}=dflash"].values()]
            + list(same_counts.values()),
            whole={*spines} == {*same_counts},
        ),
        "links_rewritten_every_round": own and own["read"] == own["rounds"] and own["changed"] > own["rounds"] // 2,
        **{f"{name}_caught_by_logits": _missed(logits, name) for name in CONTROLS if name in result["asked"]},
        **{
            f"{name}_caught_by_text": _all(found["unexplained"] for found in identity[name].values())
            for name in CONTROLS
            if name in identity
        },
    }


def _missed(logits: Mapping[str, Any], name: str) -> bool | None:
    return not logits[name]["within_threshold"] if name in logits else None


def _all(claims: Iterable[Any], whole: bool = True) -> bool | None:
    """``whole``: nothing that would have to be among the claims is missing."""
    found = [bool(each) for each in claims]
    if not all(found):
        return False
    return True if found and whole else None
