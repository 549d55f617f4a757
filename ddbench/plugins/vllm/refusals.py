"""What a tree cannot do in this version, said by name before anything runs, or to the request that asks for it."""

from __future__ import annotations

from typing import Any

WORKER = "ddbench.plugins.vllm.worker.DDTreeWorker"
# Without and with asynchronous scheduling.
SCHEDULERS = ("ddbench.plugins.vllm.scheduler.DDTreeScheduler", "ddbench.plugins.vllm.scheduler.DDTreeAsyncScheduler")


class Refused(ValueError):
    """A server or a request that DDTree does not serve; the text says why in one line."""


def is_ours(vllm_config: Any) -> bool:
    """Whether this configuration asks for DDTree."""
    return bool(vllm_config.parallel_config.worker_cls == WORKER)


def check_config(config: Any) -> None:
    """Raises Refused for a server configuration that DDTree does not serve."""
    speculative, model, parallel = config.speculative_config, config.model_config, config.parallel_config
    if speculative is None or speculative.method != "dflash":
        raise _refused("--speculative-config", 'a DFlash drafter is needed: {"method": "dflash", ...}')
    scheduler = config.scheduler_config.scheduler_cls
    expected = SCHEDULERS[bool(config.scheduler_config.async_scheduling)]
    refusals = [
        (scheduler != expected, "--scheduler-cls", f"must be {expected}"),
        (
            getattr(config, "use_v2_model_runner", False),
            "VLLM_USE_V2_MODEL_RUNNER",
            "must be 0: the V2 runner has no such door",
        ),
        (parallel.tensor_parallel_size > 1, "--tensor-parallel-size", "1 in this version"),
        (parallel.pipeline_parallel_size > 1, "--pipeline-parallel-size", "1 in this version"),
        (parallel.data_parallel_size > 1, "--data-parallel-size", "1 in this version"),
        (getattr(parallel, "decode_context_parallel_size", 1) > 1, "decode context parallelism", "1 in this version"),
        (parallel.enable_dbo if hasattr(parallel, "enable_dbo") else False, "--enable-dbo", "off"),
        (config.lora_config is not None, "LoRA", "not in this version"),
        (config.kv_transfer_config is not None, "KV transfer", "not in this version"),
        (model.is_hybrid, "a hybrid model", "its recurrent layers would let siblings share a state"),
        (model.uses_mrope, "a model with M-RoPE", "not in this version"),
        (model.is_encoder_decoder, "an encoder-decoder model", "not in this version"),
        (
            str(config.cache_config.cache_dtype).startswith("fp8"),
            "--kv-cache-dtype",
            "an fp8 cache has no tree attention yet",
        ),
        (speculative.disable_padded_drafter_batch, "disable_padded_drafter_batch", "must be false"),
        (speculative.rejection_sample_method != "standard", "rejection_sample_method", "the tree's own walk is used"),
        (getattr(speculative, "draft_sample_method", "greedy") != "greedy", "draft_sample_method", "must be greedy"),
        (
            bool(speculative.num_speculative_tokens_per_batch_size),
            "num_speculative_tokens_per_batch_size",
            "must be unset",
        ),
        (
            speculative.draft_model_config.get_vocab_size() != model.get_vocab_size(),
            "the drafter's vocabulary",
            "must be the target's",
        ),
    ]
    for refuse, what, why in refusals:
        if refuse:
            raise _refused(what, why)


def check_caches(kv_cache_config: Any, compilation: Any, device: str) -> None:
    """Raises Refused for cache groups or CUDA-graph modes in which the tree would be ignored or be wrong."""
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        for one in getattr(spec, "kv_cache_specs", {None: spec}).values():
            if type(one).__name__ != "FullAttentionSpec" or getattr(one, "sliding_window", None):
                raise _refused(f"{type(one).__name__} layers", "only full attention in this version")
    mode = compilation.cudagraph_mode
    if device == "cuda" and mode is not None and mode.mixed_mode().name == "FULL":
        raise _refused(
            "cudagraph_mode", "a full graph of mixed batches would ignore the tree; FULL_AND_PIECEWISE is right"
        )


def check_request(params: Any) -> None:
    """Raises Refused for sampling parameters that need the history of each path of a tree, or its probabilities.

    Served as it is: temperature, top_p, top_k, seed, stop strings and tokens, ignore_eos, max_tokens, n.
    """
    asked = {
        "presence_penalty": getattr(params, "presence_penalty", 0.0) not in (0, 0.0),
        "frequency_penalty": getattr(params, "frequency_penalty", 0.0) not in (0, 0.0),
        "repetition_penalty": getattr(params, "repetition_penalty", 1.0) != 1.0,
        "min_p": bool(getattr(params, "min_p", 0.0)),
        "min_tokens": bool(getattr(params, "min_tokens", 0)),
        "logprobs": getattr(params, "logprobs", None) is not None,
        "prompt_logprobs": getattr(params, "prompt_logprobs", None) is not None,
        "logit_bias": bool(getattr(params, "logit_bias", None)),
        "allowed_token_ids": bool(getattr(params, "allowed_token_ids", None)),
        "bad_words": bool(getattr(params, "bad_words", None)),
        "structured_outputs": getattr(params, "structured_outputs", None) is not None,
        "thinking_token_budget": getattr(params, "thinking_token_budget", None) is not None,
    }
    found = [name for name, used in asked.items() if used]
    if found:
        raise Refused(f"DDTree does not serve requests with {', '.join(found)}: see docs/vllm.md")


def _refused(what: str, why: str) -> Refused:
    return Refused(f"ddbench: DDTree plug-in refused: {what}: {why}")
