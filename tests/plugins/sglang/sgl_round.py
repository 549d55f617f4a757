"""SGLang's own objects around the plug-in's real worker, with made-up models and plain-torch steps, on the CPU.

The target is a bigram table, so that what it would say is known, and writes tokens and positions into the cache in the
place of keys and values, so that a moved path can be read back. The drafter mostly proposes the target's chain, often
at the second rank.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.sampler import TreeSampler
from ddbench.plugins.sglang.stages import Stage
from ddbench.plugins.sglang.tables import Tables
from ddbench.plugins.sglang.workers import worker_of

ASSETS = Path(__file__).resolve().parents[3] / "ddbench" / "assets"
VOCABULARY, HIDDEN, LAYERS, ROWS, BLOCK, CONTEXT = 97, 128, 3, 4, 16, 200
FACTS: dict[str, Any] = {  # what SGLang asks of a GPU while it resolves settings
    "get_device": lambda *a, **k: "cuda",
    "get_device_memory_capacity": lambda *a, **k: 140_000,
    "get_device_name": lambda *a, **k: "NVIDIA H200",
    "is_cuda": lambda *a: True,
    "is_cuda_alike": lambda *a: True,
    "is_hopper_with_cuda_12_3": lambda *a: True,
}


class Lenient(SimpleNamespace):
    """What SGLang looks up and a round does not use is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def settings(patch: Any, **asked: Any) -> Any:
    """A DDTREE server's arguments, resolved by SGLang's own code as on an H200, and published."""
    import sglang.srt.server_args as arguments
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_context

    load_plugins()
    for module in [each for name, each in sys.modules.items() if name.startswith("sglang")]:
        for name, fact in FACTS.items():
            if hasattr(module, name):
                patch.setattr(module, name, fact)
    patch.setattr(torch.cuda, "get_device_capability", lambda *a: (9, 0))
    known: dict[str, Any] = {
        "model_path": str(ASSETS / "target"),
        "speculative_algorithm": "DDTREE",
        "speculative_draft_model_path": str(ASSETS / "dflash"),
        "device": "cuda",
        "attention_backend": "triton",
        "page_size": 1,
        "skip_tokenizer_init": True,
        "context_length": 2048,
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "mem_fraction_static": 0.3,
        "cuda_graph_max_bs_decode": 8,
        "max_running_requests": 8,
    }
    found = arguments.ServerArgs(**known | asked)
    if hasattr(found, "resolve_once"):  # 0.5.23
        found.resolve_once()
    get_context().set_server_args(found)
    return found


class Target:
    """A bigram target: its logits after a token depend on that token alone."""

    def __init__(self, runner: Any, width: int) -> None:
        self.model_runner, self.width = runner, width
        self.table = torch.randn(VOCABULARY, VOCABULARY)

    def forward_batch_generation(self, batch: Any, forward_batch: Any, **told: Any) -> Any:
        assert batch is None
        assert forward_batch.spec_info.custom_mask is not None
        ids, places = forward_batch.input_ids, forward_batch.out_cache_loc
        assert ids.numel() == places.numel() == forward_batch.batch_size * self.width
        pool = self.model_runner.token_to_kv_pool
        for keys, values in zip(pool.k_buffer, pool.v_buffer, strict=True):
            keys[places] = ids.float()[:, None, None].expand(-1, 2, 4)
            values[places] = forward_batch.positions.float()[:, None, None].expand(-1, 2, 4)
        logits = SimpleNamespace(next_token_logits=self.table[ids], hidden_states=ids.float()[:, None].repeat(1, 8))
        return SimpleNamespace(logits_output=logits, can_run_cuda_graph=False)


class Drafter:
    """Hidden states whose logits are the target's chain, now and then at the second rank."""

    def __init__(self, target: Target, head: Tensor) -> None:
        self.target, self.inverse = target, torch.linalg.pinv(head).T
        self.kv_index_translator = Translator()
        self.decode_cuda_graph_runner = None

    def forward(self, forward_batch: Any) -> Any:
        ids = forward_batch.input_ids.view(-1, BLOCK)
        hidden = torch.zeros(*ids.shape, HIDDEN)
        for row, first in enumerate(ids[:, 0].tolist()):
            token = first
            for place in range(1, BLOCK):
                best = self.target.table[token].argsort(descending=True)[:3]
                logits = torch.full((VOCABULARY,), -5.0)
                logits[best] = torch.tensor([4.0, 4.5 if place % 3 == 0 else 3.0, 2.0])
                hidden[row, place], token = logits @ self.inverse, int(best[0])
        output = SimpleNamespace(hidden_states=hidden.view(-1, HIDDEN))
        return SimpleNamespace(logits_output=output, can_run_graph=False)


class Translator:
    """Of 0.5.23: cache slots as a pool without a second address space has them, themselves."""

    def plan(self, *, write_virtual: Tensor, read_extent: int, seq_lens: Tensor, **told: Any) -> Any:
        assert write_virtual.numel() == read_extent * len(seq_lens)
        return SimpleNamespace(bind=lambda *a, **k: None, write_ids=lambda *a, **k: write_virtual)


def made_up(patch: Any, sizes: Sizes, arguments: Any) -> Any:
    """The worker of the installed version, ready for rounds; what it appends to the drafter's cache is in ``got``."""
    from sglang.srt.model_executor import forward_batch_info
    from sglang.srt.speculative.draft_worker_common import make_draft_block_spec_info

    from ddbench.plugins.sglang import worker

    patch.setattr(torch.cuda, "current_stream", lambda *a: None)
    patch.setattr(torch.cuda, "synchronize", lambda *a: None)
    patch.setattr(torch.Tensor, "record_stream", lambda *a: None)
    group = SimpleNamespace(world_size=1)
    patch.setattr(worker, "get_tp_group", lambda: group)
    kind = worker_of()
    module: Any = sys.modules[kind.__module__]
    for holder in (forward_batch_info, module):  # asks for the groups of a distributed engine
        if hasattr(holder, "enable_num_token_non_padded"):
            patch.setattr(holder, "enable_num_token_non_padded", lambda *a: False)
    embed, head = torch.nn.Embedding(VOCABULARY, HIDDEN), SimpleNamespace(weight=torch.randn(VOCABULARY, HIDDEN))
    if hasattr(module, "draft_tp_context"):  # 0.5.23
        patch.setattr(module, "draft_tp_context", lambda layout: nullcontext())
        patch.setattr(module, "_resolve_dflash_embedding_module", lambda drafter, target: embed)
    made: Any = object.__new__(kind)
    made._set_up(sizes)
    slots = ROWS * CONTEXT + 1
    runner = SimpleNamespace(
        lora_manager=None,
        prefill_attention_backend_str="triton",
        decode_attention_backend_str="triton",
        decode_cuda_graph_runner=None,
        model=SimpleNamespace(get_input_embeddings=lambda: embed, lm_head=head),
        model_config=SimpleNamespace(model_is_mrope=False, requires_mm_token_modalities=False, is_multimodal=False),
        req_to_token_pool=SimpleNamespace(
            req_to_token=torch.arange(1, slots, dtype=torch.int32).view(ROWS, CONTEXT), size=ROWS
        ),
        token_to_kv_pool=SimpleNamespace(
            k_buffer=[torch.randn(slots, 2, 4) for _ in range(LAYERS)],
            v_buffer=[torch.randn(slots, 2, 4) for _ in range(LAYERS)],
        ),
        attn_backend=SimpleNamespace(verify_mask=None, init_forward_metadata=lambda batch: None),
        kv_index_translator=Translator(),
        server_args=arguments,
        ngram_embedding_manager=SimpleNamespace(enabled=False),
        device="cpu",
        is_draft_worker=False,
        dtype=torch.float32,
    )
    target = Target(runner, sizes.verify_width)
    made.__dict__ |= {
        "device": "cpu",
        "block_size": BLOCK,
        "_mask_token_id": 1,
        "model_runner": runner,
        "_target_worker": target,
        "ps": SimpleNamespace(tp_rank=0),
        "draft_model_runner": Drafter(target, head.weight),
        "_draft_sampler": None,
        "_draft_block_spec_info": make_draft_block_spec_info(draft_token_num=BLOCK, device="cpu"),
        "_full_embed_gpu": None,
        "_noise_embed_scale": 1.0,
        "draft_parallel_layout": None,
        "draft_model": None,
        "ops": torch_ops,
        "trees": Trees(ROWS, sizes.verify_width, BLOCK, "cpu"),
        "tables": Tables(ROWS, sizes, "cpu"),
        "walks": tuple(Walk(ROWS, BLOCK, "cpu") for _ in range(2)),
        "got": [],
    }
    made.trees.limit(made.caps)
    made._stage = Stage(sizes.verify_width, made.trees, made.tables.slots, made.tables.positions)
    made.stages = {sizes.verify_width: made._stage}
    made.sampler = TreeSampler(torch_ops, made.trees, sizes, head, group)
    patch.setattr(kind, "_first_rank", lambda self: True)
    made._append_target_hidden_to_draft_kv_by_loc = lambda **told: made.got.append(
        {name: value.clone() for name, value in told.items()}
    )
    return made
