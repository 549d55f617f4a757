"""Compiles every kernel of a round ahead of time, without a GPU, and prints the shared memory of each as JSON.

    python sgl_compile.py CAPABILITY      # 90, 120

A program of its own: a process that interprets kernels cannot compile them. The candidates' kernels are shared with
vLLM's plug-in and compiled by its test, but for the form that a shard of a vocabulary needs.
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
from ddbench.plugins.kernels.device import shared_bytes_of
from ddbench.plugins.kernels.topk_launch import SCAN_BLOCK
from ddbench.plugins.sglang.kernels import attention, build, layout, moves, prepare, walk, weigh
from ddbench.plugins.sglang.kernels.attention_plan import shape_of
from ddbench.plugins.sglang.kernels.ops import CACHE_COLUMNS, ENTRIES, HIDDEN_COLUMNS, MASK_CHUNK, PACK_BLOCK

ROWS = 64
WIDE = dict.fromkeys(
    (
        *("bonus", "seq_lens", "req_pool_indices", "block_ids", "positions", "draft_slots", "slots", "roots", "tokens"),
        *("first_child", "next_sibling", "choices", "out_tokens", "new_seq_lens", "pointers"),
    ),
    "*i64",
)
NUMBERS = {
    "mask_token",
    "table_width",
    "rows",
    "fill",
    "size",
    "vocabulary",
    "groups",
    "chunks",
    "root_row",
    "m_blocks",
}
STRIDES = {"table_row", "lp_row", "lp_level", "lp_rank", "id_row", "id_level", "id_rank", "hidden_row", "gathered_row"}
STRIDES |= {"logits_row"}
STRIDES |= {"query_token", "query_head", "out_token", "out_head", "window_token", "window_head"}
STRIDES |= {"key_slot", "key_head", "value_slot", "value_head"}


def cases() -> Iterator[Case]:
    one_warp, four = {"num_warps": 1}, {"num_warps": 4}
    for width, block, k in ((2, 2, 1), (16, 16, 8), (64, 16, 16), (128, 17, 127)):
        lanes = {"LANES": max(32, triton.next_power_of_2(width))}
        window = {"WIDTH": width, "WORDS": words_of(width)}
        names = f"{width} {block} {k}"
        yield f"fill_block {names}", prepare.fill_block, WIDE, {"BLOCK": block, "WIDTH": width} | lanes, one_warp
        sizes = {"LEVELS": block - 1, "CANDIDATES": k, "LEVELS_PAD": triton.next_power_of_2(block - 1)}
        sizes["CANDIDATES_PAD"] = triton.next_power_of_2(k)
        yield f"build {names}", build.build, WIDE | {"log_probs": "*fp32"}, window | sizes | lanes, one_warp
        offer = {"LEVELS": block - 1, "CANDIDATES": k, "WIDTH": width} | lanes
        yield f"weigh {names}", weigh.weigh, WIDE | {"log_probs": "*fp32", "scores": "*fp32"}, offer, one_warp
        for whole in (False, True):
            laid = {"ENTRIES": ENTRIES, "ROWS_PAD": ROWS, "WITH_MASK": True, "WHOLE": whole, "CHUNK": MASK_CHUNK}
            yield f"lay_out {names} {whole}", layout.lay_out, WIDE | {"mask": "*i8"}, window | lanes | laid, four
        packed = {"ROWS_PAD": ROWS, "BLOCK": PACK_BLOCK}
        yield f"pack {names}", layout.pack, WIDE | {"packed": "*u8"}, window | packed, four
        for forced in (False, True):
            walked = {"BLOCK": block, "FORCED": forced}
            yield f"follow {names} {forced}", walk.follow, WIDE | {"bonus": "*i64"}, window | lanes | walked, one_warp
        path = {"BLOCK": block, "WIDTH": width, "COLUMNS": HIDDEN_COLUMNS}
        features = dict.fromkeys(("hidden", "gathered"), "*bf16")
        yield f"gather_hidden {names}", moves.gather_hidden, features, path, four
        cache = {"ELEMENT": tl.int32, "SIZE": 512, "STEPS": triton.next_power_of_2(block - 1), "COLUMNS": CACHE_COLUMNS}
        yield f"move_cache {names}", moves.move_cache, WIDE, path | cache, four
    yield from attending()
    for kind, bits in (("bf16", 16), ("fp32", 32)):
        types = {"logits": f"*{kind}"} | dict.fromkeys(
            ("chunk_max", "chunk_sum", "scratch_value", "out_value", "out_lse"), "*fp32"
        )
        choose = {"K": 16, "K_PAD": 16, "PICKED": 16, "PICKED_PAD": 16, "GROUP": 64, "BITS": bits, "RAW": True}
        choose["GROUPS_PAD"] = triton.next_power_of_2(triton.cdiv(75_968, 64))
        choose["CHUNKS_PAD"] = triton.next_power_of_2(triton.cdiv(75_968, SCAN_BLOCK))
        yield f"choose {kind}", topk.choose, types, choose, {"num_warps": 8}


def attending() -> Iterator[Case]:
    """The verify pass's attention with the tiles that are chosen for this GPU; Qwen3-8B's heads and two others."""
    major, minor = divmod(int(sys.argv[1]), 10)
    for width, heads, kv_heads, head in ((16, 32, 8, 128), (128, 32, 8, 128), (64, 8, 4, 64), (33, 16, 1, 256)):
        for kind, element in (("bf16", 2), ("fp32", 4)):
            group = heads // kv_heads
            tile = shape_of(width, heads, kv_heads, head, element, shared_bytes_of((major, minor)))
            given = ("query", "window_keys", "window_values", "cache_keys", "cache_values", "out")
            types = dict.fromkeys(given, f"*{kind}") | dict.fromkeys(("partial", "partial_lse", "scale"), "*fp32")
            types |= {"kv_indptr": "*i32", "kv_indices": "*i64", "mask": "*i8", "mask_indptr": "*i64", "scale": "fp32"}
            shape = {"WIDTH": width, "GROUP": group, "HEAD": head, "HEAD_PAD": triton.next_power_of_2(head)}
            dealt = {"BLOCK_N": tile.n, "SPLITS": 4, "LEAST": 4}
            precise = {"BLOCK_M": tile.m, "PRECISION": "ieee" if element == 4 else "tf32"}
            name = f"{width} {heads} {kv_heads} {head} {kind}"
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            yield f"attend {name}", attention.attend, types, shape | dealt | precise, options
            padded = {"GROUP_PAD": triton.next_power_of_2(group), "SPLITS_PAD": 4}
            yield f"merge {name}", attention.merge, types, shape | dealt | padded, {"num_warps": 4}


if __name__ == "__main__":
    aot.main(list(cases()), NUMBERS, STRIDES)
