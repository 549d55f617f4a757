from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from arms import CPU, GIVEN, GPU

from ddbench.errors import ConfigError
from runners.vllm.flags import Demands, batched_tokens, cache_gib, reserve, resolve


def test_what_a_plan_makes_of_the_defaults() -> None:
    flags = resolve(GIVEN, GPU)
    assert (flags["attention_backend"], flags["block_size"], flags["cuda_graphs"]) == ("TRITON_ATTN", 16, True)
    assert (flags["max_model_len"], flags["max_num_seqs"], flags["max_num_batched_tokens"]) == (4096, 8, 8192)
    assert flags["kv_cache_gib"] == 5.0  # 1.05 x 8 sequences of 4224 tokens of 144 KiB = 4.87
    flags = resolve(GIVEN, CPU)
    assert (flags["attention_backend"], flags["block_size"], flags["cuda_graphs"]) == ("CPU_ATTN", 128, False)
    assert flags["max_model_len"] == 2048


def test_given_values_stand() -> None:
    given = replace(GIVEN, max_num_seqs=16, kv_cache_gib=3.0, block_size=32, max_num_batched_tokens=4096)
    flags = resolve(given, GPU)
    assert (flags["max_num_seqs"], flags["kv_cache_gib"], flags["block_size"]) == (16, 3.0, 32)
    assert flags["max_num_batched_tokens"] == 4096


def test_a_hybrid_sizes_its_own_cache() -> None:
    assert resolve(GIVEN, replace(GPU, hybrid=True))["kv_cache_gib"] is None


def test_every_sequence_can_verify_at_once_whatever_the_version_takes_off() -> None:
    for seqs in (1, 8, 64, 256):
        for drafted in (0, 3, 15, 64, 127):
            left = batched_tokens(seqs, drafted) - max(drafted - 1, 0) * seqs  # what vLLM 0.26 leaves
            assert left >= seqs * (drafted + 1) + 2048
    assert cache_gib(1, 1, 1) == 0.25
    assert (reserve(0), reserve(64)) == (0, 130)


@pytest.mark.parametrize(
    ("changes", "demands", "key"),
    [
        ({"attention_backend": "FLASH_ATTN"}, CPU, "attention_backend"),
        ({"model_runner": "V2"}, CPU, "model_runner"),
        ({"cuda_graphs": True}, CPU, "cuda_graphs"),
        ({"async_scheduling": True}, CPU, "async_scheduling"),
        ({"block_size": 16}, CPU, "block_size"),
        ({"max_num_seqs": 4}, GPU, "max_num_seqs"),
        ({"async_scheduling": None}, GPU, "async_scheduling"),
        ({"max_model_len": 64}, GPU, "max_model_len"),
    ],
)
def test_what_device_or_plan_rule_out(changes: dict[str, Any], demands: Demands, key: str) -> None:
    with pytest.raises(ConfigError, match=f"engine.flags.{key}="):
        resolve(replace(GIVEN, **changes), demands)


@pytest.mark.parametrize(
    ("name", "bad"), [("tensor_parallel", 0), ("gpu_memory_utilization", 1.5), ("kv_cache_gib", 0.0)]
)
def test_values_out_of_range(name: str, bad: Any) -> None:
    with pytest.raises(ConfigError, match=f"engine.flags.{name}="):
        replace(GIVEN, **{name: bad})
