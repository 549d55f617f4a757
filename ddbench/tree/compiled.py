"""The compiled build: the heap of `heap.py` in numba, on the host, row after row. The first call imports it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.tree.shape import Limits, Tree

Kernel = Callable[..., tuple[np.ndarray[Any, Any], ...]]


def build_tree_compiled(
    log_probs: Tensor,
    nodes: int,
    width: int | None = None,
    depth: int | None = None,
    min_log_prob: float | None = None,
    force_spine: bool = False,
) -> Tree:
    """As `ddbench.tree.build_tree`; log-probabilities on a GPU are copied to the host and the tree back.

    The first call compiles for some seconds; numba keeps the result on disk.

    Raises:
        ConfigError: as `build_tree`, and when numba is not installed.
    """
    limits = Limits.of(log_probs, nodes, width, depth, min_log_prob, force_spine)
    lp = limits.prepare(log_probs.cpu()).contiguous().numpy()
    parts = _kernel()(lp, nodes, np.float32(limits.floor), force_spine)
    return Tree(*(torch.from_numpy(part).to(log_probs.device) for part in parts))


@functools.cache
def _kernel() -> Kernel:
    try:
        from ddbench.tree import compiled_kernel
    except ImportError as error:
        raise ConfigError("build_tree_compiled", str(error), "needs numba: pip install 'ddbench[compiled]'") from error
    return cast(Kernel, compiled_kernel.build)
