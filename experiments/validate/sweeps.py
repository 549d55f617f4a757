"""The two sweeps of a validation, as configurations: the tiny pair, and random weights at a real model's dimensions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.evidence.dummy_models import (
    DRAFT_LAYERS,
    HEAD,
    KV_HEADS,
    LAYERS,
    MASK,
    SHAPE,
    drafter_parameters,
    target_parameters,
    write_dummy_pair,
)
from experiments.validate.arithmetic import BLOCK
from experiments.validate.plans import CONTEXT, KV_GIB, PAGE
from experiments.validate.predictions import Plan
from experiments.workloads import asset_path

Config = dict[str, Any]
PROMPT_TOKENS = 256
# What a server is told to have weights without files, by engine, and the cache that the predictions were made for.
DUMMY: dict[str, Config] = {
    "vllm": {"kv_cache_gib": KV_GIB, "block_size": PAGE, "max_model_len": CONTEXT},
    "sglang": {"context_length": CONTEXT},
}
LOAD_DUMMY = ["--load-format", "dummy"]


def tiny(config: Mapping[str, Any], plan: Plan, prompts: int | None, new_tokens: int | None) -> list[Config]:
    """Two plans for one folder: the DFlash drafter's chain and trees, and the EAGLE chain that every engine has.

    The report of the second shows both, so the first builds none.
    """
    common = {
        **config,
        "engine": {**config["engine"], "dtype": plan.dtype},
        "workload": {**config["workload"], "max_prompts": prompts},
        "load": {**config["load"], "max_new_tokens": new_tokens or plan.new_tokens},
    }
    trees = _axes(["autoregressive", "dflash", "ddtree"], plan, width=[None], depth=[None], nodes=[15, 63])
    chain = _axes(["autoregressive", "eagle"], plan, width=[1], depth=[5], nodes=[5])
    unreported = {"report": {**(config.get("report") or {}), "build": False}}
    return [{**common, **unreported, "sweep": trees}, {**common, "sweep": chain}]


def rounds(config: Mapping[str, Any], plan: Plan, folder: Path, engine: str) -> Config:
    """Round times, whatever is accepted: ``folder`` gets the models' configurations and the prompts."""
    write_dummy_pair(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(asset_path("asset://target") / name, folder / "target" / name)
    prompts, warmup = folder / "prompts.jsonl", folder / "warmup.jsonl"
    _write_prompts(prompts, plan.prompts, "p")
    _write_prompts(warmup, plan.prompts, "w")
    flags = {**config["engine"]["flags"], **DUMMY[engine]}
    flags["extra_args"] = [*(flags.get("extra_args") or []), *LOAD_DUMMY]
    load = {"max_new_tokens": plan.new_tokens, "ignore_eos": True, "gaps": False}
    files = {"name": "made", "path": str(prompts), "warmup_path": str(warmup), "max_prompts": None}
    return {
        **config,
        "engine": {**config["engine"], "dtype": plan.dtype, "flags": flags},
        "model": model(folder),
        "workload": {**config["workload"], **files},
        "load": {**config["load"], **load},
        "sweep": _axes(["autoregressive", "dflash", "ddtree"], plan, width=[None], depth=[None], nodes=[15, 63]),
    }


def model(folder: Path) -> Config:
    """The pair of ``folder`` as group ``model`` describes one: dimensions of Qwen3-8B and its DFlash drafter."""
    common: Config = {"revision": None, "licence": "none: random weights"}
    target = {"params": target_parameters(), "layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": HEAD}
    drafter = {"params": drafter_parameters(), "layers": DRAFT_LAYERS, "block_size": BLOCK, "mask_token_id": MASK}
    return {
        "name": "qwen3_8b_random",
        "kind": "checkpoint",
        "template": "raw",
        "thinking": None,
        "context_length": SHAPE["max_position_embeddings"],
        "memory_gib": 19,
        "target": {**common, **target, "source": str(folder / "target"), "vocab_size": SHAPE["vocab_size"]},
        "dflash": {**common, **drafter, "source": str(folder / "dflash")},
        "eagle": None,
    }


def _axes(strategies: list[str], plan: Plan, **shape: list[Any]) -> Config:
    return {"strategy": strategies, **shape, "batch_size": list(plan.batch_size), "temperature": [0.0]}


def _write_prompts(path: Path, count: int, prefix: str) -> None:
    """Prompts of about PROMPT_TOKENS tokens of the tiny pair's tokenizer, all different."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(asset_path("asset://target") / "tokenizer.json"))
    rows = []
    for number in range(count):
        text = f"# {prefix}{number}\n" + "".join(f"value_{number}_{line} = {line * 7 + number}\n" for line in range(99))
        ids = tokenizer.encode(text).ids[:PROMPT_TOKENS]
        rows.append(
            {"id": f"{prefix}{number}", "dataset": "made", "category": "made", "turns": [tokenizer.decode(ids)]}
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
