"""Writes the predictions file: everything in it follows from the H200's evidence, data sheets and formulas, shown.

It is written once, before a machine is at hand, and committed; ``validate.predict=true`` writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddbench.errors import ConfigError
from ddbench.plugins.vllm.memory import Layers, kv_tokens
from experiments.estimate import GIB
from experiments.evidence.dummy_models import DRAFT_LAYERS, HEAD, KV_HEADS, LAYERS
from experiments.validate import predict_sglang
from experiments.validate.arithmetic import TOLERANCE, Card, Interval, Round, repeated, scaled
from experiments.validate.plans import (
    BATCHES,
    GREEDY,
    KV_GIB,
    NEW_TOKENS,
    PAGE,
    PROMPTS,
    TINY_BATCHES,
    WIDTHS,
    line_of,
    weights_line,
)

HEADER = """\
# What ddbench predicts of machines that it has not measured, written down before it measured them. Written by
#   python -m ddbench experiment=pro6000_validate validate.predict=true
# from the figures under `h200_round_ms` (docs/evidence/vllm.json) and `h200_sglang` (docs/evidence/sglang.json) and the
# constants of experiments/validate/predict.py and predict_sglang.py.
# docs/pro6000.md says how to read it. A prediction that fails is a result: it is not to be edited until it passes.
"""
H200 = Card((4.8e12, 4.8e12), (989.4e12, 989.4e12))  # data sheet


@dataclass(frozen=True)
class Sku:
    """``facts``: where the constants come from."""

    what: str
    gpu: str
    card: Card
    power_w: tuple[float, float]
    facts: str


SKUS = {
    "pro6000_server": Sku(
        "RTX PRO 6000 Blackwell Server Edition",
        r"RTX PRO 6000.*Server",
        Card((1.598e12, 1.792e12), (428e12, 503.8e12)),
        (300, 600),
        "bandwidth: 12481 MHz x 2 x 512 bits seen under load by others, to the data sheet's 1792 GB/s; dense bfloat16 "
        "503.8 TFLOP/s as listed for the Workstation Edition, 15 % less where it is set below 600 W",
    ),
    "pro6000_max_q": Sku(
        "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        r"RTX PRO 6000.*Max-Q",
        Card((1.711e12, 1.792e12), (276e12, 443e12)),
        (250, 300),
        "bandwidth: from what the Workstation Edition shows under load to the data sheet; dense bfloat16: 503.8 x "
        "110/125 by the FP32 figures of the data sheets, down to 503.8 x 91/166, the share that the Workstation "
        "Edition keeps at 300 W in measurements of others",
    ),
    "pro6000_workstation": Sku(
        "RTX PRO 6000 Blackwell Workstation Edition",
        r"RTX PRO 6000",
        Card((1.711e12, 1.792e12), (503.8e12, 503.8e12)),
        (500, 600),
        "bandwidth: 13365 MHz x 2 x 512 bits seen under load by others, to the data sheet's 1792 GB/s; dense bfloat16 "
        "503.8 TFLOP/s as listed",
    ),
}


class _Whole(yaml.SafeDumper):
    """Writes what occurs again as a whole, not as a reference to where it stood first: each machine is read alone."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write(path: Path, evidence: Path, of_sglang: Path) -> None:
    """Writes ``path`` from the evidence files. Raises ConfigError where they have no round times of every arm."""
    found = []
    for key, file, read in (("evidence", evidence, _seen), ("evidence_sglang", of_sglang, predict_sglang.seen_in)):
        try:
            found.append(read(json.loads(file.read_text(encoding="utf-8"))["measured"]))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"validate.{key}", str(file), f"the H200's evidence with round times ({error})") from None
    text = yaml.dump(predictions(*found), Dumper=_Whole, sort_keys=False, width=10_000, allow_unicode=True)
    path.write_text(HEADER + text, encoding="utf-8")


def _seen(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Range of vLLM's round times by arm and batch size."""
    table = measured["round_ms"]
    return {
        arm: {batch: [table[str(batch)][arm][end] for end in ("low", "high")] for batch in BATCHES} for arm in WIDTHS
    }


def predictions(seen: Mapping[str, Mapping[int, list[float]]], of_sglang: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content. ``seen``: range of the H200's repeats by arm and batch size, in milliseconds; ``of_sglang``:
    what SGLang showed there (:func:`experiments.validate.predict_sglang.seen_in`).

    A machine whose name ends in ``_sglang`` is the one of that name under the other engine.
    """
    cpu_plan = {"batch_size": [8], "dtype": "float32", "prompts": PROMPTS, "new_tokens": NEW_TOKENS}
    times = {"vllm": seen, "sglang": of_sglang["round_ms"]}
    machines: dict[str, Any] = {
        "reference": {
            "what": "the built-in engine on a CPU",
            "gpu": None,
            "engines": ["reference"],
            "tiny": cpu_plan,
            "rounds": None,
            "predictions": [*_right((8,), exact=True), *_accepted((8,)), *_program((8,))],
        },
        "vllm_cpu": {
            "what": "vLLM's CPU build, for the machinery",
            "gpu": None,
            "engines": ["vllm"],
            "tiny": cpu_plan,
            "rounds": None,
            "predictions": _right((8,), exact=True),
        },
    }
    for engine in ("vllm", "sglang"):
        machines[_named("h200", engine)] = {
            "what": f"NVIDIA H200, where the figures are from{_under(engine)}",
            "gpu": "H200",
            **_served(engine),
            "predictions": [
                *_host("H200", (600, 700), "data sheet: 700 W"),
                *_shown(engine, of_sglang),
                *_again(times[engine], engine),
                *_ratios(times[engine], engine),
            ],
        }
    for name, sku in SKUS.items():
        for engine in ("vllm", "sglang"):
            machines[_named(name, engine)] = {
                "what": f"{sku.what}{_under(engine)}",
                "gpu": sku.gpu,
                **_served(engine),
                "predictions": [
                    *_host("RTX PRO 6000", sku.power_w, "data sheet of the SKU"),
                    *_shown(engine, of_sglang),
                    *_elsewhere(times[engine], sku, engine),
                    *_ratios(times[engine], engine),
                ],
            }
    plain = {arm: {batch: list(ends) for batch, ends in by_batch.items()} for arm, by_batch in seen.items()}
    return {"h200_round_ms": plain, "h200_sglang": dict(of_sglang), "machines": machines}


def _named(machine: str, engine: str) -> str:
    return machine if engine == "vllm" else f"{machine}_{engine}"


def _under(engine: str) -> str:
    return "" if engine == "vllm" else ", under SGLang"


def _served(engine: str) -> dict[str, Any]:
    """What is run by an engine on a GPU."""
    tiny = {
        "batch_size": list(TINY_BATCHES),
        "dtype": "float32" if engine == "vllm" else "bfloat16",
        "prompts": PROMPTS,
        "new_tokens": NEW_TOKENS,
    }
    rounds = {"batch_size": list(BATCHES), "dtype": "bfloat16", "prompts": max(BATCHES), "new_tokens": 96}
    return {"engines": [engine], "tiny": tiny, "rounds": rounds}


def _shown(engine: str, of_sglang: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lines of an engine on whatever card."""
    if engine == "sglang":
        return predict_sglang.parts(of_sglang)
    return [*_backends(), *_right(TINY_BATCHES, exact=False), *_accepted(TINY_BATCHES), *_memory()]


def _host(gpu: str, power: tuple[float, float], origin: str) -> list[dict[str, Any]]:
    return [
        line_of("host.gpu", origin, text=gpu),
        line_of("host.power_limit_w", origin, low=float(power[0]), high=float(power[1])),
    ]


def _backends() -> list[dict[str, Any]]:
    chain = "engine.flags.attention_backend=auto is TRITON_ATTN for every arm but DDTree's own"
    found = [
        line_of(f"backend.{arm}", chain, text="TRITON_ATTN", engine="vllm") for arm in ("autoregressive", "dflash")
    ]
    return [*found, line_of("backend.ddtree", "the plug-in's attention", text="CUSTOM", engine="vllm")]


def _right(batches: tuple[int, ...], exact: bool) -> list[dict[str, Any]]:
    """What the tiny pair must show to be right, whatever the card."""
    found = [line_of("cells.tiny.failed", "every arm of the tiny pair runs", low=0.0, high=0.0)]
    share, origin = (1.0, "float32 on a CPU: greedy tokens are the target's own, exactly")
    if not exact:
        share, origin = 0.93, "0.965 to 1.0 on the H200 in float32, whose matrix products are TF32; less 0.035"
    found += [
        line_of(f"lossless_share.{arm}.batch_{batch}", origin, low=share, high=1.0)
        for batch in batches
        for arm in GREEDY
    ]
    if not exact:
        gap = "0.032 logits was the widest on the H200; a wrong tree is off by whole logits, hence 0.5 was fixed before"
        found.append(line_of("largest_gap", gap, low=0.0, high=0.5))
    return found


def _accepted(batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """Acceptance of the tiny pair: a property of the pair, the prompts and greedy decoding, not of a card."""
    lengths = {"dflash_16": (3.8895, 3.904), "ddtree_64": (5.5258, 5.523)}
    return [
        line_of(
            f"acceptance_length.{arm}.batch_{batch}",
            f"{reference:g} on the reference engine, {vllm:g} in vLLM on the H200; 1 % either way",
            low=round(0.99 * min(reference, vllm), 4),
            high=round(1.01 * max(reference, vllm), 4),
            prompts=PROMPTS,
            new_tokens=NEW_TOKENS,
        )
        for batch in batches
        for arm, (reference, vllm) in lengths.items()
    ]


def _program(batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """Peak of the reference engine's process beyond the formula of the dry run."""
    origin = (
        "peak resident memory less experiments.estimate.memory_gib (weights, caches, logits): the program and its "
        "libraries, about 0.6 GiB (conf/model/tiny.yaml); half of it either way"
    )
    return [
        line_of(f"program_gib.{arm}.batch_{batch}", origin, low=0.3, high=0.9)
        for batch in batches
        for arm in ("autoregressive", "dflash_16", "ddtree_64")
    ]


def _memory() -> list[dict[str, Any]]:
    """Weights and cache of a server at Qwen3-8B dimensions: the same on every card."""
    target, drafter = Layers(LAYERS, KV_HEADS, HEAD), Layers(DRAFT_LAYERS, KV_HEADS, HEAD)
    found = [line_of("cells.rounds.failed", "every arm runs with random weights", low=0.0, high=0.0)]
    for arm in WIDTHS:
        drafts = arm != "autoregressive"
        tokens = kv_tokens(int(KV_GIB * GIB), PAGE, target, drafter if drafts else None)
        each = target.kv_bytes(2) + (drafter.kv_bytes(2) if drafts else 0)
        cache = f"{KV_GIB:g} GiB / {each:,} bytes a token, in whole pages of {PAGE}"
        found += [
            weights_line(arm, "vllm"),
            line_of(f"kv_tokens.{arm}", cache, low=float(tokens), high=float(tokens), engine="vllm"),
        ]
    return found


def _again(seen: Mapping[str, Mapping[int, list[float]]], engine: str = "vllm") -> list[dict[str, Any]]:
    return [
        _round(arm, batch, repeated(Interval(*ends)), f"{ends[0]:g} to {ends[1]:g} ms before; {_margin()}", engine)
        for arm, by_batch in seen.items()
        for batch, ends in by_batch.items()
    ]


def _elsewhere(seen: Mapping[str, Mapping[int, list[float]]], sku: Sku, engine: str = "vllm") -> list[dict[str, Any]]:
    found = []
    for arm, by_batch in seen.items():
        for batch, ends in by_batch.items():
            width = WIDTHS[arm]
            interval, said = scaled(Round(batch, width, width > 1), Interval(*ends), H200, sku.card)
            found.append(_round(arm, batch, interval, f"{said}; {_margin()}. {sku.facts}", engine))
    return found


def _ratios(seen: Mapping[str, Mapping[int, list[float]]], engine: str = "vllm") -> list[dict[str, Any]]:
    """Tree over chain of equal verify width: both do the same passes, so the card all but cancels."""
    alike = "both arms do the same passes"
    if engine == "sglang":
        alike += ", the tree's verification with the plug-in's own attention"
    found = []
    for batch in BATCHES[1:]:
        tree, chain = seen["ddtree_16"][batch], seen["dflash_16"][batch]
        low, high = tree[0] / chain[1], tree[1] / chain[0]
        origin = f"{low:.3f} to {high:.3f} on the H200; {TOLERANCE:.0%} either way, since {alike}"
        ends = {"low": round((1 - TOLERANCE) * low, 3), "high": round((1 + TOLERANCE) * high, 3)}
        found.append(line_of(f"round_ratio.ddtree_16.batch_{batch}", origin, **ends, engine=engine))
    return found


def _round(arm: str, batch: int, interval: Interval, origin: str, engine: str) -> dict[str, Any]:
    ends = {"low": round(interval.low, 2), "high": round(interval.high, 2)}
    return line_of(f"round_ms.{arm}.batch_{batch}", origin, **ends, engine=engine)


def _margin() -> str:
    return f"{TOLERANCE:.0%} beyond, and 1 ms for a server that is asked over HTTP"
