"""The gate and the refusals of a server's configuration, on the objects that this vLLM makes of its own flags."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_jobs import ASSETS, ENVIRONMENT

from ddbench.plugins.vllm import gate
from ddbench.plugins.vllm.refusals import SCHEDULERS, WORKER, Refused, check_caches, check_config, is_ours

pytestmark = pytest.mark.vllm


@cache
def configuration(**flags: Any) -> Any:
    """vLLM's configuration for the tiny pair with a tree's flags and ``flags``."""
    from vllm.engine.arg_utils import EngineArgs

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        settings: dict[str, Any] = {
            "model": str(ASSETS / "target"),
            "dtype": "float32",
            "max_model_len": 1024,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "worker_cls": WORKER,
            "scheduler_cls": SCHEDULERS[0],
            "speculative_config": {
                "method": "dflash",
                "model": str(ASSETS / "dflash"),
                "num_speculative_tokens": 16,
            },
        }
        return EngineArgs(**(settings | flags)).create_engine_config()


def changed(change: Callable[[Any], None]) -> Any:
    """A copy of the accepted configuration, changed where vLLM would need other hardware or models."""
    config = deepcopy(configuration())
    change(config)
    return config


def test_this_version_is_let_through() -> None:
    assert gate.check_engine() == gate.engine_version()
    assert gate.differences() == []


def test_a_renamed_parameter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample"
    monkeypatch.setitem(gate.SIGNATURES, place, ("logits", "metadata"))
    with pytest.raises(Refused, match=r"GPUModelRunner\._sample takes"):
        gate.check_engine()


def test_a_missing_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "vllm.v1.worker.gpu_model_runner:GPUModelRunner._gone"
    monkeypatch.setattr(gate, "NAMES", (*gate.NAMES, place))
    with pytest.raises(Refused, match=r"_gone is missing"):
        gate.check_engine()


def test_the_right_configuration_is_ours_and_accepted() -> None:
    assert is_ours(configuration())
    check_config(configuration())


def test_a_stock_configuration_is_not_ours() -> None:
    assert not is_ours(configuration(worker_cls="auto", scheduler_cls=None))


def test_flags_are_refused_by_name() -> None:
    with pytest.raises(Refused, match="--scheduler-cls: must be"):
        check_config(configuration(scheduler_cls=SCHEDULERS[1]))
    with pytest.raises(Refused, match="--speculative-config"):
        check_config(configuration(speculative_config=None))


CHANGES: dict[str, Callable[[Any], None]] = {
    "--tensor-parallel-size": lambda c: setattr(c.parallel_config, "tensor_parallel_size", 2),
    "--pipeline-parallel-size": lambda c: setattr(c.parallel_config, "pipeline_parallel_size", 2),
    "--data-parallel-size": lambda c: setattr(c.parallel_config, "data_parallel_size", 2),
    "decode context parallelism": lambda c: setattr(c.parallel_config, "decode_context_parallel_size", 2),
    "--enable-dbo": lambda c: setattr(c.parallel_config, "enable_dbo", True),
    "--scheduler-cls": lambda c: setattr(c.scheduler_config, "async_scheduling", True),
    "LoRA": lambda c: setattr(c, "lora_config", object()),
    "KV transfer": lambda c: setattr(c, "kv_transfer_config", object()),
    "--kv-cache-dtype": lambda c: setattr(c.cache_config, "cache_dtype", "fp8_e4m3"),
    "disable_padded_drafter_batch": lambda c: setattr(c.speculative_config, "disable_padded_drafter_batch", True),
    "rejection_sample_method": lambda c: setattr(c.speculative_config, "rejection_sample_method", "synthetic"),
    "draft_sample_method": lambda c: setattr(c.speculative_config, "draft_sample_method", "probabilistic"),
    "num_speculative_tokens_per_batch_size": lambda c: setattr(
        c.speculative_config, "num_speculative_tokens_per_batch_size", [(1, 4, 8)]
    ),
    "the drafter's vocabulary": lambda c: setattr(
        c.speculative_config.draft_model_config.model_arch_config, "vocab_size", 4097
    ),
    "--speculative-config": lambda c: setattr(c.speculative_config, "method", "eagle3"),
}


@pytest.mark.parametrize("named", CHANGES)
def test_configurations_are_refused_by_name(named: str) -> None:
    with pytest.raises(Refused, match=named):
        check_config(changed(CHANGES[named]))


def test_the_v2_runner_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(lambda config: None)
    monkeypatch.setattr(type(config), "use_v2_model_runner", property(lambda self: True))
    with pytest.raises(Refused, match="VLLM_USE_V2_MODEL_RUNNER: must be 0"):
        check_config(config)


def test_a_hybrid_target_is_refused_by_name(tmp_path: Path) -> None:
    """By what vLLM itself makes of a Qwen3-Next, and by its layers if it were not seen there."""
    from experiments.sglang_evidence.hybrid_pair import write_pair

    write_pair(tmp_path, "qwen3_next", "float32")
    pair = {"method": "dflash", "model": str(tmp_path / "dflash"), "num_speculative_tokens": 16}
    config = deepcopy(configuration())
    hybrid = configuration.__wrapped__(model=str(tmp_path / "target"), speculative_config=pair)
    config.model_config = hybrid.model_config
    with pytest.raises(Refused, match="a hybrid model: its recurrent layers would let siblings share a state"):
        check_config(config)
    spec = SimpleNamespace(kv_cache_spec=type("MambaSpec", (), {})())
    groups = SimpleNamespace(kv_cache_groups=[spec])
    with pytest.raises(Refused, match="MambaSpec layers: only full attention"):
        check_caches(groups, config.compilation_config, "cpu")
