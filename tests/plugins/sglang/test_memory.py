"""Memory computed before a start: by hand for Qwen3-8B's dimensions, and against the buffers themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddbench.errors import ConfigError
from ddbench.plugins.sglang import choose, memory
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.memory import GIB, Model, Setup
from ddbench.plugins.sglang.offers import Offers
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.stages import Stage
from ddbench.plugins.sglang.tables import Tables
from ddbench.plugins.sglang.width_memory import offer_bytes, table_bytes

TARGET = Model(36, 32, 8, 128, 4096, 12_288, 151_936, weight_bytes=16_381_470_720)
DRAFTER = Model(5, 32, 8, 128, 4096, 12_288, 151_936, weight_bytes=2_097_152_000)
SETUP = Setup("0.5.17", Sizes(64, 16, 16), 32, (1, 8, 32), 4096, 32 * 4224)
MIB = 2**20
EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence" / "validate_h200.json"
MEASURED = json.loads(EVIDENCE.read_text(encoding="utf-8"))["measured"]


def test_a_token_of_the_pool() -> None:
    # 36 layers x 2 x 8 heads x 128 x 2 bytes = 147456; with 5 more layers of that size 167936.
    assert memory.cell_bytes("0.5.17", TARGET, None) == 147_456
    assert memory.cell_bytes("0.5.17", TARGET, DRAFTER) == 167_936
    assert memory.cell_bytes("0.5.23", TARGET, DRAFTER) == 167_936
    # A drafter with half the heads: the older version does not see it.
    small = replace(DRAFTER, kv_heads=4)
    assert memory.cell_bytes("0.5.17", TARGET, small) == 167_936
    assert memory.cell_bytes("0.5.23", TARGET, small) == 147_456 + 10_240
    assert memory.cell_bytes("0.5.23", TARGET, DRAFTER, ranks=2) == 83_968
    assert memory.cell_bytes("0.5.17", replace(TARGET, kv_element=1), DRAFTER) == 83_968
    # 7 layers of 2 x 1 x 3 x 1 bytes are 42; with 3 more 42 x 10 / 7.
    odd = Model(7, 1, 1, 3, 8, 8, 8, weight_bytes=0, kv_element=1)
    assert memory.cell_bytes("0.5.17", odd, replace(odd, layers=3)) == 60
    with pytest.raises(ConfigError, match=r"0\.5\.17 or 0\.5\.23"):
        memory.cell_bytes("0.5.18", TARGET, DRAFTER)


def test_pools_hold_one_slot_more_than_their_tokens() -> None:
    found = memory.parts(SETUP, TARGET, DRAFTER)
    assert found["kv_target"] == (135_168 + 1) * 147_456
    assert found["kv_drafter"] == (135_168 + 1) * 20_480
    k_buffer = torch.empty(135_169, 8, 128, dtype=torch.bfloat16, device="meta")
    assert 2 * 36 * k_buffer.nbytes == found["kv_target"]


def test_what_a_verify_width_of_64_costs_on_triton() -> None:
    found = memory.parts(SETUP, TARGET, DRAFTER)
    tokens = 32 * 64
    assert found["logits"] == tokens * 151_936 * 4 == 1_244_659_712
    assert found["draft_logits"] == 32 * 15 * 151_936 * 2
    index, mask, lens = tokens * 4096 * 8, tokens * (4096 + 64), tokens * 4
    partial, sums = tokens * 32 * 8 * 128 * 4, tokens * 32 * 8 * 4
    assert (index, mask) == (64 * MIB, 8_519_680)
    assert found["attention_target"] == index + mask + lens + partial + sums
    drafted = 32 * 16
    assert found["attention_drafter"] == drafted * (4096 * 8 + 4 + 32 * 8 * 129 * 4)
    assert found["slot_table"] == 33 * (4096 + 4 + 128) * 4
    assert found["features"] == (1 + 8 + 32) * 64 * 5 * 4096 * 2
    assert found["attention_workspace"] == 0


def test_long_contexts_cost_index_buffers() -> None:
    # Brief figures: 48 sequences of 65 tokens at a context of 40960 take 1.0 GB of indices, at 262144 6.5 GB.
    for context, gigabytes in ((40_960, 1.0), (262_144, 6.5)):
        tokens = 48 * 65
        whole = memory.attention_bytes("triton", 65, 48, context, TARGET, 1, True, True)
        without = memory.attention_bytes("triton", 65, 48, 0, TARGET, 1, True, True)
        assert whole - without == tokens * context * 9
        assert tokens * context * 8 / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_the_other_backends() -> None:
    rows, width, context = 4, 16, 1000
    flashinfer = memory.attention_bytes("flashinfer", width, rows, context, TARGET, 1, True, True)
    assert flashinfer == 64 * 1000 * 5
    tables = 4 * 4 * 1000 * 4 + 24_000
    assert memory.attention_bytes("fa3", width, rows, context, TARGET, 1, False, True) == tables
    chain = memory.attention_bytes("fa3", width, rows, context, TARGET, 1, True, False)
    assert chain == tables + 4 * 16 * 16
    tree = memory.attention_bytes("fa3", width, rows, context, TARGET, 1, True, True)
    assert tree == tables + 2 * 4 * 1000 * 4 + 64 * 19 * 4 + 64 * 1016
    both = replace(SETUP, backend="flashinfer", draft_backend="flashinfer")
    assert memory.parts(both, TARGET, DRAFTER)["attention_workspace"] == 512 * MIB
    with pytest.raises(ConfigError, match="attention_backend='trtllm_mha'"):
        replace(SETUP, backend="trtllm_mha")


def test_newer_versions_keep_one_output_of_features_and_ranks_share() -> None:
    newer = memory.parts(replace(SETUP, version="0.5.23"), TARGET, DRAFTER)
    assert newer["features"] == 32 * 64 * 5 * 4096 * 2
    shared = memory.parts(replace(SETUP, ranks=2), TARGET, DRAFTER)
    assert shared["kv_target"] * 2 == memory.parts(SETUP, TARGET, DRAFTER)["kv_target"]
    assert shared["draft_logits"] == 32 * 15 * 75_968 * 2


@pytest.mark.parametrize(("width", "block"), [(16, 16), (64, 16), (128, 17), (8, 16), (33, 2)])
def test_the_plug_in_s_tables_are_as_large_as_said(width: int, block: int) -> None:
    sizes, rows = Sizes(width, block, min(8, width - 1)), 5
    held = [Trees(rows, width, block, "cpu"), Walk(rows, block, "cpu"), Walk(rows, block, "cpu")]
    tables = Tables(rows, sizes, "cpu")
    tensors = [part for each in (*held, tables) for part in vars(each).values() if isinstance(part, torch.Tensor)]
    on_device = sum(part.nbytes for part in tensors) - tables.host_lens.nbytes
    assert memory.tables_bytes(rows, sizes) == on_device
    assert memory.SAMPLED_ROWS == choose.ROWS


@pytest.mark.parametrize("width", [1, 4, 33])
def test_further_widths_take_what_is_said(width: int) -> None:
    rows, block = 5, 16
    stage = Stage.narrow(width, rows, block, "cpu")
    held = [*vars(stage.trees).values(), stage.slots, stage.positions]
    assert table_bytes(width, rows) == sum(part.nbytes for part in held if isinstance(part, torch.Tensor))
    sizes, budgets = Sizes(64, block, 8), (3, 15, 63)
    offers = Offers(None, rows, sizes, budgets, "cpu")
    parts = [part for part in vars(offers).values() if isinstance(part, torch.Tensor)]
    assert offer_bytes(rows, 64, block, len(budgets)) == sum(part.nbytes for part in parts)
    more = memory.parts(replace(SETUP, narrower=(4, width)), TARGET, DRAFTER)["narrower"]
    assert more > memory.parts(replace(SETUP, narrower=(width,)), TARGET, DRAFTER)["narrower"] > 0
    assert "narrower" not in memory.parts(SETUP, TARGET, DRAFTER)


def test_windows_take_tokens_of_the_pool() -> None:
    assert memory.reserved_tokens(48, Sizes(64, 16, 8)) == 6144
    assert memory.reserved_tokens(2, Sizes(8, 16, 4)) == 64  # the drafter's block is the wider one


def test_defaults_leave_room_for_everything_else() -> None:
    free = 139 * GIB
    found = memory.defaults(SETUP, TARGET, DRAFTER, free)
    assert found.tokens == 32 * (4096 + 128)
    slack = memory.slack_bytes(SETUP, TARGET, DRAFTER)
    held = TARGET.weight_bytes + DRAFTER.weight_bytes + found.tokens * 167_936
    assert held <= found.fraction * free <= free - slack
    assert free - slack - found.fraction * free < free / 1000
    assert sum(memory.parts(replace(SETUP, tokens=found.tokens), TARGET, DRAFTER).values()) < free
    smaller = memory.defaults(SETUP, TARGET, DRAFTER, free, tokens=5000)
    assert smaller == memory.Defaults(5000, found.fraction)


def test_what_graphs_hold_beyond_their_buffers() -> None:
    tokens, drafted, inner = 32 * 64, 32 * 16, 3 * 12_288 + 4 * 4096
    features = tokens * 5 * 4096 * 2
    found = memory.captured_bytes(SETUP, TARGET, DRAFTER)
    assert found == (tokens + drafted) * inner * 2 + features + tokens * 151_936 * 2
    shared = (tokens + drafted) * (inner - 3 * 6144) * 2 + features + tokens * (151_936 + 75_968) * 2
    assert memory.captured_bytes(replace(SETUP, ranks=2), TARGET, DRAFTER) == shared


@pytest.mark.parametrize(
    ("arm", "top_k", "took_gib"), [("dflash_16", 1, 4.23), ("ddtree_16", 15, 4.25), ("ddtree_64", 63, 6.33)]
)
def test_the_slack_is_no_less_than_servers_took_beside_weights_and_cache(arm: str, top_k: int, took_gib: float) -> None:
    """Peaks on an H200 with 32 requests in prefill chunks of 8,192 tokens, decoded greedily."""
    width = int(arm.removeprefix("dflash_").removeprefix("ddtree_"))
    setup = Setup("0.5.17", Sizes(width, 16, top_k), 32, (1, 2, 4, 8, 16, 32), 1024, 36_864)
    parts = memory.parts(setup, TARGET, DRAFTER)
    static = sum(size for name, size in parts.items() if name not in memory.POOLED) / GIB
    assert static + MEASURED[f"beyond_plan_gib.{arm}"] == pytest.approx(took_gib, abs=0.01)
    assert took_gib < memory.slack_bytes(setup, TARGET, DRAFTER) / GIB < took_gib + 1


def test_a_width_that_does_not_fit_names_one_that_does() -> None:
    wide = replace(SETUP, sizes=Sizes(128, 16, 16), context=40_960, requests=8, captured=(8,))
    need = memory.slack_bytes(wide, TARGET, DRAFTER) + 8 * (40_960 + 256) * 167_936
    free = TARGET.weight_bytes + DRAFTER.weight_bytes + need - 1
    with pytest.raises(ConfigError, match=r"speculative_num_draft_tokens=128.* at most 127$"):
        memory.defaults(wide, TARGET, DRAFTER, free)
    memory.defaults(replace(wide, sizes=Sizes(127, 16, 16)), TARGET, DRAFTER, free)
    memory.defaults(wide, TARGET, DRAFTER, free + 1)
    with pytest.raises(ConfigError, match="fewer requests"):
        memory.defaults(wide, TARGET, DRAFTER, 20 * GIB)
    chain = replace(wide, sizes=Sizes(16, 16, 1))  # its width is the drafter's own: there is no narrower one
    with pytest.raises(ConfigError, match="fewer requests"):
        memory.defaults(chain, TARGET, DRAFTER, memory.slack_bytes(chain, TARGET, DRAFTER) + 60 * GIB)
