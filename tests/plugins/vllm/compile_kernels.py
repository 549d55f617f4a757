"""Compiles every kernel ahead of time, without a GPU, and prints the shared memory of each as JSON.

    python compile_kernels.py CAPABILITY SHARED_BYTES      # 90 232448, 120 101376

A program of its own: a process that interprets kernels cannot compile them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[1]))

import aot
import triton
import triton.language as tl
from aot import Case

from ddbench.plugins.kernels import topk
from ddbench.plugins.kernels.bits import words_of
from ddbench.plugins.kernels.limits import LOWEST_FINITE
from ddbench.plugins.kernels.tiles import tile_of
from ddbench.plugins.kernels.topk_launch import SCAN_BLOCK
from ddbench.plugins.vllm.kernels import attention, build, moves, positions, walk


def attention_cases(limit: int) -> Iterator[Case]:
    shapes = [
        (head, width, group, "bf16")
        for head in (64, 128)
        for width, group in ((2, 1), (16, 2), (16, 4), (64, 4), (128, 8))
    ]
    shapes += [(64, 2, 1, "fp32"), (64, 128, 8, "fp32"), (128, 16, 1, "fp32"), (256, 16, 1, "fp32")]
    shapes += [(96, 16, 4, "bf16"), (256, 64, 8, "bf16"), (128, 16, 4, "fp16")]
    for head, width, group, kind in shapes:
        tile = tile_of(width * group, head, 4 if kind == "fp32" else 2, limit)
        pointers = dict.fromkeys(("query", "cache", "out"), f"*{kind}") | dict.fromkeys(
            ("partial", "partial_lse"), "*fp32"
        )
        pointers |= dict.fromkeys(("tokens", "slots"), "i32")
        shape = {"GROUP": group, "HEAD": head, "HEAD_PAD": triton.next_power_of_2(head)}
        for splits in (1, 8) if head == 128 else (8,):
            shares = {"BLOCK_N": tile.n, "SPLITS": splits, "LEAST": 2, "HAS_STATE": True, "ONLY_TREES": False}
            rest = {"PAGE": 16, "WIDTH": width, "WORDS": words_of(width), "BLOCK_M": tile.m, "CAUSAL": True}
            rest["PRECISION"] = "ieee" if kind == "fp32" else "tf32"
            launch = {"num_warps": tile.warps, "num_stages": tile.stages}
            name = f"attend {kind} head {head} width {width} group {group} splits {splits} {tile}"
            yield name, attention.attend, pointers | {"scale": "fp32"}, shape | shares | rest, launch
        joined = (
            shape | shares | {"GROUP_PAD": triton.next_power_of_2(group), "SPLITS_PAD": triton.next_power_of_2(splits)}
        )
        yield f"merge {kind} {head} {group}", attention.merge, pointers, joined, {"num_warps": 4}


def other_cases() -> Iterator[Case]:
    for nodes, levels, width in ((1, 1, 1), (15, 15, 15), (63, 15, 63), (127, 16, 127), (127, 15, 4)):
        sizes = {"LEVELS_PAD": triton.next_power_of_2(levels), "WIDTH_PAD": triton.next_power_of_2(width)}
        tree = {
            "NODES": nodes,
            "LEVELS": levels,
            "WIDTH": width,
            "WORDS": words_of(nodes + 1),
            "SPINE": int(nodes == 63),
        }
        lanes = {"LANES": max(32, triton.next_power_of_2(nodes + 1)), "WORST": LOWEST_FINITE}
        types = {"log_probs": "*fp32", "slots": "*i32"}
        yield f"build {nodes} {levels} {width}", build.build, types, sizes | tree | lanes, {"num_warps": 1}
    for nodes in (1, 63, 127):
        lanes = {"NODES": nodes, "LANES": triton.next_power_of_2(nodes)}
        yield f"shift {nodes}", positions.shift, {"positions": "*i64"}, lanes | {"WITH_TOKENS": True}, {"num_warps": 1}
        lanes = {"NODES": nodes, "LANES": max(32, triton.next_power_of_2(nodes + 1))}
        types = {"choices": "*i64", "positions": "*i64"}
        yield f"follow {nodes}", walk.follow, types, lanes | {"RESTORE": True}, {"num_warps": 1}
        steps = {"NODES": nodes, "STEPS": min(triton.next_power_of_2(nodes), 16)}
        yield f"hidden {nodes}", moves.move_hidden, {"hidden": "*bf16"}, steps | {"COLUMNS": 1024}, {"num_warps": 4}
        for element in (tl.int16, tl.int32):
            page = {"ELEMENT": element, "PAGE": 16, "SIZE": 256, "SIZE_PAD": 256, "HEADS": 2}
            types = {"pointers": "*i64", "slot_mapping": "*i64"}
            yield f"cache {nodes}", moves.move_cache, types, steps | page, {"num_warps": 4}
    for kind, bits in (("bf16", 16), ("fp32", 32)):
        for k, vocabulary in ((4, 320), (16, 151_936), (63, 151_936), (127, 151_936)):
            group = 64 if k <= 64 else 32
            types = {"logits": f"*{kind}"} | dict.fromkeys(
                ("chunk_max", "chunk_sum", "scratch_value", "out_value", "out_lse"), "*fp32"
            )
            scan = {"GROUP": group, "BLOCK": SCAN_BLOCK, "BITS": bits}
            yield f"scan {kind} {k}", topk.scan, types, scan, {"num_warps": 8}
            groups = triton.cdiv(vocabulary, group)
            picked = min(k, groups)
            choose = {"K": k, "K_PAD": triton.next_power_of_2(k), "GROUP": group, "BITS": bits, "RAW": False}
            choose |= {"PICKED": picked, "PICKED_PAD": triton.next_power_of_2(picked)}
            choose["GROUPS_PAD"] = triton.next_power_of_2(groups)
            choose["CHUNKS_PAD"] = triton.next_power_of_2(triton.cdiv(vocabulary, SCAN_BLOCK))
            yield f"choose {kind} {k} {vocabulary}", topk.choose, types, choose, {"num_warps": 8}


# What is no pointer; a launch gives plain integers, pointers are to int32 where a case does not say otherwise.
NUMBERS = {"m_blocks", "size", "heads", "vocabulary", "groups", "chunks"}
STRIDES = ("query_token", "query_head", "out_token", "out_head", "cache_block", "cache_head", "cache_slot", "table_row")
STRIDES += ("lp_row", "lp_level", "lp_rank", "id_row", "id_level", "id_rank", "emitted_row", "emitted_width")
STRIDES += ("hidden_row", "stride_block", "stride_head", "stride_slot", "logits_row")


def main() -> None:
    aot.main([*attention_cases(int(sys.argv[2])), *other_cases()], NUMBERS, STRIDES)


if __name__ == "__main__":
    main()
