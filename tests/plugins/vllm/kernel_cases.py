"""Cases that the kernel tests share: on a GPU the kernels are compiled, elsewhere Triton's interpreter runs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
pytest.importorskip("triton", reason="Triton is not installed; the environment of vLLM has it")
sys.path.insert(0, str(Path(__file__).parents[2] / "tree"))

from trees import draft

from ddbench.plugins.vllm import torch_ops
from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
TABLES = ("tokens", "parents", "depths", "mask", "row_slot", "row_drafts", "path")


def on_device(device: str) -> None:
    """Skips where this process cannot run the kernels on that device."""
    compiled = torch.cuda.is_available()
    if device == "cpu" and compiled:
        pytest.skip("the kernels are compiled in this process, the interpreter cannot run beside that")
    if device == "cuda" and not compiled:
        pytest.skip("no CUDA device")


def options(nodes: int, block: int = 8, **rest: object) -> Options:
    return Options(nodes=nodes, block=block, **rest)  # type: ignore[arg-type]


def copy_of(state: TreeState, device: str = "cpu") -> TreeState:
    other = TreeState(state.slots, state.nodes, torch.device(device))
    for name in TABLES:
        getattr(other, name).copy_(getattr(state, name))
    return other


def same(found: TreeState, expected: TreeState, note: object = "", names: tuple[str, ...] = TABLES) -> None:
    for name in names:
        one, other = getattr(found, name).cpu(), getattr(expected, name).cpu()
        assert torch.equal(one, other), f"{name} {note}\n{one}\n{other}"


@dataclass
class Batch:
    """Rows of a running batch on the host: their trees in a state, and where their tokens lie."""

    state: TreeState
    options: Options
    rows: int
    query_start: Tensor
    tokens: int


def batch(
    nodes: int, seed: int, rows: int = 4, kind: str = "smooth", block: int = 8, window_only: bool = False
) -> Batch:
    """Random trees in shuffled slots: among the rows whole trees, cut ones, plain rows, and tokens before a root."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    slots = rows + 2
    state = TreeState(slots, nodes, torch.device("cpu"))
    chosen = options(nodes, block)
    k = min(nodes, 24)
    log_probs = draft(rows, block - 1, k, kind, seed)
    vocabulary = 50
    order = torch.stack([torch.randperm(vocabulary, generator=generator)[:k] for _ in range(rows * (block - 1))])
    ids = order.view(rows, block - 1, k).to(torch.int32)
    places = torch.randperm(slots, generator=generator)[:rows]
    torch_ops.write_trees(state, chosen, log_probs, ids, places)
    lengths = []
    for row in range(rows):
        whole = (row + seed) % 4
        drafts = nodes if whole < 2 or window_only else integer(0, nodes)
        tree = whole != 2 or window_only
        state.row_slot[row] = int(places[row]) if tree else -1
        state.row_drafts[row] = drafts
        before = integer(1, 3) if whole == 3 and not window_only else 0
        lengths.append(before + 1 + drafts)
    query_start = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
    return Batch(state, chosen, rows, query_start, int(query_start[-1]))


def choices_along(case: Batch, seed: int) -> tuple[Tensor, Tensor]:
    """The target's choices, mostly along some path of the tree, and their inclusive cumulative counts."""
    generator = torch.Generator().manual_seed(seed)
    parts, state = [], case.state
    for row in range(case.rows):
        slot, drafts = int(state.row_slot[row]), int(state.row_drafts[row])
        chosen = torch.randint(0, 50, (drafts + 1,), generator=generator)
        if slot >= 0:
            for node in torch.randperm(drafts, generator=generator).tolist():
                parent = int(state.parents[slot, node])
                if parent >= 0 and torch.rand(1, generator=generator) < 0.9:
                    chosen[parent] = state.tokens[slot, node]
        parts.append(chosen)
    counts = torch.tensor([len(part) for part in parts])
    return torch.cat(parts), counts.cumsum(0).to(torch.int32)


def walked(case: Batch, seed: int) -> Batch:
    """The same batch after the walk of the torch twin."""
    choices, cu_sampled = choices_along(case, seed)
    emitted = torch.empty(case.rows, case.state.nodes + 1, dtype=torch.int32)
    torch_ops.walk(case.state, case.rows, choices, cu_sampled, emitted)
    return case


def either_layout(make: Callable[..., Tensor], blocks: int, heads: int, page: int, size: int, by_head: bool) -> Tensor:
    """A cache ``[blocks, heads, page, size]``, in memory by head or by token."""
    if by_head:
        return make(blocks, heads, page, size)
    return make(blocks, page, heads, size).permute(0, 2, 1, 3)
