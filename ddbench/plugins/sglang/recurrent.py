"""Targets with gated delta nets (Qwen3-Next, Qwen3.5, Qwen3.6): a state for every node of a tree, and its commit.

SGLang's verify kernels of a gated delta net start every entry of a window from the state of the entry that is its
parent, by the links ``retrieve_next_token`` and ``retrieve_next_sibling`` of the verify input, where the target was set
up with ``speculative_eagle_topk`` above 1; they leave the persistent state alone and keep a state and a convolution
window of every entry. After the walk the state of the path's last entry becomes the sequence's: the next root's parent.

Three things make siblings share a state without a word: a target set up for chains, windows that overlap as a chain's
may, and links that a captured graph was not given before its replay. All are looked for when a server starts or runs
its first round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddbench.plugins.sglang.backends import architecture_of_gpu, hybrid_state
from ddbench.plugins.sglang.gate import check_engine
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.refused import Refused, say

GATED_DELTA = ("Qwen3NextConfig", "Qwen3_5TextConfig", "Qwen3_5MoeTextConfig")  # SGLang's own configuration classes
STATES, LINEAR, FULL = "HybridLinearAttnBackend", "GDNAttnBackend", "TritonAttnBackend"


def is_recurrent(runner: Any) -> bool:
    """Whether SGLang's ModelRunner has a target with recurrent layers of any kind."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    return mambaish_config(runner.model_config) is not None


def attending(backend: Any) -> Any:
    """The backend of the full-attention layers: a hybrid's is inside of the one that has both kinds."""
    return getattr(backend, "full_attn_backend", backend)


def attention_pool(pool: Any) -> Any:
    """The keys and values of the full-attention layers, which alone have any."""
    return getattr(pool, "full_kv_pool", pool)


def check_kind(runner: Any) -> None:
    """Raises Refused for recurrent layers other than gated delta nets of a known kind; says where they are untested."""
    config = runner.model_config.hf_config
    name = type(config.get_text_config()).__name__
    if name not in GATED_DELTA:
        raise Refused(
            f"a target with recurrent layers of {name}: DDTREE knows gated delta nets of {', '.join(GATED_DELTA)}; "
            "trees over KDA, Lightning, Mamba2 and other states are not shown to be right"
        )
    version, gpu = check_engine(), architecture_of_gpu()
    if hybrid_state(version, gpu) != "correct":
        say(f"untested: trees over recurrent states on {gpu or 'this GPU'} with SGLang {version}: see docs/hybrid.md")


def check_tracking(args: Any) -> None:
    """Raises Refused where prefixes are cached by states that are copied while a sequence grows.

    ``args``: SGLang's settings. Without a cache, or with ``no_buffer``, a state is cached when its sequence ends.
    """
    if args.disable_radix_cache or args.mamba_radix_cache_strategy not in ("extra_buffer", "extra_buffer_lazy"):
        return
    raise Refused(
        f"mamba_radix_cache_strategy={args.mamba_radix_cache_strategy!r}: copies of states at fixed lengths are not "
        "shown to be right for trees; use --disable-radix-cache, or --mamba-radix-cache-strategy no_buffer with "
        "--disable-overlap-schedule"
    )


def check_states(runner: Any, sizes: Sizes) -> None:
    """Raises Refused unless SGLang keeps what a tree's states need, as it is set up. ``runner``: its ModelRunner."""
    backend = runner.attn_backend
    linear: Any = getattr(backend, "linear_attn_backend", None)
    full = attending(backend)
    kinds = [type(each).__name__ for each in (backend, linear, full)]
    if kinds != [STATES, LINEAR, FULL]:
        raise Refused(f"a hybrid target's attention by {', '.join(kinds)}: DDTREE knows {STATES}, {LINEAR}, {FULL}")
    top_k = int(linear.topk)
    if top_k != sizes.top_k:
        raise Refused(f"recurrent layers were set up for topk={top_k}, the trees have {sizes.top_k}")
    cache = runner.req_to_token_pool.mamba_pool.mamba_cache
    states, windows = getattr(cache, "intermediate_ssm", None), getattr(cache, "intermediate_conv_window", None)
    if states is None or not windows:
        raise Refused("SGLang keeps no state of every node of this target")
    if int(states.shape[2]) < sizes.verify_width:
        raise Refused(f"SGLang keeps states of {states.shape[2]} nodes, a window has {sizes.verify_width}")
    if sizes.top_k > 1 and not all(each.is_contiguous() for each in windows):
        raise Refused("SGLang keeps convolution windows that overlap, as only a chain's may")


class States:
    """The recurrent states of a target's trees, for batches of up to ``rows`` sequences."""

    def __init__(self, target: Any, rows: int, sizes: Sizes, device: torch.device | str) -> None:
        """``target``: SGLang's worker of the target."""
        self.target, self.sizes = target, sizes
        self._first = torch.arange(rows, dtype=torch.int32, device=device)[:, None] * sizes.verify_width

    @property
    def by_links(self) -> bool:
        """False for the chain that the verify kernels run entry by entry, K = 1."""
        return self.sizes.top_k > 1

    def commit(self, batch: Any, walk: Walk, rows: int) -> None:
        """The state after the last entry of every path becomes its sequence's."""
        from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

        commit_mamba_states_after_verify(
            target_worker=self.target,
            batch=batch,
            accept_lens=walk.commit_lens[:rows],
            accept_index=walk.path[:rows] + self._first[:rows],
            draft_token_num=self.sizes.verify_width,
        )

    def check_links(self, trees: Trees, rows: int) -> None:
        """Raises Refused unless the pass that was prepared last reads these trees' links. Waits for the device."""
        if self.by_links and not self.reads(trees, rows):
            raise Refused("the first verify pass of a hybrid target does not read its trees' links")

    def reads(self, trees: Trees, rows: int) -> bool:
        """Whether recurrent layers were given the links of ``trees``, in a graph's own buffers or without one."""
        told = self.target.model_runner.attn_backend.linear_attn_backend.forward_metadata
        pairs = ((told.retrieve_next_token, trees.first_child), (told.retrieve_next_sibling, trees.next_sibling))
        return all(_begins_with(given, ours[:rows]) for given, ours in pairs) and told.retrieve_parent_token is not None

    def bytes(self) -> dict[str, int]:
        """What the pool of states holds: of sequences, of every node, and the convolution windows of every node."""
        pool = self.target.model_runner.req_to_token_pool.mamba_pool
        cache = pool.mamba_cache
        windows = getattr(pool, "_intermediate_conv_window_phys", None) or cache.intermediate_conv_window
        return {
            "states": _bytes([cache.temporal, *cache.conv]),
            "node_states": _bytes([cache.intermediate_ssm]),
            "node_windows": _bytes(windows),
        }

    def describe(self) -> dict[str, Any]:
        """Sizes of the states, for the server's own state."""
        cache = self.target.model_runner.req_to_token_pool.mamba_pool.mamba_cache
        return {
            "layers": int(cache.temporal.shape[0]),
            "slots": int(cache.temporal.shape[1]),
            "nodes": int(cache.intermediate_ssm.shape[2]),
            "dtype": str(cache.temporal.dtype).removeprefix("torch."),
            "bytes": self.bytes(),
        }

    def line(self) -> str:
        """The same for the log."""
        told = self.describe()
        gib = {name: f"{size / 2**30:.3f} GiB" for name, size in told["bytes"].items()}
        sizes = " ".join(f"{name}={size}" for name, size in gib.items())
        links = "links" if self.by_links else "a chain"
        layers, nodes = f"{told['layers']} layers of {told['dtype']}", f"{told['nodes']} nodes by {links}"
        return f"recurrent states: {layers}, {nodes}, {sizes}"


def _begins_with(given: Tensor | None, ours: Tensor) -> bool:
    return given is not None and bool((given[: ours.shape[0]].to(ours.dtype) == ours).all())


def _bytes(tensors: list[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
