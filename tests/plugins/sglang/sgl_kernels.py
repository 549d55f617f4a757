"""Where the kernels run in this process: compiled on a GPU, else by Triton's interpreter on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
pytest.importorskip("triton", reason="Triton is not installed; the environment of vLLM has it")

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def on_device(device: str) -> None:
    """Skips where this process cannot run the kernels on that device."""
    compiled = torch.cuda.is_available()
    if device == "cpu" and compiled:
        pytest.skip("the kernels are compiled in this process, the interpreter cannot run beside that")
    if device == "cuda" and not compiled:
        pytest.skip("no CUDA device")
