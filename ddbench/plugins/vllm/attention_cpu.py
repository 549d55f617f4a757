"""vLLM's CPU attention with a tree mask: plain torch over a plain cache layout, for target and drafter alike."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from ddbench.plugins.vllm.context import active
from ddbench.plugins.vllm.torch_ops import tree_attention


class DDTreeCPUImpl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """Keys and values lie as ``[blocks, kv_heads, block_size, 2 * head_size]``, keys first."""

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        slots = slot_mapping[: key.shape[0]].long()
        kept = slots >= 0
        block, offset = slots[kept] // kv_cache.shape[2], slots[kept] % kv_cache.shape[2]
        kv_cache[block, :, offset, : self.head_size] = key[kept].view(-1, self.num_kv_heads, self.head_size)
        kv_cache[block, :, offset, self.head_size :] = value[kept].view(-1, self.num_kv_heads, self.head_size)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        if attn_metadata is None:
            return output
        context = active()
        drafting = layer.layer_name in context.draft_layers
        tokens = attn_metadata.num_actual_tokens
        tree_attention(
            None if drafting or context.rows == "none" else context.state,
            query[:tokens].view(tokens, self.num_heads, self.head_size),
            kv_cache,
            attn_metadata.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            self.scale,
            output[:tokens].view(tokens, self.num_heads, self.head_size),
            causal=bool(attn_metadata.causal),
        )
        return output


class DDTreeCPUBackend(CPUAttentionBackend):  # type: ignore[misc]
    @staticmethod
    def get_impl_cls() -> type[DDTreeCPUImpl]:
        return DDTreeCPUImpl
