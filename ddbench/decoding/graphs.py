"""CUDA graphs of what every round repeats on fixed shapes: the target's pass, the drafter's, and the tree's build.

At batch 1 a pass through a Hugging Face model waits for its kernels to be launched one by one, not for the GPU. A graph
launches all of them at once. What changes from round to round goes in by tensors of fixed shape: views of a cache are
rounded up to :data:`STEP` slots, and a mask hides what is not committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

STEP = 512  # slots by which a view of a cache grows
WARM = 3  # calls of a shape that run as they are, before it is captured
MOST = 64  # graphs; further shapes run as they are


def stepped(length: int, most: int) -> int:
    """``length`` rounded up to :data:`STEP`, at most ``most``."""
    return min(-(-length // STEP) * STEP, most)


class Graphs:
    """Functions of tensors by a key of their shapes: run as they are at first, then captured and replayed.

    What a captured function gives is overwritten by its next call. On a device other than CUDA the function is called
    on the kept inputs instead, which is no faster, and runs the same shapes.

    ``replayed`` and ``direct`` count the calls that were captured ones and those that ran as they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, _Captured[Any]] = {}
        self.replayed = self.direct = 0

    def __len__(self) -> int:
        return len(self._captured)

    def run(self, key: Hashable, function: Callable[..., T], *inputs: Tensor) -> T:
        """``function(*inputs)``, which may read nothing else that changes but what is in place at fixed addresses."""
        captured: _Captured[T] | None = self._captured.get(key)
        if captured is None:
            self._seen[key] += 1
            if self._seen[key] <= WARM or len(self) >= MOST:
                self.direct += 1
                return function(*inputs)
            captured = self._captured[key] = _Captured(function, inputs, self._pool)
        self.replayed += 1
        return captured(*inputs)


class _Captured(Generic[T]):
    def __init__(self, function: Callable[..., T], inputs: tuple[Tensor, ...], pool: Any) -> None:
        self._inputs = [each.clone(memory_format=torch.contiguous_format) for each in inputs]
        self._function, self._graph = function, None
        if pool is None:
            return
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._results = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> T:
        for kept, new in zip(self._inputs, inputs, strict=True):
            kept.copy_(new)
        if self._graph is None:
            return self._function(*self._inputs)
        self._graph.replay()
        return self._results
