"""What a running server is, as far as it can say: for the costs of its steps, and for an adaptive width."""

from __future__ import annotations

from typing import Any

import torch

from ddbench.plugins.sglang.gate import check_engine, parameters
from ddbench.plugins.sglang.options import POLICY, WIDTHS_VERSION
from ddbench.plugins.sglang.refused import Refused

# What only an adaptive width uses, with the parameters that it was written for.
USED: dict[str, tuple[str, ...]] = {
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.__init__": (
        "model_runner",
        "attn_backend",
        "speculative_num_steps",
        "speculative_num_draft_tokens",
    ),
    "sglang.srt.layers.attention.triton_backend:TritonAttnBackend.init_cuda_graph_state": (
        "max_bs",
        "max_num_tokens",
        "kv_indices_buf",
        "cuda_graph_num_kv_splits_buf",
    ),
}


def setup_of(runner: Any) -> dict[str, str]:
    """The part of a cost file's fingerprint that SGLang's ModelRunner can vouch for."""
    torch_version = torch.__version__.partition("+")[0]
    return {
        "engine": "sglang",
        "engine_version": f"sglang {check_engine()} torch {torch_version}",
        "device": torch.cuda.get_device_name(),
        "dtype": str(runner.dtype).removeprefix("torch."),
    }


def check_adaptive(worker: Any) -> None:
    """Raises Refused where the verify width cannot change from round to round."""
    reasons = {
        f"SGLang {check_engine()}; it was written for {WIDTHS_VERSION}": check_engine() != WIDTHS_VERSION,
        "tensor parallelism: ranks would see rounds arrive at different times": worker.sampler.group is not None,
        "recurrent layers: their states are kept for one width": worker.states is not None,
        "recording: it records one width": worker.recorder is not None,
    }
    reasons |= {f"another {place} in this SGLang": parameters(place) != names for place, names in USED.items()}
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise Refused(f"{POLICY} with {found[0]}")
