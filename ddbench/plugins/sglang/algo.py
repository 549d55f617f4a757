"""DDTREE as SGLang's scheduler sees it: a speculative algorithm of DFlash's family with settings of its own."""

from __future__ import annotations

import json
from typing import Any

from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from ddbench.plugins.sglang.backends import architecture_of_gpu, check_backends
from ddbench.plugins.sglang.gate import check_engine
from ddbench.plugins.sglang.options import DEFAULT_NODES, Sizes, caps_at_start
from ddbench.plugins.sglang.refusals import check_drafter, check_settings
from ddbench.plugins.sglang.refused import Refused, say

NAME = "DDTREE"
MOST_REQUESTS = 48  # as SGLang's own default for a DFlash server


class DDTreeAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
    """Answers as SpeculativeAlgorithm.DFLASH does, but for the width of a pass, which has two values here."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return False  # a request with a grammar is refused, so no barrier is needed

    def has_draft_kv(self) -> bool:
        return True

    def carries_draft_hidden_states(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def create_future_map(self, *args: Any, **kwargs: Any) -> Any:
        """SGLang's own relay between rounds, told of this algorithm instead of an enum member."""
        return SpeculativeAlgorithm.create_future_map(self, *args, **kwargs)

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """The drafter's block for its own pass, the verify width for the target's."""
        if not is_draft_worker:
            return num_draft_tokens
        from sglang.srt.runtime_context import get_spec

        return int(get_spec().speculative_dflash_block_size)

    def handle_server_args(self, server_args: Any) -> None:
        resolve(server_args)

    def __getattr__(self, name: str) -> Any:
        """What a later SGLang asks its algorithms: DFlash's answer."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(SpeculativeAlgorithm.DFLASH, name)


def is_ddtree(algorithm: object) -> bool:
    return isinstance(algorithm, DDTreeAlgorithm)


def check_first(server_args: Any) -> None:
    """The first of two calls at a server's start, before SGLang adapts anything. Raises Refused."""
    check_engine()
    check_settings(resolved_view(server_args))


def resolve(server_args: Any) -> None:
    """Completes the settings of a DDTREE server, or raises Refused or ConfigError."""
    version = check_engine()
    check_settings(resolved_view(server_args))
    config = drafter_config(server_args)
    check_drafter(config)
    block = server_args.speculative_dflash_block_size or block_of(config)
    width = server_args.speculative_num_draft_tokens or DEFAULT_NODES + 1
    sizes = Sizes(int(width), int(block), int(server_args.speculative_eagle_topk or int(width) - 1))
    caps = caps_at_start(sizes)
    prefill, decode = attention_backends_of(resolved_view(server_args))
    draft = server_args.speculative_draft_attention_backend or decode
    check_backends(version, prefill, decode, draft, architecture_of_gpu())
    server_args.speculative_num_steps = 1
    server_args.speculative_eagle_topk = sizes.top_k
    server_args.speculative_num_draft_tokens = sizes.verify_width
    server_args.speculative_dflash_block_size = sizes.block
    server_args.speculative_draft_attention_backend = draft
    if server_args.max_running_requests is None:
        server_args.max_running_requests = MOST_REQUESTS
    if server_args.enable_mixed_chunk:
        server_args.enable_mixed_chunk = False
    say(f"DDTREE on SGLang {version}: {sizes}, target {decode}, drafter {draft}, {caps}")


def drafter_config(server_args: Any) -> Any:
    """The drafter's configuration, read as SGLang reads it."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    return get_config(
        server_args.speculative_draft_model_path,
        trust_remote_code=server_args.trust_remote_code,
        revision=server_args.speculative_draft_model_revision,
        model_override_args=json.loads(server_args.json_model_override_args),
    )


def block_of(config: Any) -> int:
    """Block size of a drafter. Raises Refused where its configuration names none."""
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    block = parse_dflash_draft_config(draft_hf_config=config).resolve_block_size(default=None)
    if block is None:
        raise Refused("the drafter's configuration names no block_size: set --speculative-dflash-block-size")
    return int(block)
