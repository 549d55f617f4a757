"""The tree's operations for a device: Triton kernels on CUDA, plain torch elsewhere."""

from __future__ import annotations

from typing import Any

import torch


def operations(device: torch.device) -> Any:
    """`kernels.ops` or `torch_ops`, which have the same functions."""
    if device.type == "cuda":
        from ddbench.plugins.vllm.kernels import ops

        return ops
    from ddbench.plugins.vllm import torch_ops

    return torch_ops
