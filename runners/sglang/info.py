"""``GET /server_info``: what a server says it runs, and whether that is what was asked for.

SGLang adapts settings that do not fit, some with no more than a line in its log: a chain for a tree, a smaller pool,
another backend. What it resolved them to is in its answer (``sglang/srt/entrypoints/http_server.py``, ``server_info``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runners.attached import get
from runners.base import EngineFailure

# By name of the setting that was given: names in the answer, the first that is there counts.
CHECKED: dict[str, tuple[str, ...]] = {
    "speculative_algorithm": ("speculative_algorithm",),
    "speculative_num_draft_tokens": ("speculative_num_draft_tokens",),
    "speculative_eagle_topk": ("speculative_eagle_topk",),
    "speculative_num_steps": ("speculative_num_steps",),
    "speculative_dflash_block_size": ("speculative_dflash_block_size",),
    "speculative_draft_attention_backend": ("speculative_draft_attention_backend",),
    "attention_backend": ("attention_backend",),
    "page_size": ("page_size",),
    "max_total_tokens": ("max_total_num_tokens", "max_total_tokens"),
    "max_running_requests": ("max_running_requests",),
    "context_length": ("context_length",),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "quantization": ("quantization",),
    "min_free_slots_delay": ("min_free_slots_delay",),
    "tp_size": ("tp_size",),
}
SWITCHES = ("disable_radix_cache", "disable_overlap_schedule", "disable_decode_cuda_graph")
KEPT = (*CHECKED, *SWITCHES, "version", "model_path", "dtype", "max_total_num_tokens", "incremental_streaming_output")


def fetch(url: str) -> dict[str, Any]:
    """The answer of a server. Raises EngineFailure if there is none."""
    try:
        found = json.loads(get(url.rstrip("/"), "/server_info"))
    except (OSError, ValueError) as error:
        raise EngineFailure(f"the server does not tell its settings ({error})") from None
    if not isinstance(found, dict):
        raise EngineFailure("the server does not tell its settings")
    return found


def differences(asked: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """What runs otherwise than it was asked for, one text each. What the server does not tell is passed over."""
    wrong = []
    for name, places in CHECKED.items():
        place = next((each for each in places if each in info), None)
        wanted = asked.get(name)
        if place is None or wanted == "auto" or (wanted is None and name != "speculative_algorithm"):
            continue
        if not _same(name, info[place], wanted):
            wrong.append(f"{name} is {info[place]!r}, not {wanted!r}")
    switched = [name for name in SWITCHES if name in info and bool(info[name]) != bool(asked.get(name))]
    return wrong + [f"{name} is {bool(info[name])}, not {bool(asked.get(name))}" for name in switched]


def _same(name: str, found: Any, wanted: Any) -> bool:
    """A pool may be rounded, or larger than it was asked to be."""
    return bool(found >= 0.99 * wanted) if name == "max_total_tokens" else bool(found == wanted)


def check(asked: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    """Raises EngineFailure where a server runs something else."""
    refuse(differences(asked, info))


def refuse(wrong: list[str]) -> None:
    """Raises EngineFailure where anything is wrong."""
    if wrong:
        raise EngineFailure(f"SGLang runs something else than it was asked for: {'; '.join(wrong)}", "start")


def tree_differences(
    asked: Mapping[str, Any], info: Mapping[str, Any], recording: bool = False, policy: str | None = None
) -> list[str]:
    """Where the trees of a server of our plug-in are others than ``asked`` (:func:`..speculation.limits`).

    They come from its environment and may be changed while it runs, so its settings do not show them. A server that
    records waits in every round: it is none that could be measured, unless ``recording`` is what it is for. ``policy``:
    what is to choose its verify width; None: it has one.
    """
    told = state(info).get("ddtree")
    if not isinstance(told, dict):
        return ["it does not tell the limits of its trees (internal_states[0].ddtree)"]
    records = told.get("recording") is not None
    wrong = [] if records == recording else [f"it was started {'to record' if records else 'without recording'}"]
    chosen = told.get("adaptive") or {}
    if chosen.get("policy") != policy:
        wrong.append(f"its verify width is chosen by {chosen.get('policy')}, not {policy}")
    if chosen.get("pinned") is not None:
        wrong.append(f"its verify width is pinned at {chosen['pinned']}")
    return wrong + [
        f"the trees' {name} is {told.get(name)!r}, not {wanted!r}"
        for name, wanted in asked.items()
        if name not in told or told[name] != wanted
    ]


def check_trees(
    asked: Mapping[str, Any], info: Mapping[str, Any], recording: bool = False, policy: str | None = None
) -> None:
    """Raises EngineFailure where a server's trees are others."""
    refuse(tree_differences(asked, info, recording, policy))


def state(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the first scheduler; empty where none is told."""
    found = (info.get("internal_states") or [{}])[0]
    return found if isinstance(found, dict) else {}


def summary(info: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of it with every cell: settings, pools, and the totals since the start."""
    told = ("memory_usage", "avg_spec_accept_length", "last_gen_throughput", "ddtree")
    kept = {name: info[name] for name in KEPT if name in info}
    said = state(info)
    return kept | {name: said[name] for name in told if name in said}
