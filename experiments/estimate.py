"""What a cell will cost, reckoned before anything starts: rough, and stated as such.

Time of one pass over ``rows`` token rows: ``overhead + max(weight bytes / bandwidth, 2 * params * rows / flops)``
(roofline); the overhead is the target's, and a drafter's by its share of layers. Rounds of a request: new tokens /
emitted tokens a round, for which fixed figures are assumed (:data:`EMITTED`); what a drafter really accepts is what the
sweep is there to find out. Memory: weights, key-value caches, recurrent states of hybrids (`state_memory`) and the
logits of the verify pass; the program itself and its libraries come on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.records import Cell
from experiments.settings import CostSettings, DrafterSettings, ModelSettings, TargetSettings
from experiments.shapes import drafter_of
from experiments.state_memory import state_bytes

EMITTED = {"autoregressive": 1.0, "dflash": 2.5, "eagle": 2.0, "ddtree": 3.0}  # tokens a round, assumed
PROMPT_TOKENS = 128  # of a prompt, assumed
CELL_S = 0.2  # seconds a cell takes beside decoding: folders, tables, clearing up
GIB = float(2**30)


@dataclass(frozen=True)
class Estimate:
    seconds: float
    memory_gib: float
    states_gib: float = 0.0  # of it, the recurrent states of a hybrid target


def estimate(cell: Cell, model: ModelSettings, cost: CostSettings) -> Estimate:
    """Wall seconds of a cell, warm-up included, and memory of its engine in GiB."""
    size = 4 if cell.arm.flags.get("dtype") == "float32" else 2
    _, drafter = drafter_of(cell.arm.strategy, model)
    nodes = _verified_nodes(cell)
    requests = cell.prompts * cell.repeats
    batch = min(cell.batch_size, requests)
    rounds = math.ceil(cell.max_new_tokens / EMITTED[cell.arm.strategy])
    verify = _pass_s(model.target, batch * (nodes + 1), size, cost)
    draft = _draft_s(cell, drafter, batch, size, cost, model.target.layers)
    prefill = _pass_s(model.target, PROMPT_TOKENS, size, cost)
    one_batch = rounds * (verify + draft) + batch * prefill
    warm_up = one_batch * min(1.0, cell.arm.flags.get("warmup_tokens", 0) / cell.max_new_tokens)
    seconds = CELL_S + math.ceil(requests / batch) * one_batch + warm_up
    return Estimate(seconds, memory_gib(cell, model), states_gib(cell, model))


def memory_gib(cell: Cell, model: ModelSettings) -> float:
    """Weights, key-value caches, recurrent states and verify logits of a cell, in GiB."""
    size = 4 if cell.arm.flags.get("dtype") == "float32" else 2
    _, drafter = drafter_of(cell.arm.strategy, model)
    nodes = _verified_nodes(cell)
    tokens = PROMPT_TOKENS + cell.max_new_tokens + nodes + 1
    target = model.target
    cache = cell.batch_size * tokens * cache_bytes_per_token(target, target.kv_layers or target.layers, size)
    weights = target.params * size
    if drafter is not None:
        weights += drafter.params * size
        cache += cell.batch_size * tokens * cache_bytes_per_token(target, drafter.layers, size)
    cache += round(states_gib(cell, model) * GIB)
    logits = cell.batch_size * (nodes + 1) * target.vocab_size * 4
    taken = cell.arm.flags.get("kv_cache_gib")  # a server takes its whole cache at the start
    return (weights + logits) / GIB + (cache / GIB if taken is None else float(taken))


def states_gib(cell: Cell, model: ModelSettings) -> float:
    """Recurrent states of a cell's sequences and of the nodes of their trees, in GiB.

    0.0 of a dense target, and of a hybrid without ``model.target.delta_nets``.
    """
    flags, nodes = cell.arm.flags, _verified_nodes(cell)
    requests = flags.get("max_running_requests") or cell.batch_size
    size = 4 if flags.get("dtype") == "float32" else 2
    return target_states_gib(model.target, cell.arm.engine, requests, nodes + 1 if nodes else 0, size, flags)


def target_states_gib(
    target: TargetSettings, engine: str, requests: int, window: int, size: int, flags: Mapping[str, Any]
) -> float:
    """The same for so many requests, see :func:`.state_bytes`; ``flags``: of the engine."""
    if target.delta_nets is None:
        return 0.0
    layers, args = target.layers - (target.kv_layers or 0), flags.get("extra_args") or ()
    return state_bytes(target.delta_nets, layers, engine, requests, window, size, args) / GIB


def server_starts(cells: Sequence[Cell], server_per_arm: bool, restart: bool = True) -> list[bool]:
    """Which of the cells, in the order of measurement, an engine has to be started for.

    ``restart``: each block of repetition has starts of its own (``load.restart``).
    """
    before = [None, *cells]
    return [
        earlier is None or (server_per_arm and earlier.arm != cell.arm) or (restart and earlier.block != cell.block)
        for earlier, cell in zip(before, cells, strict=False)
    ]


def pair_gib(model: ModelSettings, tokens: int = 4096) -> float:
    """Weights of target and drafters in bfloat16 and the cache of one sequence, in GiB: ``model.memory_gib``."""
    drafters = [drafter for drafter in (model.dflash, model.eagle) if drafter is not None]
    layers = model.target.kv_layers or model.target.layers
    weights = 2 * (model.target.params + sum(drafter.params for drafter in drafters))
    return (weights + tokens * cache_bytes_per_token(model.target, layers, 2)) / GIB


def cache_bytes_per_token(target: TargetSettings, layers: int, size: int) -> int:
    """Keys and values of one token over ``layers`` layers of the target's key-value heads."""
    return 2 * layers * target.kv_heads * target.head_dim * size


def _verified_nodes(cell: Cell) -> int:
    arm = cell.arm
    if arm.strategy == "autoregressive":
        return 0
    return (arm.nodes if arm.nodes is not None else arm.depth) or 1


def _draft_s(
    cell: Cell, drafter: DrafterSettings | None, batch: int, size: int, cost: CostSettings, target_layers: int
) -> float:
    if drafter is None:
        return 0.0
    if cell.arm.strategy == "eagle":
        passes, rows = cell.arm.depth or 1, cell.arm.width or 1
    else:
        passes, rows = 1, drafter.block_size or 16
    return passes * _pass_s(drafter, batch * rows, size, cost, drafter.layers / target_layers)


def _pass_s(
    model: TargetSettings | DrafterSettings, rows: int, size: int, cost: CostSettings, share: float = 1.0
) -> float:
    active = (model.active_params if isinstance(model, TargetSettings) else None) or model.params
    read = min(model.params, active * rows) * size / cost.bytes_per_s  # a mixture of experts reads more, row by row
    return share * cost.pass_overhead_s + max(read, 2.0 * active * rows / cost.flops_per_s)
