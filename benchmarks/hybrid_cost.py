"""What a node of a tree costs on a hybrid target: time of the verify pass and its commit, and memory of the states.

Drives the target alone, over trees that the included builder makes of random drafts, so that no drafter is needed and
any weights do. Sizes are interleaved and turned by one each repetition; medians are shown. `delta ms` is the time
inside the gated-delta-net layers, from a pass of its own in which the device is waited for at every layer; `a node ms`
what a node adds to a pass of the root alone, commit included. `rule` and `by level` are the delta rule alone, in one
layer: as the engine runs it, one triangular system for all nodes, and the plain way, one tree level after another with
a matrix a node. `kept` is what a node leaves until the walk is known, `whole state` what it would leave if its own
state were stored; both by the formulas of docs/hybrid.md, the first checked here against the tensors.

    python benchmarks/hybrid_cost.py                                    # an untrained hybrid of 8 layers of 192
    python benchmarks/hybrid_cost.py --target ddbench/assets/hybrid/target
    python benchmarks/hybrid_cost.py --threads 1 --cpu-time             # on a machine that others use too
    python benchmarks/hybrid_cost.py --target Qwen/Qwen3.6-27B --device cuda --dtype bfloat16

The last line on standard output is one JSON object with every number of the table.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddbench.decoding import load_pair
from ddbench.decoding.gated_delta import Inputs, tree
from ddbench.decoding.kv import Slots, round_up
from ddbench.decoding.masks import tree_mask
from ddbench.decoding.states import Dims, Links
from ddbench.decoding.target import Prompts, Target, delta_layers
from ddbench.errors import ConfigError
from ddbench.tree import ancestor_mask, build_tree

DEPTH = 15  # of the drafts, as of a DFlash block of 16


@dataclass(frozen=True)
class Size:
    batch: int
    nodes: int


def main() -> int:
    options = parse_arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        model = (
            untrained(options)
            if options.target is None
            else load_pair(options.target, device=options.device, dtype=options.dtype).target
        )
        if not delta_layers(model):
            raise ConfigError("--target", options.target, "a hybrid: this one has no recurrent layer")
        rows = measure(model, options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(rows)
    print(json.dumps({"benchmark": "hybrid_cost", "machine": machine(model, options), "rows": rows}))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="folder or Hugging Face id; default: untrained, 8 layers of 192")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--nodes", type=int, nargs="+", default=[0, 1, 4, 8, 16, 32, 64])
    parser.add_argument("--context", type=int, default=256, help="committed tokens of every sequence")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; default: its own choice")
    parser.add_argument("--cpu-time", action="store_true", help="of this thread: for one thread of a shared machine")
    return parser.parse_args()


def untrained(options: argparse.Namespace) -> Any:
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=4096,
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.to(options.device, getattr(torch, options.dtype)).eval()


@torch.inference_mode()
def measure(model: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a size; all sizes of a batch share a target and its states."""
    rows = []
    for batch in options.batch_sizes:
        with Target(model, (), batch, options.context + max(options.nodes) + 1) as target:
            prompt = torch.randint(0, 1000, (batch, options.context)).tolist()
            target.prefill(Prompts.of(prompt, 0, target.dtype, target.device))
            clock = time.thread_time if options.cpu_time else time.perf_counter
            passes = [Pass(target, Size(batch, nodes), options.context, clock) for nodes in options.nodes]
            for each in passes:
                each.run()
            for repetition in range(options.repetitions):
                turn = repetition % len(passes)
                for each in passes[turn:] + passes[:turn]:
                    each.run()
                print(f"batch {batch} repetition {repetition + 1}", file=sys.stderr)
            made = [each.row() for each in passes]
            root = min(made, key=lambda row: row["nodes"])
            for row in made:
                more = row["verify_ms"] + row["commit_ms"] - root["verify_ms"] - root["commit_ms"]
                row["ms_a_node"] = more / (row["nodes"] - root["nodes"]) if row is not root else None
            rows += made
    return rows


class Pass:
    """Verify passes of one size, and what they took."""

    def __init__(self, target: Target, size: Size, context: int, clock: Callable[[], float]) -> None:
        device = target.device
        self.target, self.size, self.clock = target, size, clock
        self.lengths = torch.full((size.batch,), context, device=device)
        self.tokens = size.nodes + 1
        self.parents, depths = drafted(size, device)
        ancestors = ancestor_mask(self.parents)
        self.links = Links.of(self.parents, ancestors)
        self.kv_len = round_up(context + self.tokens)
        self.mask = tree_mask(ancestors, self.lengths, self.kv_len, target.dtype)
        self.slots = Slots.following([context] * size.batch, self.lengths, self.tokens)
        self.ids = torch.randint(0, 1000, (size.batch, self.tokens), device=device)
        self.positions = context + torch.nn.functional.pad(depths, (1, 0))
        self.seconds: dict[str, list[float]] = {part: [] for part in ("verify", "commit", "delta", "rule", "level")}

    def run(self) -> None:
        assert self.target.states is not None
        self._timed("verify", self._verify)
        layers = self.target.states.layers.values()
        kept = sum(tensor.nbytes for layer in layers if layer.kept for tensor in layer.kept.tensors)
        assert kept == self.size.batch * self.tokens * self.target.states.node_bytes
        root = torch.zeros_like(self.lengths)  # the root's own state, time after time
        before = [(layer.conv.clone(), layer.matrix.clone()) for layer in layers]
        self._timed("commit", lambda: self.target.commit(root))
        self._delta()
        self.target.commit(root)
        for layer, (conv, matrix) in zip(layers, before, strict=True):
            layer.conv.copy_(conv)
            layer.matrix.copy_(matrix)
        first = next(iter(layers))
        inputs = random_inputs(first.dims, self.size.batch, self.tokens, self.target.device)
        state = first.matrix[: self.size.batch]
        self._timed("rule", lambda: tree(inputs, state, self.links.ancestors))
        self._timed("level", lambda: by_level(inputs, state, self.links.parents))

    def row(self) -> dict[str, Any]:
        """Medians in milliseconds; the first, unmeasured pass of each left out. Bytes a node."""
        states = self.target.states
        assert states is not None
        taken = {f"{part}_ms": 1e3 * statistics.median(each[1:]) for part, each in self.seconds.items()}
        return {
            "batch_size": self.size.batch,
            "nodes": self.size.nodes,
            **taken,
            "kept_bytes_a_node": states.node_bytes,
            "state_bytes": states.sequence_bytes,
        }

    def _verify(self) -> Tensor:
        return self.target.forward(self.ids, self.positions, self.mask, self.slots, self.kv_len, links=self.links)

    def _delta(self) -> None:
        """A pass in which each recurrent layer is timed by itself."""
        begun, spent = [0.0], [0.0]

        def enter(*_: Any) -> None:
            wait(self.target.device)
            begun[0] = self.clock()

        def leave(*_: Any) -> None:
            wait(self.target.device)
            spent[0] += self.clock() - begun[0]

        modules = delta_layers(self.target.model).values()
        hooks = [
            hook
            for each in modules
            for hook in (each.register_forward_pre_hook(enter), each.register_forward_hook(leave))
        ]
        self._verify()
        for hook in hooks:
            hook.remove()
        self.seconds["delta"].append(spent[0])

    def _timed(self, part: str, work: Callable[[], object]) -> None:
        wait(self.target.device)
        begin = self.clock()
        work()
        wait(self.target.device)
        self.seconds[part].append(self.clock() - begin)


def drafted(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    """Parents and depths [batch, nodes] of trees over random drafts, as sharp as those of a fair drafter."""
    generator = torch.Generator().manual_seed(size.nodes)
    logits = 3 * torch.randn(size.batch, DEPTH, max(2, size.nodes), generator=generator).sort(descending=True).values
    made = build_tree(logits.log_softmax(-1).to(device), max(1, size.nodes))
    return made.parents[:, : size.nodes], made.depths[:, : size.nodes]


def random_inputs(dims: Dims, rows: int, tokens: int, device: torch.device) -> Inputs:
    unit = torch.nn.functional.normalize
    keys = [unit(torch.randn(rows, dims.groups, tokens, dims.key, device=device), dim=-1) for _ in range(2)]
    value = torch.randn(rows, dims.heads, tokens, dims.value, device=device)
    return Inputs(keys[0], keys[1], value, -torch.rand_like(value[..., 0]), torch.rand_like(value[..., 0]))


def by_level(inputs: Inputs, state: Tensor, parents: Tensor) -> Tensor:
    """The other way to run a tree: level after level, with a matrix stored for every node."""
    rows, tokens = parents.shape
    ratio = inputs.value.shape[1] // inputs.key.shape[1]
    key, query = (part.repeat_interleave(ratio, dim=1) for part in (inputs.key, inputs.query))
    matrices = state.new_empty(rows, tokens + 1, *state.shape[1:])
    matrices[:, tokens] = state  # the committed ones, in the place that -1 names
    depth = torch.zeros_like(parents)
    above = parents
    while bool((above >= 0).any()):
        depth += above >= 0
        above = torch.where(above >= 0, parents.gather(1, above.clamp(min=0)), above)
    output = torch.empty_like(inputs.value)
    for level in range(int(depth.max()) + 1):
        row, node = (depth == level).nonzero(as_tuple=True)
        before = matrices[row, parents[row, node]] * inputs.log_decay[row, :, node].exp()[..., None, None]
        k, q = key[row, :, node][..., None], query[row, :, node][..., None]
        write = inputs.rate[row, :, node][..., None] * (inputs.value[row, :, node] - (before * k).sum(2))
        now = before + k * write[:, :, None]
        matrices[row, node] = now
        output[row, :, node] = (now * q).sum(2)
    return output


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    cuda = model.device.type == "cuda"
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(model.device) if cuda else None,
        "dtype": options.dtype,
        "torch": torch.__version__,
        "target": options.target or "untrained",
        "delta_layers": len(delta_layers(model)),
        "layers": model.config.get_text_config().num_hidden_layers,
        "context": options.context,
        "clock": "cpu time of one thread" if options.cpu_time else "wall",
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "| batch | nodes | verify ms | delta ms | commit ms | a node ms | rule ms | by level ms | kept | whole state |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        times = [f"{row[f'{part}_ms']:.2f}" for part in ("verify", "delta", "commit")]
        times.append("" if row["ms_a_node"] is None else f"{row['ms_a_node']:.2f}")
        times += [f"{row[f'{part}_ms']:.2f}" for part in ("rule", "level")]
        sizes = [f"{row[part] / 1024:.1f} KiB" for part in ("kept_bytes_a_node", "state_bytes")]
        print(f"| {' | '.join([str(row['batch_size']), str(row['nodes']), *times, *sizes])} |")
    print()


if __name__ == "__main__":
    raise SystemExit(main())
