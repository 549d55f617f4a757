"""The tree's options as a server's configuration has them."""

from __future__ import annotations

from typing import Any

from ddbench.plugins.vllm.options import Options


def options_of(vllm_config: Any) -> Options:
    """The tree's options as a server's configuration has them. Raises ConfigError."""
    speculative = vllm_config.speculative_config
    block = int(speculative.draft_model_config.hf_config.block_size)
    return Options.of(vllm_config.additional_config, int(speculative.num_speculative_tokens), block)
