"""CUDA graphs of what every round repeats on fixed shapes: the target's pass, the drafter's, and the tree's build.

At batch 1 a pass through a Hugging Face model waits for its kernels to be launched one by one, not for the GPU. A graph
launches all of them at once. What changes from round to round goes in by tensors of fixed shape: views of a cache are
rounded up to :data:`STEP` slots, and a mask hides what is not committed.

A graph that is destroyed while another is captured ends that capture with an error. So graphs are destroyed when they
are no longer needed (:meth:`Graphs.release`), not when the garbage collector comes by, and it waits during a capture.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
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

    ``replayed`` and ``direct`` count the calls that were captured ones and those that ran as they are, ``captured`` the
    graphs that were made.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._seen: Counter[Hashable] = Counter()
        self._kept: dict[Hashable, _Captured[Any]] = {}
        self.captured = self.replayed = self.direct = 0

    def __len__(self) -> int:
        """Graphs that can be replayed."""
        return len(self._kept)

    def run(self, key: Hashable, function: Callable[..., T], *inputs: Tensor) -> T:
        """``function(*inputs)``, which may read nothing else that changes but what is in place at fixed addresses."""
        kept: _Captured[T] | None = self._kept.get(key)
        if kept is None:
            self._seen[key] += 1
            if self._seen[key] <= WARM or len(self) >= MOST:
                self.direct += 1
                return function(*inputs)
            if self.captured == 0:
                gc.collect()  # whatever graphs of others are garbage by now: their memory is wanted
            kept = self._kept[key] = _Captured(function, inputs, self._device, self._pool)
            self.captured += 1
        self.replayed += 1
        return kept(*inputs)

    def release(self) -> None:
        """Destroys all graphs and lets go of their memory; what they gave must not be used any more."""
        for kept in self._kept.values():
            kept.release()
        self._kept.clear()
        self._seen.clear()


class _Captured(Generic[T]):
    def __init__(self, function: Callable[..., T], inputs: tuple[Tensor, ...], device: torch.device, pool: Any) -> None:
        self._inputs = [each.clone(memory_format=torch.contiguous_format) for each in inputs]
        self._function: Callable[..., T] | None = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._results: T | None = None
        if device.type == "cuda":
            self._graph = torch.cuda.CUDAGraph()
            # Errors of this thread's calls alone: what another one does (telemetry, say) is none of this capture's.
            capture = torch.cuda.graph(self._graph, pool, _stream(device), capture_error_mode="thread_local")
            with no_collection(), torch.cuda.device(device), capture:
                self._results = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> T:
        assert self._function is not None, "the graph has been released"
        for kept, new in zip(self._inputs, inputs, strict=True):
            kept.copy_(new)
        if self._graph is None:
            return self._function(*self._inputs)
        self._graph.replay()
        results: T = self._results  # type: ignore[assignment]
        return results

    def release(self) -> None:
        if self._graph is not None:
            self._graph.reset()
        self._graph = self._function = self._results = None
        self._inputs = []


@contextmanager
def no_collection() -> Iterator[None]:
    """The garbage collector does not start by itself within."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@lru_cache(maxsize=16)
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs of a device are captured: one for all, since libraries keep workspaces by stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
