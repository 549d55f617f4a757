from __future__ import annotations

from dataclasses import replace

import pytest
from sglang_arms import FOLDERS, GIVEN, HUB, SHAPES, arm, launch, value, values

from runners.sglang.command import graph_sizes
from runners.sglang.flags import DEFAULT_ARM

SPECULATIVE = ("dflash", "eagle", "ddtree")


@pytest.mark.parametrize("strategy", SHAPES)
def test_what_every_arm_has(strategy: str) -> None:
    made = launch(arm(strategy))
    assert made.argv[:3] == ("py", "-m", "sglang.launch_server")
    for flag, wanted in {
        "--host": "127.0.0.1",
        "--port": "{port}",
        "--model-path": "/m/target",
        "--dtype": "bfloat16",
        "--context-length": "4096",
        "--max-running-requests": "8",
        "--max-total-tokens": "33792",
        "--mem-fraction-static": "0.85",
        "--page-size": "1",
        "--attention-backend": "triton",
        "--kv-cache-dtype": "auto",
        "--min-free-slots-delay": "1",
        "--sampling-defaults": "openai",
    }.items():
        assert value(made, flag) == wanted, flag
    assert values(made, "--cuda-graph-bs-decode") == ["1", "2", "4", "8"]
    for flag in ("--skip-tokenizer-init", "--incremental-streaming-output", "--disable-radix-cache"):
        assert flag in made.argv
    for flag in ("--disable-overlap-schedule", "--disable-decode-cuda-graph", "--quantization"):
        assert flag not in made.argv
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert made.environment["HF_HUB_OFFLINE"] == "1"
    assert made.environment["SGLANG_SIMULATE_ACC_LEN"] is None


@pytest.mark.parametrize(
    ("strategy", "flags"),
    [
        ("dflash", {"algorithm": "DFLASH", "draft-model-path": "/m/dflash", "num-draft-tokens": "16"}),
        (
            "eagle",
            {
                "algorithm": "EAGLE3",
                "draft-model-path": "/m/eagle",
                "num-draft-tokens": "16",
                "num-steps": "7",
                "eagle-topk": "4",
            },
        ),
        (
            "ddtree",
            {
                "algorithm": "DDTREE",
                "draft-model-path": "/m/dflash",
                "num-draft-tokens": "33",
                "dflash-block-size": "16",
                "eagle-topk": "4",
            },
        ),
    ],
)
def test_the_shape(strategy: str, flags: dict[str, str]) -> None:
    made = launch(arm(strategy))
    found = {word.removeprefix("--speculative-") for word in made.argv if word.startswith("--speculative-")}
    assert found == {*flags, "draft-attention-backend"}
    assert {name: value(made, f"--speculative-{name}") for name in flags} == flags
    hub = launch(arm(strategy), HUB)
    assert value(hub, "--speculative-draft-model-revision") == ("c" * 40 if strategy == "eagle" else "b" * 40)


def test_autoregressive_decoding_has_no_drafter() -> None:
    assert not [word for word in launch(arm("autoregressive")).argv if word.startswith("--speculative")]


def test_limits_of_a_tree_go_through_the_environment() -> None:
    made = launch(arm("ddtree", width=None, force_spine=True, min_log_prob=-4.0))
    assert value(made, "--speculative-eagle-topk") == "32"  # as many as nodes: no limit
    named = {name: text for name, text in made.environment.items() if name.startswith("DDTREE_") and text}
    assert named == {"DDTREE_DEPTH": "7", "DDTREE_MIN_LOG_PROB": "-4.0", "DDTREE_FORCE_SPINE": "1"}
    for strategy in ("autoregressive", "dflash", "eagle"):
        other = launch(arm(strategy)).environment
        assert not [name for name, text in other.items() if name.startswith("DDTREE_") and text]


def test_graphs_are_captured_for_what_will_run() -> None:
    assert graph_sizes((6,)) == [1, 2, 4, 6]
    eager = launch(arm("dflash", replace(GIVEN, cuda_graphs=False)))
    assert "--disable-decode-cuda-graph" in eager.argv
    assert "--cuda-graph-bs-decode" not in eager.argv


def test_an_arm_of_the_engines_own_choice() -> None:
    plain = arm("dflash")
    made = launch(replace(plain, flags={**plain.flags, **DEFAULT_ARM}))
    absent = ("attention-backend", "sampling-backend", "page-size", "min-free-slots-delay", "cuda-graph-bs-decode")
    assert not {f"--{name}" for name in (*absent, "disable-prefill-cuda-graph")} & set(made.argv)
    assert "--speculative-draft-attention-backend" not in made.argv
    assert value(made, "--max-total-tokens") == value(launch(plain), "--max-total-tokens")


def test_further_flags() -> None:
    given = replace(
        GIVEN,
        quantization="fp8",
        kv_cache_dtype="fp8_e4m3",
        tensor_parallel=2,
        prefix_cache=True,
        overlap=False,
        kv_tokens=5000,
        extra_args=("--x", "1"),
    )
    made = launch(arm("dflash", given), gpus="2,3")
    assert (value(made, "--quantization"), value(made, "--kv-cache-dtype")) == ("fp8", "fp8_e4m3")
    assert (value(made, "--tp-size"), value(made, "--max-total-tokens")) == ("2", "5000")
    assert made.argv[-2:] == ("--x", "1")
    assert "--disable-overlap-schedule" in made.argv
    assert "--disable-radix-cache" not in made.argv
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_models_of_the_hub_are_taken_at_their_revision() -> None:
    made = launch(arm("autoregressive"), HUB)
    assert value(made, "--revision") == HUB.target_revision
    assert "HF_HUB_OFFLINE" not in made.environment
    assert "--revision" not in launch(arm("autoregressive"), FOLDERS).argv
