from __future__ import annotations

import json
from dataclasses import replace

import pytest
from arms import CPU, FOLDERS, GIVEN, GPU, HUB, SHAPES, arm, launch, value

from runners.vllm.command import capture_sizes
from runners.vllm.flags import DEFAULT_ARM

VERSIONS = ("0.26.0", "0.32.0", "0.33.0")
SPECULATIVE = ("dflash", "eagle", "ddtree")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("strategy", SHAPES)
def test_what_every_arm_has(strategy: str, version: str) -> None:
    made = launch(arm(strategy), version=version)
    assert made.argv[:3] == ("py", "-m", "vllm.entrypoints.openai.api_server")
    for flag, wanted in {
        "--port": "{port}",
        "--model": "/m/target",
        "--dtype": "bfloat16",
        "--max-model-len": "4096",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "8192",
        "--block-size": "16",
        "--generation-config": "vllm",
    }.items():
        assert value(made, flag) == wanted
    assert "--no-async-scheduling" in made.argv
    assert "--no-enable-prefix-caching" in made.argv
    assert made.environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert made.environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("strategy", SPECULATIVE)
def test_counts_by_request_are_asked_for_where_the_version_has_them(strategy: str, version: str) -> None:
    has_it = "--per-request-spec-decode-metrics" in launch(arm(strategy), version=version).argv
    assert has_it == (version != "0.26.0")
    assert "--per-request-spec-decode-metrics" not in launch(arm("autoregressive"), version=version).argv


@pytest.mark.parametrize(
    ("strategy", "speculation"),
    [
        ("dflash", {"method": "dflash", "model": "/m/dflash", "num_speculative_tokens": 15}),
        ("eagle", {"method": "eagle3", "model": "/m/eagle", "num_speculative_tokens": 3}),
        ("ddtree", {"method": "dflash", "model": "/m/dflash", "num_speculative_tokens": 32}),
    ],
)
def test_the_drafter(strategy: str, speculation: dict[str, object]) -> None:
    on_gpu = json.loads(value(launch(arm(strategy)), "--speculative-config"))
    assert on_gpu == {**speculation, "attention_backend": "TRITON_ATTN"}
    on_cpu = json.loads(value(launch(arm(strategy, demands=CPU)), "--speculative-config"))
    assert on_cpu == speculation
    hub = json.loads(value(launch(arm(strategy), HUB), "--speculative-config"))
    assert hub["revision"] == (HUB.eagle_revision if strategy == "eagle" else HUB.dflash_revision)


def test_autoregressive_decoding_has_no_drafter() -> None:
    assert not {"--speculative-config", "--worker-cls", "--scheduler-cls"} & set(launch(arm("autoregressive")).argv)


def test_the_plug_in_is_asked_for_by_the_tree_alone() -> None:
    made = launch(arm("ddtree", force_spine=True, min_log_prob=-4.0))
    assert value(made, "--worker-cls") == "ddbench.plugins.vllm.worker.DDTreeWorker"
    assert value(made, "--scheduler-cls") == "ddbench.plugins.vllm.scheduler.DDTreeScheduler"
    assert value(made, "--attention-backend") == "CUSTOM"
    shape = {"width": 4, "depth": 7, "min_log_prob": -4.0, "force_spine": True}
    assert json.loads(value(made, "--additional-config")) == {"ddbench": shape}
    for strategy in ("autoregressive", "dflash", "eagle"):
        other = launch(arm(strategy))
        assert value(other, "--attention-backend") == "TRITON_ATTN"
        assert "--worker-cls" not in other.argv


def test_asynchronous_scheduling_is_the_same_in_all_arms() -> None:
    given = replace(GIVEN, async_scheduling=True)
    for strategy in SHAPES:
        assert "--async-scheduling" in launch(arm(strategy, given)).argv
    tree = launch(arm("ddtree", given))
    assert value(tree, "--scheduler-cls") == "ddbench.plugins.vllm.scheduler.DDTreeAsyncScheduler"


def test_graphs_are_captured_for_what_will_run() -> None:
    assert capture_sizes(1, (1, 8)) == [1, 2, 4, 8]
    assert capture_sizes(33, (6,)) == [33, 66, 132, 198]
    config = json.loads(value(launch(arm("ddtree")), "--compilation-config"))
    assert config == {"cudagraph_capture_sizes": [33, 66, 132, 264], "max_cudagraph_capture_size": 264}
    eager = launch(arm("dflash", replace(GIVEN, cuda_graphs=False)))
    assert "--enforce-eager" in eager.argv
    assert "--compilation-config" not in eager.argv


def test_on_the_cpu() -> None:
    made = launch(arm("ddtree", demands=CPU))
    assert "--enforce-eager" in made.argv
    assert "--attention-backend" not in made.argv
    assert value(made, "--block-size") == "128"
    assert value(made, "--kv-cache-memory-bytes") == str(2**28)
    assert made.environment["OMP_NUM_THREADS"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in made.environment


def test_an_arm_of_the_engines_own_choice() -> None:
    plain = arm("dflash")
    made = launch(replace(plain, flags={**plain.flags, **DEFAULT_ARM}))
    absent = ("--attention-backend", "--compilation-config", "--async-scheduling", "--no-async-scheduling")
    assert not set(absent) & set(made.argv)
    assert made.environment["VLLM_USE_V2_MODEL_RUNNER"] is None
    assert "attention_backend" not in json.loads(value(made, "--speculative-config"))
    assert value(made, "--kv-cache-memory-bytes") == value(launch(plain), "--kv-cache-memory-bytes")


def test_further_flags() -> None:
    given = replace(
        GIVEN, quantization="fp8", kv_cache_dtype="fp8", tensor_parallel=2, prefix_cache=True, extra_args=("--x", "1")
    )
    made = launch(arm("dflash", given), gpus="2,3")
    assert value(made, "--quantization") == value(made, "--kv-cache-dtype") == "fp8"
    assert value(made, "--tensor-parallel-size") == "2"
    assert made.argv[-2:] == ("--x", "1")
    assert made.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_models_of_the_hub_are_taken_at_their_revision() -> None:
    made = launch(arm("autoregressive"), HUB)
    assert value(made, "--revision") == value(made, "--tokenizer-revision") == HUB.target_revision
    assert "HF_HUB_OFFLINE" not in made.environment
    assert "--revision" not in launch(arm("autoregressive", demands=GPU), FOLDERS).argv
