"""SGLang's own gated delta nets over trees, interpreted on a CPU: backend, kernels, graph buffers and commit.

    TRITON_INTERPRET=1 python tests/plugins/sglang/sgl_states.py N

What a captured graph reads is in static buffers: the metadata is that of a graph's replay, with a row of padding. Every
node's output is compared with a plain sequence of its path. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_round import BLOCK, Lenient, settings
from torch import Tensor

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.recurrent import States
from ddbench.plugins.sglang.verify_input import verify_input

LAYERS, ROWS, PADDED, SLOTS, ROUNDS = 2, 3, 4, 7, 3
KEYS, VALUES, SIZE, KERNEL = 1, 2, 16, 4
DIMS = 2 * KEYS * SIZE + VALUES * SIZE
TOP_K = 4


class Layer(SimpleNamespace):
    """As SGLang's RadixLinearAttention, of random weights."""

    def __init__(self, layer_id: int) -> None:
        heads = {"num_q_heads": KEYS, "num_k_heads": KEYS, "num_v_heads": VALUES}
        sizes = {"head_q_dim": SIZE, "head_k_dim": SIZE, "head_v_dim": SIZE}
        widths = {"q_dim": KEYS * SIZE, "k_dim": KEYS * SIZE, "v_dim": VALUES * SIZE}
        weights = {
            "conv_weights": torch.randn(DIMS, KERNEL),
            "bias": None,
            "activation": "silu",
            "A_log": torch.rand(VALUES) - 1.0,
            "dt_bias": torch.rand(VALUES) - 1.5,
        }
        super().__init__(layer_id=layer_id, **heads, **sizes, **widths, **weights)


def pool_of(width: int) -> Any:
    """As SGLang's HybridReqToTokenPool, with states of its own class."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    cache = MambaPool.SpeculativeState(
        conv=[torch.randn(LAYERS, SLOTS, DIMS, KERNEL - 1)],
        temporal=torch.randn(LAYERS, SLOTS, VALUES, SIZE, SIZE),
        intermediate_ssm=torch.full((LAYERS, PADDED + 1, width, VALUES, SIZE, SIZE), float("nan")),
        intermediate_conv_window=[torch.full((LAYERS, PADDED + 1, width, DIMS, KERNEL - 1), float("nan"))],
    )
    mapping = torch.tensor([0, 5, 2, 6, 3], dtype=torch.int32)
    return Lenient(
        mamba_pool=Lenient(mamba_cache=cache),
        short_conv_pool=Lenient(),  # 0.5.23: other kinds of state, which these targets lack
        ngram_pool=Lenient(),
        get_mamba_indices=lambda rows: mapping[rows.long()],
        translate_mamba_indices=lambda slots: slots,
        mamba2_layer_cache=lambda layer: cache.at_layer_idx(layer),
        get_speculative_mamba2_params_all_layers=lambda: cache,
        mamba_map={layer: layer for layer in range(LAYERS)},
        size=PADDED,
    )


def backend_of(pool: Any, width: int) -> Any:
    """SGLang's backend of gated delta nets as a server of trees has it, graphs captured for `PADDED` sequences."""
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
    from sglang.srt.layers.attention.linear import gdn_backend

    linear: Any = object.__new__(gdn_backend.GDNAttnBackend)
    kernel = gdn_backend.TritonGDNKernel()
    names = ("state_indices_list", "query_start_loc_list")
    links = ("retrieve_next_token_list", "retrieve_next_sibling_list", "retrieve_parent_token_list")
    linear.__dict__ |= {name: [] for name in (*names, *links)} | {
        "topk": TOP_K,
        "device": "cpu",
        "pad_slot_id": gdn_backend.causal_conv1d_update.__defaults__[-3],
        "req_to_token_pool": pool,
        "_fused_state_indices_ok": False,
        "_use_strided_target_verify_qkv": False,
        "_graph_seq_len_fill_value": 1,
        "enable_mis": False,
        "mis_metadata": None,
        "replayssm_write_pos_list": None,
        "replayssm_force_flush_list": None,
        "mamba_track_indices_buf": None,
        "forward_metadata": None,
        "accept_lens_pool": None,
        "kernel_dispatcher": dispatcher(gdn_backend, kernel),
        "verify_intermediate_state_indices": torch.arange(PADDED + 1, dtype=torch.int32),
    }
    linear._replayssm_enabled = lambda: False
    linear._init_target_verify_qkv_routing = lambda batch: None
    linear.init_cuda_graph_state(PADDED, PADDED * width)
    both: Any = object.__new__(HybridLinearAttnBackend)
    both.__dict__ |= {"linear_attn_backend": linear, "full_attn_layers": []}
    return both


def dispatcher(module: Any, kernel: Any) -> Any:
    made = object.__new__(module.GDNKernelDispatcher)
    made.__dict__ |= dict.fromkeys(("tree_verify_kernel", "decode_kernel", "extend_kernel", "verify_kernel"), kernel)
    return made


def prepare(backend: Any, told: Any, pool_rows: Tensor) -> None:
    """What SGLang does before it replays a graph of `PADDED` sequences for `ROWS`."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    backend.linear_attn_backend.init_forward_metadata_out_graph(
        SimpleNamespace(
            batch_size=PADDED,
            req_pool_indices=torch.cat([pool_rows, torch.zeros(PADDED - ROWS, dtype=torch.int64)]),
            forward_mode=ForwardMode.TARGET_VERIFY,
            logical_forward_mode=ForwardMode.TARGET_VERIFY,
            spec_info=told,
            seq_lens_cpu=None,
            num_padding=PADDED - ROWS,
            mamba_track_indices=None,
        )
    )


def forward(backend: Any, layer: Layer, width: int, inputs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Outputs of the real rows, ``[ROWS, N, values, size]``."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    batch = SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY,
        spec_info=SimpleNamespace(draft_token_num=width),
        batch_size=PADDED,
        mamba_track_mask=None,
        req_pool_indices=None,
    )
    found: Tensor = backend.linear_attn_backend.forward_extend(
        layer=layer, forward_batch=batch, mixed_qkv=inputs[0].clone(), a=inputs[1], b=inputs[2]
    )
    return found.reshape(PADDED, width, VALUES, SIZE)[:ROWS]


def follow(layer: Layer, conv: Tensor, state: Tensor, inputs: list[tuple[Tensor, Tensor, Tensor]]) -> Any:
    """A sequence of tokens one after another, in float64: output of the last, convolution window and state after it."""
    conv, state, out = conv.double(), state.double(), torch.zeros(VALUES, SIZE)
    for mixed, a, b in inputs:
        line = torch.cat([conv, mixed.double()[:, None]], dim=1)
        conv = line[:, 1:]
        mixed = torch.nn.functional.silu((line * layer.conv_weights.double()).sum(dim=1))
        q, k, v = mixed.split([KEYS * SIZE, KEYS * SIZE, VALUES * SIZE])
        q, k = (each / (each.square().sum() + 1e-6).sqrt() for each in (q, k))
        v = v.view(VALUES, SIZE)
        decay = -layer.A_log.double().exp() * torch.nn.functional.softplus(a.double() + layer.dt_bias.double())
        state = state * decay.exp()[:, None, None]
        wrong = v - torch.einsum("hvk,k->hv", state, k)
        state = state + torch.einsum("hv,k->hvk", wrong * b.double().sigmoid()[:, None], k)
        out = torch.einsum("hvk,k->hv", state, q) * SIZE**-0.5
    return out, conv, state


def path_to(parents: list[int], node: int) -> list[int]:
    return [node] if node == 0 else [*path_to(parents, parents[node]), node]


def star(trees: Trees) -> None:
    """Every node a child of the root: siblings, and all others, share its state."""
    width = trees.verify_width
    trees.first_child.fill_(-1)
    trees.first_child[:, 0] = 1
    trees.next_sibling.copy_(torch.arange(1, width + 1).expand_as(trees.next_sibling))
    trees.next_sibling[:, 0] = trees.next_sibling[:, -1] = -1


class Bench:
    """Some rounds of random trees through SGLang's backend."""

    def __init__(self, width: int) -> None:
        self.width, self.sizes = width, Sizes(width, BLOCK, TOP_K)
        self.pool = pool_of(width)
        self.backend = backend_of(self.pool, width)
        self.layers = [Layer(layer) for layer in range(LAYERS)]
        self.trees, self.walk = Trees(ROWS, width, BLOCK, "cpu"), Walk(ROWS, BLOCK, "cpu")
        runner = SimpleNamespace(attn_backend=self.backend, req_to_token_pool=self.pool, model_config=None, model=None)
        self.states = States(SimpleNamespace(model_runner=runner), ROWS, self.sizes, "cpu")
        self.pool_rows = torch.tensor([3, 1, 2])
        self.seq_lens = torch.tensor([9, 4, 30])

    def lay_out(self, seed: int) -> None:
        generator, levels = torch.Generator().manual_seed(seed), BLOCK - 1
        chances = torch.rand(ROWS, levels, TOP_K, generator=generator).mul_(-2.0).sort(dim=-1, descending=True)[0]
        ids = torch.stack([torch.randperm(97, generator=generator)[:TOP_K] for _ in range(ROWS * levels)])
        shaped = ids.view(ROWS, levels, TOP_K).to(torch.int32)
        torch_ops.build(self.trees, chances, shaped, torch.arange(ROWS))
        torch_ops.lay_out(self.trees, self.seq_lens, torch.empty(ROWS, self.width, dtype=torch.int64))

    def told(self) -> Any:
        mask = torch.ones(1, dtype=torch.uint8)
        links = {"retrieve_next_token": self.trees.first_child, "retrieve_next_sibling": self.trees.next_sibling}
        return verify_input(self.width, TOP_K, mask, **links)

    def inputs(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        tokens = PADDED * self.width
        shapes = ((tokens, DIMS), (tokens, VALUES), (tokens, VALUES))
        return [(torch.randn(shapes[0]), torch.randn(shapes[1]), torch.randn(shapes[2])) for _ in self.layers]

    def before(self) -> list[list[tuple[Tensor, Tensor]]]:
        """Convolution windows and states of the rows, by layer."""
        slots, cache = self.pool.get_mamba_indices(self.pool_rows).long(), self.pool.mamba_pool.mamba_cache
        return [
            [(cache.conv[0][layer, slot].clone(), cache.temporal[layer, slot].clone()) for slot in slots]
            for layer in range(LAYERS)
        ]

    def apart(self, outputs: list[Tensor], inputs: Any, before: Any) -> float:
        """Widest difference of any node's output from its path's."""
        widest = 0.0
        for layer, (found, given) in enumerate(zip(outputs, inputs, strict=True)):
            for row in range(ROWS):
                parents = self.trees.parents[row].tolist()
                for node in [0, *(at for at, parent in enumerate(parents) if parent >= 0)]:
                    path = [row * self.width + at for at in path_to(parents, node)]
                    steps = [tuple(each[at] for each in given) for at in path]
                    expected = follow(self.layers[layer], *before[layer][row], steps)[0]
                    widest = max(widest, float((found[row, node] - expected).abs().max()))
        return widest

    def run(self, inputs: Any) -> list[Tensor]:
        return [forward(self.backend, layer, self.width, each) for layer, each in zip(self.layers, inputs, strict=True)]

    def accept(self, seed: int) -> None:
        """Random paths down the trees, as a walk leaves them."""
        torch.manual_seed(seed)
        self.walk.path.fill_(-1)
        for row in range(ROWS):
            parents, at, path = self.trees.parents[row].tolist(), 0, [0]
            while True:
                children = [node for node, parent in enumerate(parents) if parent == at]
                if not children or (len(path) > 2 and torch.rand(()) < 0.2):
                    break
                at = children[int(torch.randint(len(children), ()))]
                path.append(at)
            self.walk.path[row, : len(path)] = torch.tensor(path, dtype=torch.int32)
            self.walk.commit_lens[row] = len(path)

    def committed(self, inputs: Any, before: Any) -> float:
        """Commits, and how far the sequences' states then are from those of their paths."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        batch = SimpleNamespace(
            seq_lens=self.seq_lens,
            mamba_track_indices=None,
            forward_mode=ForwardMode.TARGET_VERIFY,
            req_pool_indices=self.pool_rows,
        )
        self.states.commit(batch, self.walk, ROWS)
        widest = 0.0
        for layer, after in enumerate(self.before()):
            for row in range(ROWS):
                path = self.walk.path[row, : self.walk.commit_lens[row]].tolist()
                steps = [tuple(each[row * self.width + at] for each in inputs[layer]) for at in path]
                _, conv, state = follow(self.layers[layer], *before[layer][row], steps)
                for found, expected in zip(after[row], (conv, state), strict=True):
                    widest = max(widest, float((found - expected).abs().max()))
        return widest


def boolean_masks(patch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter makes an integer of a scalar comparison and an array's, and then takes it for no mask."""
    from triton.runtime.interpreter import InterpreterBuilder

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        stock = getattr(InterpreterBuilder, name)

        def cast(self: Any, *args: Any, stock: Any = stock, place: int = place) -> Any:
            args[place].data = args[place].data.astype(bool)
            return stock(self, *args)

        patch.setattr(InterpreterBuilder, name, cast)


def main(width: int) -> dict[str, Any]:
    torch.manual_seed(0)
    bench = Bench(width)
    found: dict[str, Any] = {"nodes": [], "committed": [], "rewritten": [], "branches": [], "padding": []}
    lists = (bench.backend.linear_attn_backend.retrieve_next_token_list[PADDED - 1],)
    addresses = {each.data_ptr() for each in lists}
    last = None
    for turn in range(ROUNDS):
        bench.lay_out(turn)
        prepare(bench.backend, bench.told(), bench.pool_rows)
        read = bench.backend.linear_attn_backend.forward_metadata.retrieve_next_token
        now = read[:ROWS].clone()
        same_place = read.data_ptr() in addresses
        found["rewritten"].append(
            bench.states.reads(bench.trees, ROWS) and same_place and (last is None or not torch.equal(now, last))
        )
        last = now
        inputs, before = bench.inputs(), bench.before()
        slots = bench.pool.mamba_pool.mamba_cache.temporal.clone()
        found["nodes"].append(bench.apart(bench.run(inputs), inputs, before))
        bench.accept(turn)
        taken = [bench.walk.path[row, : bench.walk.commit_lens[row]].tolist() for row in range(ROWS)]
        found["branches"].append(sum(path != list(range(len(path))) for path in taken))
        found["committed"].append(bench.committed(inputs, before))
        others = [slot for slot in range(SLOTS) if slot not in bench.pool.get_mamba_indices(bench.pool_rows).tolist()]
        found["padding"].append(torch.equal(slots[:, others], bench.pool.mamba_pool.mamba_cache.temporal[:, others]))
    found["star"] = spoiled(bench, stale=False)
    found["stale"] = spoiled(bench, stale=True)
    return found


def spoiled(bench: Bench, stale: bool) -> float:
    """Widest difference with links that are not the trees': the last round's, or a star's."""
    bench.lay_out(100)
    told = bench.told()
    if stale:
        told.retrieve_next_token = told.retrieve_next_sibling = None  # nothing is copied: the last round's links stay
    else:
        star(bench.trees)
    prepare(bench.backend, told, bench.pool_rows)
    assert bench.states.reads(bench.trees, ROWS) is (not stale)
    inputs, before = bench.inputs(), bench.before()
    return bench.apart(bench.run(inputs), inputs, before)


if __name__ == "__main__":
    patch = pytest.MonkeyPatch()
    asked = int(sys.argv[1])
    boolean_masks(patch)
    settings(patch, speculative_num_draft_tokens=asked, speculative_eagle_topk=TOP_K)
    patch.setattr(torch.Tensor, "is_cuda", True, raising=False)  # SGLang's commit asks
    from sglang.srt.speculative import spec_utils

    patch.setattr(spec_utils, "mambaish_config", lambda config: "a gated delta net")
    answer = main(asked)
    sys.stdout.write(json.dumps(answer) + "\n")
