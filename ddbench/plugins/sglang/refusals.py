"""What the plug-in does not serve, each named: server settings, models, requests."""

from __future__ import annotations

from typing import Any

from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.recurrent import attention_pool, check_kind, check_states, check_tracking, is_recurrent
from ddbench.plugins.sglang.refused import Refused

# Settings that must have one of these values: name, allowed values, why. A setting that a version lacks is passed over.
SETTINGS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("page_size", (1,), "a tree's path is moved token by token"),
    ("pp_size", (1,), "the drafter reads features of the whole target"),
    ("dp_size", (1,), "data parallelism is untested"),
    ("dcp_size", (1,), "context parallelism is untested"),
    ("attn_cp_size", (1,), "context parallelism is untested"),
    ("enable_dp_attention", (False,), "data-parallel attention is untested"),
    ("enable_lora", (None, False), "adapters are untested"),
    ("enable_pdmux", (False,), "it runs prefill and decoding on streams of their own"),
    ("enable_two_batch_overlap", (False,), "it splits a verify pass"),
    ("enable_single_batch_overlap", (False,), "it is untested"),
    ("enable_deterministic_inference", (False,), "its attention kernel and its sampling know no tree"),
    ("disaggregation_mode", ("null",), "prefill and decoding in two servers are untested"),
    ("enable_hisparse", (False,), "sparse attention knows no tree mask"),
    ("enable_hierarchical_cache", (False,), "a cache beyond the GPU is untested"),
    ("enable_unified_memory", (False,), "it moves cache slots"),
    ("enable_page_major_kv_layout", (False,), "a tree's path is moved slot by slot"),
    ("enable_return_hidden_states", (False,), "the drafter alone reads them"),
    ("enable_return_routed_experts", (False,), "experts are kept by cache slot, and a tree's path is moved"),
    ("enable_return_indexer_topk", (False,), "it is kept by cache slot, and a tree's path is moved"),
    ("speculative_adaptive", (False,), "it changes the captured width"),
    ("speculative_num_steps", (None, 1), "a round drafts once; limit the tree's depth with DDTREE_DEPTH"),
    ("speculative_draft_window_size", (None,), "the drafter's window is untested"),
    ("dllm_algorithm", (None,), "it is another kind of decoding"),
    ("linear_attn_backend", ("triton",), "only Triton's kernels of recurrent layers follow a tree's links"),
    ("linear_attn_decode_backend", (None, "triton"), "other kernels of recurrent layers are untested beside trees"),
    ("linear_attn_prefill_backend", (None, "triton"), "other kernels of recurrent layers are untested beside trees"),
    ("linear_attn_verify_backend", (None, "triton"), "only Triton's kernels of recurrent layers follow a tree's links"),
    ("enable_linear_replayssm", (False,), "it rebuilds recurrent states from a chain of tokens"),
    ("enable_linear_replayssm_spec", (False,), "it rebuilds recurrent states from a chain of tokens"),
    ("enable_int8_mamba_checkpoint", (False,), "rounded recurrent states are untested"),
    ("enable_mamba_cache_stochastic_rounding", (False,), "rounded recurrent states are untested"),
)
DRAFTERS = ("DFlashDraftModel",)
HISTORY = "it needs the history of every path of a tree"
MEDIA = "multimodal content (images, video, sound)"
REASONS = {MEDIA: "such prompts are untested"}
FOREIGN = ("markov", "domino", "lilicorr")  # their positions depend on each other: no product of marginals


def check_settings(args: Any) -> None:
    """Raises Refused for the first of `SETTINGS` that is not as it must be. ``args``: SGLang's, as far as resolved."""
    for name, allowed, why in SETTINGS:
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            wanted = " or ".join("unset" if one is None else repr(one) for one in allowed)
            raise Refused(f"{name}={value!r}: DDTREE needs {wanted}: {why}")
    if not str(args.device).startswith("cuda"):
        raise Refused(f"device={args.device!r}: DDTREE runs on CUDA")
    if args.speculative_draft_model_path is None:
        raise Refused("speculative_draft_model_path=None: DDTREE needs a DFlash drafter")
    if getattr(args, "lora_paths", None):
        raise Refused("lora_paths: DDTREE serves no adapters")
    if getattr(args, "uses_mamba_radix_cache", False):
        check_tracking(args)


def check_drafter(config: Any) -> None:
    """Raises Refused for a drafter whose positions are not independent of each other given the context."""
    architectures = tuple(getattr(config, "architectures", None) or ())
    if not set(architectures) & set(DRAFTERS):
        raise Refused(f"drafter's architectures={architectures}: DDTREE knows {', '.join(DRAFTERS)}")
    keys = [str(key).lower() for key in _settings_of(config)]
    found = [key for key in keys for word in FOREIGN if word in key]
    if found:
        raise Refused(f"drafter's {found[0]}: DDTREE takes no DFlash-2, Domino or LiLiCorr drafter")


def _settings_of(config: Any) -> list[str]:
    inner = getattr(config, "dflash_config", None)
    names = list(inner) if isinstance(inner, dict) else []
    return names + [name for name in vars(config) if getattr(config, name) not in (None, 0, False)]


def check_target(runner: Any, sizes: Sizes) -> None:
    """Raises Refused for a target whose attention or cache the plug-in cannot follow. ``runner``: its ModelRunner."""
    from sglang.srt.configs.model_config import AttentionArch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    config, recurrent = runner.model_config, is_recurrent(runner)
    if recurrent:
        check_kind(runner)
        check_tracking(runner.server_args)
    if config.attention_arch == AttentionArch.MLA:
        raise Refused("a target with latent attention (MLA): not in this version of the plug-in")
    if runner.sliding_window_size is not None or runner.is_hybrid_swa:
        raise Refused("a target with sliding-window attention: not in this version of the plug-in")
    if config.is_encoder_decoder or (config.model_is_mrope and not recurrent):
        raise Refused("an encoder-decoder or multimodal target: not in this version of the plug-in")
    pool = attention_pool(runner.token_to_kv_pool)
    if pool is not None and (type(pool) is not MHATokenToKVPool or pool.kv_cache_layout != "nhd"):
        raise Refused(f"a {type(pool).__name__} of layout {getattr(pool, 'kv_cache_layout', None)!r}: not supported")
    if recurrent:
        check_states(runner, sizes)


def check_request(request: Any) -> str | None:
    """Why SGLang's ``Req`` cannot be served exactly; None if it can. Most of these read the history of a path."""
    asked = request.sampling_params
    reasons = (
        (request.return_logprob, "return_logprob"),
        (request.return_hidden_states, "return_hidden_states"),
        (request.lora_id is not None, "a LoRA adapter"),
        (request.custom_logit_processor is not None, "a custom logit processor"),
        (getattr(request, "multimodal_inputs", None) is not None, MEDIA),
        (asked.frequency_penalty != 0.0, "frequency_penalty"),
        (asked.presence_penalty != 0.0, "presence_penalty"),
        (asked.repetition_penalty != 1.0, "repetition_penalty"),
        (asked.min_new_tokens > 0, "min_new_tokens"),
        (asked.json_schema is not None, "json_schema"),
        (asked.regex is not None, "regex"),
        (asked.ebnf is not None, "ebnf"),
        (asked.structural_tag is not None, "structural_tag"),
    )
    for holds, name in reasons:
        if holds:
            return f"ddbench: DDTREE does not serve {name}: {REASONS.get(name, HISTORY)}"
    return None
