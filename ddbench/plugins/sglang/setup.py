"""What a running server is, as far as it can say: for the costs of its steps, and for an adaptive width."""

from __future__ import annotations

import os
from typing import Any

import torch

from ddbench.plugins.sglang.gate import check_engine, parameters
from ddbench.plugins.sglang.options import ATTENTION, POLICY, WIDTHS_VERSION
from ddbench.plugins.sglang.recurrent import attending
from ddbench.plugins.sglang.refused import Refused
from ddbench.plugins.source import source_hash

# The end of a fingerprint's ``target``, before which stand numbers of parameters.
TARGET = "{layers} layers, {kv_heads} kv heads of {head_dim}, vocabulary {vocab_size}"

BACKENDS = {"TritonAttnBackend": "triton"}  # by SGLang's classes, as its arguments name them; others by their class

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
        **built_of(runner),
    }


def built_of(runner: Any) -> dict[str, str]:
    """Our plug-in, the attention that was asked for, and the target: its dimensions as :data:`TARGET` gives them, and
    its parameters, for two sizes of a family may differ in these alone."""
    config, backend = runner.model_config, type(attending(runner.attn_backend)).__name__
    quantized = getattr(config, "quantization", None) is not None  # packed weights are not counted
    count = {} if quantized else {"parameters": str(sum(each.numel() for each in runner.model.parameters()))}
    return {
        "build": source_hash(),
        "attention_backend": BACKENDS.get(backend, backend),
        "verify_attention": os.environ.get(ATTENTION, "") or "own",
        "target": TARGET.format(
            layers=int(config.num_hidden_layers),
            kv_heads=int(config.num_key_value_heads),
            head_dim=int(config.head_dim),
            vocab_size=int(config.vocab_size),
        ),
        **count,
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
