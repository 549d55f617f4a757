"""What predictions are made for: arms, batch sizes, prompts and caches; and a line of the predictions file."""

from __future__ import annotations

from typing import Any

from experiments.estimate import GIB
from experiments.evidence.dummy_models import drafter_parameters, target_parameters

WIDTHS = {"autoregressive": 1, "dflash_16": 16, "ddtree_16": 16, "ddtree_64": 64}  # arms of random weights
BATCHES = (1, 8, 32)
KV_GIB, PAGE = 4.0, 16  # vLLM's cache in the runs that round times come from
CONTEXT = 1024  # of a server with random weights
PROMPTS, NEW_TOKENS = 144, 128  # of the tiny pair: all shipped prompts, as the evidence had them
TINY_BATCHES = (1, 8)
GREEDY = ("dflash_16", "ddtree_16", "ddtree_64", "eagle_6")


def line_of(key: str, origin: str, **rest: Any) -> dict[str, Any]:
    """A prediction as the file has it, :class:`experiments.validate.predictions.Prediction`."""
    return {"key": key, **{name: value for name, value in rest.items() if value is not None}, "origin": origin}


def weights_line(arm: str, engine: str) -> dict[str, Any]:
    """Weights of an arm with a target, and a drafter where it drafts, of random 16-bit numbers."""
    parameters = target_parameters() + (0 if arm == "autoregressive" else drafter_parameters())
    gib = 2 * parameters / GIB
    ends = {"low": round(0.995 * gib, 3), "high": round(1.005 * gib, 3)}
    return line_of(
        f"weights_gib.{arm}", f"2 bytes x {parameters:,} parameters; 0.5 % either way", **ends, engine=engine
    )
