"""What the plug-in overrides, hooks, or calls by position or by name, per version of SGLang.

A version in which one of these differs is refused before it can be misled.
"""

from __future__ import annotations

Table = dict[str, tuple[str, ...]]

# Parameters without self, in order: the whole list must be the same.
V0517: Table = {
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.__init__": (
        "server_args",
        "gpu_id",
        "ps",
        "nccl_port",
        "target_worker",
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.alloc_memory_pool": (
        "memory_pool_config",
        "req_to_token_pool",
        "token_to_kv_pool_allocator",
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.init_attention_backends": (),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.init_cuda_graphs": (),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation": (
        "batch",
        "on_publish",
        "grammar_barrier",
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._maybe_build_draft_sampler": (),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc": (
        "target_hidden",
        "cache_loc",
        "positions",
        "cache_loc_2d",
        "commit_lens",
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._make_next_draft_input_prefill": (
        "bonus_tokens",
        "seq_lens",
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._make_next_draft_input_decode": (
        "bonus_tokens",
        "new_seq_lens",
    ),
    "sglang.srt.speculative.dflash_info:DFlashVerifyInput.prepare_for_verify": ("batch", "target_worker"),
    "sglang.srt.speculative.dflash_info_v2:DFlashDraftInputV2.prepare_for_decode": ("batch",),
    "sglang.srt.speculative.draft_worker_common:make_draft_sampler_capture_hook": ("draft_sampler",),
    "sglang.srt.speculative.dflash_utils:apply_dflash_verify_logits_adjustments": (
        "next_token_logits",
        "sampling_info",
        "draft_token_num",
    ),
    "sglang.srt.speculative.dflash_utils:validate_dflash_request": ("req", "enable_overlap"),
    "sglang.srt.speculative.dflash_utils:parse_dflash_draft_config": ("draft_hf_config",),
    "sglang.srt.speculative.spec_utils:spec_need_hidden_states": ("server_args",),
    "sglang.srt.speculative.spec_utils:commit_mamba_states_after_verify": (
        "target_worker",
        "batch",
        "accept_lens",
        "accept_index",
        "draft_token_num",
    ),
    "sglang.srt.speculative.spec_info:create_dummy_verify_input": (
        "spec_algorithm",
        "server_args",
        "custom_mask",
        "num_tokens_per_req",
        "is_draft_worker",
    ),
    "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.create_future_map": (
        "device",
        "req_to_token_pool",
        "needs_cpu_seq_lens",
        "needs_confidence_relay",
    ),
    "sglang.srt.speculative.spec_registry:register_algorithm": (
        "name",
        "supports_overlap",
        "validate_server_args",
        "spec_class",
    ),
    "sglang.srt.mem_cache.allocation_sizing:get_alloc_len_per_decode": ("server_args",),
    "sglang.srt.mem_cache.allocation_sizing:get_req_to_token_extra_context_len": ("server_args",),
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.get_spec_info": ("num_tokens",),
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.capture_one_shape": (
        "size",
        "forward",
        "stream_idx",
        "variant_label",
    ),
    "sglang.srt.model_executor.model_runner:ModelRunner.forward": (
        "forward_batch",
        "skip_attn_backend_init",
        "pp_proxy_tensors",
        "reinit_attn_backend",
        "split_forward_count",
    ),
    "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation": (
        "batch",
        "forward_batch",
        "pp_proxy_tensors",
        "is_verify",
        "skip_attn_backend_init",
        "capture_hidden_mode",
    ),
    "sglang.srt.managers.scheduler:Scheduler.set_internal_state": ("recv_req",),
    "sglang.srt.managers.scheduler:Scheduler.get_internal_state": ("recv_req",),
    "sglang.srt.layers.attention.verify_mask:VerifyMask.fits": ("bs",),
    "sglang.srt.arg_groups.overrides:attention_backends_of": ("cfg",),
    "sglang.srt.arg_groups.overrides:resolved_view": ("server_args",),
    "sglang.srt.utils.hf_transformers_utils:get_config": (
        "model",
        "trust_remote_code",
        "revision",
        "model_override_args",
        "model_config_parser",
        "kwargs",
    ),
    "sglang.srt.plugins.hook_registry:HookRegistry.register": ("target", "hook", "hook_type", "source"),
}
V0523: Table = V0517 | {
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.__init__": (
        "server_args",
        "gpu_id",
        "nccl_port",
        "target_worker",
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation": (
        "batch",
        "on_publish",
        "grammar_barrier",
        "pp_proxy_tensors",
    ),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc": (
        "target_hidden",
        "cache_loc",
        "positions",
        "cache_loc_2d",
        "commit_lens",
        "extend_lens",
    ),
    "sglang.srt.speculative.dflash_info:DFlashVerifyInput.prepare_for_verify": (
        "batch",
        "target_worker",
        "defer_metadata_init",
    ),
    "sglang.srt.speculative.spec_utils:spec_need_hidden_states": (),
    "sglang.srt.speculative.spec_utils:commit_mamba_states_after_verify": (
        "target_worker",
        "batch",
        "accept_lens",
        "accept_index",
        "draft_token_num",
        "prepared_step_indices",
    ),
    "sglang.srt.speculative.spec_info:create_dummy_verify_input": (
        "spec_algorithm",
        "custom_mask",
        "num_tokens_per_req",
        "is_draft_worker",
    ),
    "sglang.srt.mem_cache.allocation_sizing:get_alloc_len_per_decode": (),
    "sglang.srt.mem_cache.allocation_sizing:get_req_to_token_extra_context_len": (),
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.capture_one_shape": (
        "size",
        "forward",
        "stream_idx",
        "variant_label",
        "attention_variant",
    ),
    "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation": (
        "batch",
        "forward_batch",
        "pp_proxy_tensors",
        "is_verify",
        "skip_attn_backend_init",
        "capture_hidden_mode",
        "return_kv_loc_plan",
    ),
    "sglang.srt.mem_cache.kv_index_translator:KVIndexTranslator.plan": (
        "req_pool_indices",
        "seq_lens",
        "seq_lens_cpu",
        "write_virtual",
        "read_extent",
        "write_slots",
        "translated_writes",
    ),
    "sglang.srt.mem_cache.kv_loc_plan:KVLocPlan.bind": ("batch", "reader", "cols"),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._draft_write_ids": ("plan",),
    "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2._defer_target_verify_gather": (),
    "sglang.srt.speculative.dflash_worker_v2:_resolve_dflash_embedding_module": ("draft_model", "target_model"),
}

# Looked up by name; absence is refused.
LOOKED_UP: tuple[str, ...] = (
    "sglang.srt.configs.hybrid_arch:mambaish_config",
    "sglang.srt.configs.model_config:AttentionArch.MLA",
    "sglang.srt.distributed:get_tp_group",
    "sglang.srt.managers.io_struct:SetInternalStateReq",
    "sglang.srt.managers.io_struct:SetInternalStateReqOutput",
    "sglang.srt.managers.scheduler:GenerationBatchResult",
    "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool",
    "sglang.srt.model_executor.forward_batch_info:CaptureHiddenMode.FULL",
    "sglang.srt.model_executor.forward_batch_info:ForwardBatch",
    "sglang.srt.model_executor.forward_batch_info:ForwardMode.TARGET_VERIFY",
    "sglang.srt.runtime_context:get_exec",
    "sglang.srt.runtime_context:get_server_args",
    "sglang.srt.runtime_context:get_spec",
    "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.DFLASH",
    "sglang.srt.speculative.spec_registry:CustomSpecAlgo",
    "sglang.srt.speculative.spec_utils:SIMULATE_ACC_LEN",
    "sglang.srt.speculative.spec_utils:SIMULATE_ACC_METHOD",
)
NAMES: dict[str, tuple[str, ...]] = {
    "0.5.17": (*LOOKED_UP, "sglang.srt.speculative.spec_utils:_sample_simulated_acc_len"),
    "0.5.23": (
        *LOOKED_UP,
        "sglang.srt.speculative.spec_utils:sample_simulated_acc_len",
        "sglang.srt.speculative.spec_utils:draft_tp_context",
    ),
}
SIGNATURES: dict[str, Table] = {"0.5.17": V0517, "0.5.23": V0523}
