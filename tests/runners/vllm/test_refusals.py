from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arms import CPU, GIVEN, GPU, SHAPES

from runners.vllm.flags import DEFAULT_ARM, resolve
from runners.vllm.refusals import EAGLE_TREES, HYBRID_TREES, NO_TORCHVISION, Asked, refuse
from runners.vllm.targets import may_need_torchvision

FLAGS = resolve(GIVEN, GPU)


def asked(strategy: str, flags: dict[str, Any] | None = None, **changes: Any) -> Asked:
    shape = {"width": None, "depth": None, "nodes": None, **SHAPES[strategy]}
    made = Asked(strategy, **shape, block_size=16, attention="full", flags={**FLAGS, **(flags or {})})
    return replace(made, **changes)


@pytest.mark.parametrize("strategy", SHAPES)
def test_what_can_be_run(strategy: str) -> None:
    assert refuse(asked(strategy)) is None
    assert refuse(asked(strategy, resolve(GIVEN, CPU))) is None


def test_a_chain_is_the_whole_block_or_nothing() -> None:
    assert "Only depth 15" in (refuse(asked("dflash", depth=7)) or "")
    assert refuse(asked("dflash", depth=7, block_size=8)) is None


def test_eagle_has_chains_alone() -> None:
    assert refuse(asked("eagle", width=2, depth=3, nodes=8)) == EAGLE_TREES
    assert refuse(asked("eagle", width=1, depth=3, nodes=2)) == EAGLE_TREES
    assert refuse(asked("eagle", width=1, depth=7, nodes=7)) is None


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"model_runner": "V2"}, "model_runner"),
        (DEFAULT_ARM, "model_runner"),
        ({"tensor_parallel": 2}, "tensor_parallel"),
        ({"attention_backend": "FLASH_ATTN"}, "attention_backend"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"extra_args": ["--enable-lora"]}, "LoRA"),
    ],
)
def test_what_the_tree_cannot_be_run_with(flags: dict[str, Any], word: str) -> None:
    assert word in (refuse(asked("ddtree", flags)) or "")
    assert refuse(asked("dflash", flags)) is None


def test_trees_have_bounds() -> None:
    assert refuse(asked("ddtree", nodes=127)) is None
    assert "nodes 128 > 127" in (refuse(asked("ddtree", nodes=128)) or "")
    assert refuse(asked("ddtree", attention="hybrid")) == HYBRID_TREES
    assert refuse(asked("dflash", attention="hybrid")) is None


def test_what_the_environment_lacks_stops_stock_arms_and_trees_have_their_own_reason() -> None:
    lacking = {"attention": "hybrid", "lacking": NO_TORCHVISION}
    assert [refuse(asked(strategy, **lacking)) for strategy in ("autoregressive", "dflash")] == [NO_TORCHVISION] * 2
    assert refuse(asked("ddtree", **lacking)) == HYBRID_TREES


def test_the_qwen3_5_forms_alone_need_torchvision(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    assert may_need_torchvision(tmp_path)  # nothing is known of it
    for name, needs in (
        ("Qwen3_5ForCausalLM", True),
        ("Qwen3_5MoeForConditionalGeneration", True),
        ("Qwen3NextForCausalLM", False),
        ("OlmoHybridForCausalLM", False),
    ):
        config.write_text(json.dumps({"architectures": [name]}))
        assert may_need_torchvision(tmp_path) is needs
    config.write_text("{}")
    assert may_need_torchvision(tmp_path)
