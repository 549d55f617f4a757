"""Tokens per second of the four strategies on the reference engine, at batch 1 and 8.

Runs the packaged tiny pair (or any pair by path or Hugging Face id) over prompts held out from its training, all arms
on the same prompts. The arms of one batch size are interleaved, in an order that turns by one each repetition, so that
a machine that warms up or is shared slows all of them; medians over the repetitions are shown with the lowest and the
highest. `tokens/s` is all output tokens over the wall time of the call, prefill included; `per user` is
(output tokens - 1) / (finish - first token), its median over requests.

    python benchmarks/decode_speed.py                         # the packaged pair
    python benchmarks/decode_speed.py --untrained             # no checkpoint: random models of the same size
    python benchmarks/decode_speed.py --target Qwen/Qwen3-4B --dflash z-lab/Qwen3-4B-DFlash-b16 --device cuda \
        --dtype bfloat16

An untrained drafter is almost never right: `--untrained` shows what a round costs, not what it gains. The last line on
standard output is one JSON object with every number of the table.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ddbench
from benchmarks.decode_requests import make_requests
from ddbench.decoding import Generation, ModelPair, Request, Strategy, decode, load_pair
from ddbench.drafters import DFlashConfig, DFlashDrafter, Eagle3Config, Eagle3Drafter
from ddbench.errors import ConfigError

ASSETS = Path(ddbench.__file__).parent / "assets"
VOCAB = 4096


@dataclass
class Arm:
    """One strategy at one batch size, with what its repetitions gave."""

    strategy: Strategy
    batch_size: int
    seconds: list[float] = field(default_factory=list)
    generations: list[list[Generation]] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        done = [each for repetition in self.generations for each in repetition]
        rates = [
            sum(len(each.output_token_ids) for each in repetition) / seconds
            for repetition, seconds in zip(self.generations, self.seconds, strict=True)
        ]
        users = [
            (len(each.output_token_ids) - 1) / (each.finish_s - each.first_token_s)
            for each in done
            if len(each.output_token_ids) > 1
        ]
        rounds = sum(len(each.rounds) for each in done)
        emitted = sum(len(each.output_token_ids) - 1 for each in done)
        return {
            "strategy": self.strategy.name,
            "width": self.strategy.width,
            "depth": self.strategy.depth,
            "nodes": self.strategy.nodes,
            "batch_size": self.batch_size,
            "tokens_per_s": statistics.median(rates),
            "tokens_per_s_min": min(rates),
            "tokens_per_s_max": max(rates),
            "tokens_per_s_per_user": statistics.median(users) if users else None,
            "acceptance_length": emitted / rounds if rounds else None,
            "requests": len(self.generations[0]),
            "repetitions": len(self.seconds),
        }


def main() -> int:
    options = parse_arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        pair = untrained_pair(options) if options.untrained else checkpoint_pair(options)
        requests = make_requests(pair, options)
        rows = [row for batch_size in options.batch_sizes for row in measure(pair, options, requests, batch_size)]
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(rows, options)
    print(json.dumps({"benchmark": "decode_speed", "machine": machine(pair, options), "rows": rows}))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=str(ASSETS / "target"), help="folder or Hugging Face id")
    parser.add_argument("--dflash", help="folder or Hugging Face id; the packaged one with the packaged target")
    parser.add_argument("--eagle", help="folder or Hugging Face id; the packaged one with the packaged target")
    parser.add_argument("--untrained", action="store_true", help="random models of the packaged pair's size")
    parser.add_argument("--prompts", default=str(ASSETS / "prompts.jsonl"), help="JSON lines with id and turns")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=128, help="prompts are cut to their last tokens")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=16, help="of the two trees")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; default: its own choice")
    return parser.parse_args()


def checkpoint_pair(options: argparse.Namespace) -> ModelPair:
    dflash, eagle = options.dflash, options.eagle
    if options.target == str(ASSETS / "target"):
        dflash, eagle = dflash or ASSETS / "dflash", eagle or ASSETS / "eagle3"
    return load_pair(options.target, dflash, eagle, options.device, options.dtype)


def untrained_pair(options: argparse.Namespace) -> ModelPair:
    """Six target layers of 256, three of the DFlash drafter, blocks of 16; no tokenizer."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    dims = {
        "vocab_size": VOCAB,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 1024,
    }
    target = Qwen3Config(**dims, num_hidden_layers=6, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(target, attn_implementation="sdpa")
    block = {"block_size": 16, "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [1, 3, 5]}}
    dflash = DFlashDrafter(DFlashConfig.from_json({**dims, **block, "num_hidden_layers": 3}))
    eagle = Eagle3Drafter(Eagle3Config.from_json(dims))
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    models = [each.to(device, dtype).eval() for each in (model, dflash, eagle)]
    return ModelPair(models[0], None, models[1], models[2], device, dtype)


def measure(
    pair: ModelPair, options: argparse.Namespace, requests: Sequence[Request], batch_size: int
) -> list[dict[str, Any]]:
    """All arms of one batch size, interleaved after one unmeasured pass of each."""
    strategies = [Strategy("autoregressive")]
    if pair.dflash is not None:
        strategies += [Strategy("dflash"), Strategy("ddtree", nodes=options.nodes)]
    if pair.eagle is not None:
        strategies += [Strategy("eagle", width=1, depth=5), Strategy("eagle", width=4, depth=5, nodes=options.nodes)]
    arms = [Arm(strategy, batch_size) for strategy in strategies]
    for arm in arms:
        decode(pair, arm.strategy, requests[:batch_size], batch_size)
    for repetition in range(options.repetitions):
        turn = repetition % len(arms)
        for arm in arms[turn:] + arms[:turn]:
            begin = time.perf_counter()
            arm.generations.append(decode(pair, arm.strategy, requests, batch_size))
            arm.seconds.append(time.perf_counter() - begin)
            print(f"batch {batch_size} repetition {repetition + 1}: {arm.strategy.name}", file=sys.stderr)
    rows = [arm.row() for arm in arms]
    for arm, row in zip(arms, rows, strict=True):
        same = [
            one.output_token_ids == other.output_token_ids
            for one, other in zip(arm.generations[0], arms[0].generations[0], strict=True)
        ]
        row["lossless_share"] = sum(same) / len(same)
        row["speedup_vs_autoregressive"] = row["tokens_per_s"] / rows[0]["tokens_per_s"]
    return rows


def machine(pair: ModelPair, options: argparse.Namespace) -> dict[str, Any]:
    cuda = pair.device.type == "cuda"
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(pair.device) if cuda else None,
        "dtype": options.dtype,
        "torch": torch.__version__,
        "target": "untrained" if options.untrained else Path(options.target).name,
        "new_tokens": options.new_tokens,
    }


def show(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    print("| batch | strategy | shape | tokens/s (low - high) | per user | speed-up | acceptance length | lossless |")
    print("|---:|---|---|---:|---:|---:|---:|---:|")
    for row in rows:
        axes = [f"{axis} {row[axis]}" for axis in ("width", "depth", "nodes") if row[axis] is not None]
        spread = f"{row['tokens_per_s']:.0f} ({row['tokens_per_s_min']:.0f} - {row['tokens_per_s_max']:.0f})"
        accepted = "" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}"
        cells = [
            str(row["batch_size"]),
            row["strategy"],
            ", ".join(axes),
            spread,
            f"{row['tokens_per_s_per_user']:.0f}",
            f"{row['speedup_vs_autoregressive']:.2f}",
            accepted,
            f"{row['lossless_share']:.2f}",
        ]
        print(f"| {' | '.join(cells)} |")
    print(
        f"\nmedian of {options.repetitions} repetitions over {rows[0]['requests']} requests, greedy, {options.dtype}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
