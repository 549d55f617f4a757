"""vLLM's Triton attention with a tree mask: the backend CUSTOM.

The stock kernel does what it always did: prefills, single tokens, the drafter. Rows that verify a tree go to the
kernel of `kernels.attention`; a batch in which all do, and so every captured graph of one, never meets the stock one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl

from ddbench.plugins.vllm.context import active
from ddbench.plugins.vllm.kernels.ops import tree_attention


class DDTreeImpl(TritonAttentionImpl):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain = self.alibi_slopes is None and self.sinks is None and not self.logits_soft_cap
        self.serves_trees = plain and self.sliding_window == (-1, -1) and self.attn_type == "decoder"

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        stock = super().forward
        arguments = (layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale)
        if attn_metadata is None:
            return stock(*arguments)  # type: ignore[no-any-return]
        context = active()
        if context.rows == "none" or layer.layer_name in context.draft_layers:
            return stock(*arguments)  # type: ignore[no-any-return]
        if not self.serves_trees or output_scale is not None:
            raise RuntimeError(
                f"ddbench: {layer.layer_name}: tree attention has no sinks, slopes, caps, windows or quantization"
            )
        if context.rows == "some":
            stock(*arguments)
        tokens = attn_metadata.num_actual_tokens
        tree_attention(
            context.state,
            query[:tokens].view(tokens, self.num_heads, self.head_size),
            kv_cache,
            attn_metadata.block_table,
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            self.scale,
            output[:tokens].view(tokens, self.num_heads, self.head_size),
            max_query=context.state.nodes + 1,
            only_trees=context.rows == "some",
            workspace=context.workspace,
        )
        return output


class DDTreeBackend(TritonAttentionBackend):  # type: ignore[misc]
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[DDTreeImpl]:
        return DDTreeImpl
