"""What cannot be run is said, and never run as something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sglang_arms import FOLDERS, GIVEN, GPU, SHAPES, arm

import ddbench
from ddbench.errors import ConfigError
from runners.base import EngineFailure
from runners.sglang import info, plugin_log
from runners.sglang.command import Machine, arguments
from runners.sglang.flags import Demands, pool, reserve, resolve
from runners.sglang.refusals import CHAIN_ONLY, Asked, refuse
from runners.sglang.targets import missing_form

ASSETS = Path(ddbench.__file__).parent / "assets"
FLAGS = resolve(GIVEN, GPU)


def asked(strategy: str, flags: dict[str, Any] | None = None, **changes: Any) -> Asked:
    shape = {"width": None, "depth": None, "nodes": None, **SHAPES[strategy]}
    made = Asked(strategy, **shape, block_size=16, attention="full", version="0.5.17", flags={**FLAGS, **(flags or {})})
    return replace(made, **changes)


@pytest.mark.parametrize("strategy", SHAPES)
def test_what_can_be_run(strategy: str) -> None:
    assert refuse(asked(strategy)) is None


def test_a_tree_of_stock_dflash_is_never_a_chain() -> None:
    assert refuse(asked("dflash", width=4)) == CHAIN_ONLY
    assert refuse(asked("dflash", nodes=32)) == CHAIN_ONLY
    for words in (["--speculative-eagle-topk", "4"], ["--speculative-eagle-topk=4"]):
        assert refuse(asked("dflash", {"extra_args": words})) == CHAIN_ONLY
    assert refuse(asked("dflash", width=1)) is None
    for words in (["--speculative-eagle-topk", "1"], ["--speculative-eagle-topk=1"]):
        assert refuse(asked("dflash", {"extra_args": words})) is None
        hidden = [*words, "--speculative-num-draft-tokens", "8"]
        assert "--speculative-num-draft-tokens changes what the arm drafts" in (
            refuse(asked("dflash", {"extra_args": hidden})) or ""
        )
    assert "changes what the arm drafts" in (
        refuse(asked("ddtree", {"extra_args": ["--speculative-num-draft-tokens", "8"]})) or ""
    )


def test_a_chain_is_the_whole_block_or_nothing() -> None:
    assert "Only depth 15" in (refuse(asked("dflash", depth=7)) or "")
    assert refuse(asked("dflash", depth=7, block_size=8)) is None


def test_eagle_trees_have_bounds() -> None:
    assert "must be 3, not 8" in (refuse(asked("eagle", width=1, depth=3, nodes=8)) or "")
    assert refuse(asked("eagle", width=1, depth=3, nodes=3)) is None
    assert "nodes 7 > 6" in (refuse(asked("eagle", width=2, depth=2, nodes=7)) or "")
    assert "needs depth, width and nodes" in (refuse(asked("eagle", depth=None)) or "")
    assert "verifies no EAGLE trees" in (refuse(asked("eagle", {"attention_backend": "trtllm_mha"})) or "")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"attention_backend": "trtllm_mha"}, "ignores the tree mask"),
        ({"attention_backend": "nonsense"}, "unknown to the plug-in"),
        ({"page_size": 16}, "engine.flags.page_size"),
        ({"extra_args": ["--enable-lora"]}, "LoRA"),
    ],
)
def test_what_the_tree_cannot_be_run_with(flags: dict[str, Any], word: str) -> None:
    assert word in (refuse(asked("ddtree", flags)) or "")
    assert refuse(asked("dflash", flags)) is None


def test_a_backend_of_one_version_alone() -> None:
    flashinfer = {"attention_backend": "flashinfer"}
    assert refuse(asked("ddtree", flashinfer)) is None
    said = refuse(asked("ddtree", flashinfer, version="0.5.23")) or ""
    assert said.startswith("flashinfer: ")
    assert said.endswith("(engine.flags.attention_backend: triton)")


def test_trees_have_bounds() -> None:
    assert refuse(asked("ddtree", nodes=127)) is None
    assert "nodes 128 > 127" in (refuse(asked("ddtree", nodes=128)) or "")
    assert "not 0.5.20" in (refuse(asked("ddtree", version="0.5.20")) or "")
    assert refuse(asked("dflash", attention="hybrid", version="0.5.20")) is None


def test_hybrid_targets() -> None:
    assert refuse(asked("ddtree", attention="hybrid")) is None
    assert refuse(asked("ddtree", attention="hybrid", version="0.5.23")) is None
    assert "prefix_cache" in (refuse(asked("ddtree", {"prefix_cache": True}, attention="hybrid")) or "")
    assert "trtllm" in (refuse(asked("ddtree", {"attention_backend": "trtllm_mha"}, attention="hybrid")) or "")


def test_a_form_of_a_target_that_a_version_lacks(tmp_path: Path) -> None:
    hybrid, dense = (ASSETS / name / "target" for name in ("hybrid", "."))
    said = missing_form(hybrid, "0.5.17") or ""
    assert "has no Qwen3_5ForCausalLM" in said
    assert "Qwen3_5ForConditionalGeneration alone" in said
    assert missing_form(hybrid, "0.5.23") is None
    assert missing_form(dense, "0.5.17") is None
    assert missing_form(tmp_path, "0.5.17") is None, "on another machine, or on the hub"


def test_settings_that_device_or_plan_rule_out() -> None:
    for changes, demands, key in (
        ({"max_running_requests": 4}, GPU, "engine.flags.max_running_requests"),
        ({"min_free_slots_delay": None}, GPU, "engine.flags.min_free_slots_delay"),
        ({"context_length": 100}, GPU, "engine.flags.context_length"),
        ({}, replace(GPU, device="cpu"), "engine.device"),
        ({}, replace(GPU, dtype="float32"), "engine.dtype"),
    ):
        with pytest.raises(ConfigError, match=f"{key}="):
            resolve(replace(GIVEN, **changes), demands)
    for dtype in ("bfloat16", "float16", None):
        resolve(GIVEN, replace(GPU, dtype=dtype))
    for name, bad in (("page_size", 0), ("mem_fraction_static", 1.0), ("chunked_prefill_size", 0)):
        with pytest.raises(ConfigError, match=f"engine.flags.{name}="):
            replace(GIVEN, **{name: bad})


def test_the_pool_holds_the_largest_batch_and_is_the_same_in_all_arms() -> None:
    assert pool(8, 4096, 64) == 33 * 1024  # 8 x (4096 + 128) = 33 x 1024
    assert resolve(GIVEN, Demands("cuda", 8, 0, 4096))["kv_tokens"] == 32 * 1024
    assert (reserve(0), reserve(64)) == (4, 132)


def test_what_a_server_runs_is_compared_with_what_it_was_asked() -> None:
    for strategy in SHAPES:
        given = arguments(arm(strategy), FOLDERS, Machine("py", "bfloat16", 1), (1, 8))
        told = {**given, "max_total_num_tokens": given["max_total_tokens"], "speculative_num_steps": 7}
        told.setdefault("speculative_algorithm", None)
        info.check(given, told)
        for name, other in (
            ("attention_backend", "fa3"),
            ("max_total_num_tokens", 5),
            ("disable_overlap_schedule", True),
        ):
            with pytest.raises(EngineFailure, match="something else than it was asked for"):
                info.check(given, {**told, name: other})
    plain = arguments(arm("autoregressive"), FOLDERS, Machine("py", "bfloat16", 1), (1, 8))
    assert info.differences(plain, {"speculative_algorithm": "DFLASH"}) == [
        "speculative_algorithm is 'DFLASH', not None"
    ]
    tree = arguments(arm("ddtree"), FOLDERS, Machine("py", "bfloat16", 1), (1, 8))
    assert info.differences(tree, {"speculative_eagle_topk": 1}) == ["speculative_eagle_topk is 1, not 4"]


def test_what_the_plug_in_says() -> None:
    line = "ddbench: DDTREE plugin registered: N=33 B=16 K=4 backend=TritonAttnBackend mask=on graphs=[1, 8]"
    assert plugin_log.check(f"before\n{line}\nafter") == line
    with pytest.raises(EngineFailure, match="did not register"):
        plugin_log.check("The server is fired up and ready to roll!")
    refused = "ddbench: DDTREE plug-in refused: SGLang 0.5.20: the DDTREE plug-in knows 0.5.17"
    assert plugin_log.refusal(refused) == ("the DDTree plug-in refused: SGLang 0.5.20: the DDTREE plug-in knows 0.5.17")
    raised = "ddbench.plugins.sglang.refused.Refused: page_size=16: DDTREE needs 1"
    assert plugin_log.refusal(raised) == "the DDTree plug-in refused: page_size=16: DDTREE needs 1"
    assert plugin_log.refusal("all is well") is None


def test_a_drafter_without_graphs_is_seen_in_the_log() -> None:
    line = "Disable DFLASH draft cuda graph because only 0.41 GB GPU memory is available after target backend"
    assert plugin_log.draft_graph_off(f"[2026-01-01 00:00:00] {line}\nafter") == line
    assert plugin_log.draft_graph_off("Capture draft cuda graph begin. DFLASH draft greedy head folded") is None
