"""What the evidence changes inside an engine of a hybrid target; named and loaded as `inside.CHANGES` are.

Trees are planted: a random target accepts nothing of a random drafter, and the first branch of a tree would hide a
state that siblings share. So the target's own greedy text, found beforehand by autoregressive decoding and written to
the file that ``DDBENCH_TEXTS`` names, runs through random trees on branches that are mostly not the first, among nodes
of random tokens. A state that is its parent's accepts the text; another one does not.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddbench.plugins.kernels.bits import pack_bits

TEXTS = "DDBENCH_TEXTS"  # JSON: lists of a prompt's tokens, its length first, and the greedy text after it
DUMP = "DDBENCH_DUMP"
DUMPED = 4  # trees whose logits are recorded
LINKS = ".links.json"  # after the dump's name: whether links were rewritten


@dataclass(frozen=True)
class Shape:
    """A tree without tokens: parents (-1 the root's), depths, and the entries that carry the text."""

    parents: list[int]
    depths: list[int]
    true: list[bool]


def random_shape(width: int, deepest: int, seed: int) -> Shape:
    """A random tree of ``width`` entries through which a path runs, mostly on branches that are not the first."""
    rng = random.Random(seed)
    parents, depths, true, tip, born = [-1], [0], [True], 0, {0: 0}
    length = rng.randint(2, deepest)
    while len(parents) < width:
        entry = len(parents)
        ready = born[tip] > 0 or rng.random() < 0.25
        on = depths[tip] < length and ready and rng.random() < 0.7
        parent = tip
        if not on:
            others = [at for at in range(entry) if depths[at] < deepest]
            parent = tip if depths[tip] < deepest and rng.random() < 0.6 else rng.choice(others)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        true.append(on)
        born[parent] += 1
        born[entry] = 0
        tip = entry if on else tip
    return Shape(parents, depths, true)


def chain_shape(width: int) -> Shape:
    """The drafter's own spine; which entries carry the text is told by `follows`."""
    return Shape(list(range(-1, width - 1)), list(range(width)), [True] * width)


def follows(seq_lens: Tensor, depths: Tensor, deepest: int) -> Tensor:
    """Whether a chain's entry at ``depths`` carries the text, by the committed length alone: 1 to ``deepest`` do."""
    return depths <= 1 + (seq_lens * 7) % deepest


def bits_of(shape: Shape) -> Tensor:
    """Ancestor bits as `Trees.bits` has them, ``[N, W]``."""
    width = len(shape.parents)
    sees = torch.eye(width, dtype=torch.bool)
    for entry, parent in enumerate(shape.parents):
        if parent >= 0:
            sees[entry] |= sees[parent]
    return pack_bits(sees)


class Texts:
    """The greedy texts on the device, read when a round first needs them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, ...], int] = {}
        self._tokens: Tensor | None = None

    def of(self, requests: list[Any], seq_lens: Tensor, depth: Tensor) -> Tensor:
        """What a request's text has at its committed length + ``depth``; ``depth`` is ``[R, N]``."""
        if self._tokens is None:
            self._load(seq_lens.device)
        assert self._tokens is not None
        rows = [self._rows[tuple(request.origin_input_ids)] for request in requests]
        at = (seq_lens[:, None] + depth).clamp(max=self._tokens.shape[1] - 1)
        return self._tokens[torch.tensor(rows, device=seq_lens.device)[:, None], at]

    def _load(self, device: torch.device) -> None:
        lines = json.loads(Path(os.environ[TEXTS]).read_text())
        longest = max(len(tokens) for _, tokens in lines)
        self._rows = {tuple(tokens[:prompt]): row for row, (prompt, tokens) in enumerate(lines)}
        padded = [tokens + [3] * (longest - len(tokens)) for _, tokens in lines]
        self._tokens = torch.tensor(padded, dtype=torch.int64, device=device)


def other_than(text: Tensor, words: int, seed: int) -> Tensor:
    """Random tokens, none of them the text's at its place."""
    generator = torch.Generator("cpu").manual_seed(seed)
    step = torch.randint(1, words, text.shape, generator=generator).to(text.device)
    return (text + step) % words


class Planter:
    """Puts trees of a round into the plug-in's buffers, in the place of those that the drafter's graph built."""

    def __init__(self, chain: bool) -> None:
        self.texts, self.chain, self.rounds = Texts(), chain, 0

    def plant(self, worker: Any, batch: Any, rows: int) -> None:
        trees, width, deepest = worker.trees, worker.sizes.verify_width, worker.sizes.block - 1
        self.rounds += 1
        seeds = [self.rounds * 64 + row for row in range(rows)]
        shapes = [chain_shape(width) if self.chain else random_shape(width, deepest, seed) for seed in seeds]
        device = trees.tokens.device
        depths = torch.tensor([shape.depths for shape in shapes], device=device)
        true = torch.tensor([shape.true for shape in shapes], device=device)
        text = self.texts.of(batch.reqs, batch.seq_lens, depths)
        if self.chain:
            true = follows(batch.seq_lens[:, None], depths, deepest)
        words = int(worker.model_runner.model_config.vocab_size)
        tokens = torch.where(true, text, other_than(text, words, self.rounds))
        tokens[:, 0] = trees.tokens[:rows, 0]
        trees.tokens[:rows] = tokens
        trees.parents[:rows] = torch.tensor([shape.parents for shape in shapes], dtype=torch.int32, device=device)
        trees.depths[:rows] = depths.to(torch.int32)
        trees.bits[:rows] = torch.stack([bits_of(shape) for shape in shapes]).to(device)


def plant() -> None:
    """Random trees with the text in them; where ``DDBENCH_DUMP`` is set, the first ones' logits are recorded."""
    _planted(chain=False)


def plant_spine() -> None:
    """Chains with the text in them up to a place that the committed length tells, by the tree's path."""
    _planted(chain=True)


def plant_chain() -> None:
    """The same chains in stock DFLASH."""
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput

    stock, texts = DFlashVerifyInput.prepare_for_verify, Texts()

    def planted(self: Any, batch: Any, target_worker: Any) -> Any:
        if not batch.forward_mode.is_idle():
            width = int(self.draft_token_num)
            tokens = self.draft_token.view(-1, width)
            depths = torch.arange(width, device=tokens.device).expand_as(tokens)
            text = texts.of(batch.reqs, batch.seq_lens, depths)
            words = int(target_worker.model_runner.model_config.vocab_size)
            true = follows(batch.seq_lens[:, None], depths, width - 1)
            tokens[:, 1:] = torch.where(true, text, other_than(text, words, 1))[:, 1:]
        return stock(self, batch, target_worker)

    DFlashVerifyInput.prepare_for_verify = planted


def _planted(chain: bool) -> None:
    from experiments.sglang_evidence.inside import _on_worker, _record, _write

    def around(worker: Any) -> None:
        stock, planter = worker._verify, Planter(chain)
        found: list[dict[str, Any]] = []
        watch = Watch()

        def verified(self: Any, batch: Any, rows: int, host_lens: Any) -> Any:
            planter.plant(self, batch, rows)
            output, in_graph = stock(self, batch, rows, host_lens)
            if os.environ.get(DUMP):
                watch.look(self, rows)
                if len(found) < DUMPED:
                    found.append(_record(self, batch, output, in_graph))
                    if len(found) == DUMPED:
                        _write(found)
            return output, in_graph

        worker._verify = verified

    _on_worker(around)


class Watch:
    """Whether the recurrent layers of every round read that round's links, and how often these were new."""

    def __init__(self) -> None:
        self.rounds = self.read = self.changed = 0
        self._last: Tensor | None = None

    def look(self, worker: Any, rows: int) -> None:
        links = torch.cat([worker.trees.first_child[:rows], worker.trees.next_sibling[:rows]], dim=1).clone()
        self.rounds += 1
        self.read += worker.states.reads(worker.trees, rows)
        self.changed += self._last is None or self._last.shape != links.shape or not torch.equal(self._last, links)
        self._last = links
        if self.rounds % 8 == 0:
            told = {"rounds": self.rounds, "read": self.read, "changed": self.changed}
            Path(os.environ[DUMP] + LINKS).write_text(json.dumps(told))


def star() -> None:
    """Recurrent layers are told that all nodes are the root's children: siblings share their grandparents' states."""

    def links(first_child: Tensor, next_sibling: Tensor) -> tuple[Tensor, Tensor]:
        none = torch.full_like(first_child, -1)
        child, sibling = none.clone(), torch.arange(1, none.shape[1] + 1, device=none.device).expand_as(none).clone()
        child[:, 0], sibling[:, 0], sibling[:, -1] = 1, -1, -1
        return child, sibling

    _linked(links)


def stale() -> None:
    """Recurrent layers are told the links of the first round, in all rounds of as many rows."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def links(first_child: Tensor, next_sibling: Tensor) -> tuple[Tensor, Tensor]:
        return kept.setdefault(first_child.shape[0], (first_child.clone(), next_sibling.clone()))

    _linked(links)


def _linked(links: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Gives the verify input other links than the trees', and keeps the plug-in from seeing it."""
    from ddbench.plugins.sglang.recurrent import States
    from experiments.sglang_evidence.inside import _on_worker

    def around(worker: Any) -> None:
        module: Any = sys.modules[worker.__module__]
        stock = module.verify_input

        def told(*args: Any, **tree: Any) -> Any:
            given = links(tree["retrieve_next_token"], tree["retrieve_next_sibling"])
            return stock(*args, **tree | {"retrieve_next_token": given[0], "retrieve_next_sibling": given[1]})

        module.verify_input = told
        States.check_links = lambda self, trees, rows: None  # type: ignore[method-assign]

    _on_worker(around)


def float32_states() -> None:
    """What `inside.float32` is for other layers: SGLang's prefill of delta nets and its experts are 16-bit alone."""
    from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel
    from sglang.srt.layers.layernorm import GemmaRMSNorm
    from sglang.srt.layers.moe.fused_moe_native import fused_moe_forward_native
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
    from sglang.srt.models.qwen3_5 import Qwen3_5AttentionDecoderLayer as Attention

    GemmaRMSNorm.dispatch_forward = lambda self: self.forward_native
    Attention.forward_prepare_cuda_fused = Attention.forward_prepare_native
    UnquantizedFusedMoEMethod.forward_cuda = lambda self, layer, dispatch_output: fused_moe_forward_native(
        layer, dispatch_output
    )
    TritonGDNKernel.extend = _token_by_token


def _token_by_token(self: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, **told: Any) -> tuple[Any, None, None]:
    """A prefill as decoding runs it, in SGLang's own recurrent kernel, in the place of its kernel by chunks."""
    from sglang.kernels.ops.attention.fla.fused_recurrent import fused_recurrent_gated_delta_rule_update

    slots = told["cache_indices"]
    out = fused_recurrent_gated_delta_rule_update(
        q,
        k,
        v,
        g,
        beta,
        initial_state_source=told["ssm_states"],
        initial_state_indices=slots,
        cu_seqlens=told["query_start_loc"],
        use_qk_l2norm_in_kernel=True,
        intermediate_state_indices=slots,
    )
    return out, None, None


CHANGES: dict[str, Callable[[], Any]] = {
    "plant": plant,
    "plant_spine": plant_spine,
    "plant_chain": plant_chain,
    "star": star,
    "stale": stale,
    "float32_states": float32_states,
}
