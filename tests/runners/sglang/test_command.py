from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sglang_arms import FOLDERS, GIVEN, HUB, SHAPES, arm, launch, value, values

from ddbench.plugins.sglang import options as plugin
from runners.base import EngineFailure
from runners.sglang import info
from runners.sglang.command import Machine, build, draft_of, graph_sizes
from runners.sglang.flags import DEFAULT_ARM
from runners.sglang.speculation import limits, may_be_smaller

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


def named_ours() -> set[str]:
    """Variables that the plug-in's own source names."""
    files = Path(plugin.__file__).parent.rglob("*.py")
    return {name for file in files for name in re.findall(r"\bDDTREE_[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("strategy", SHAPES)
def test_an_arm_has_nothing_from_the_environment_that_it_was_not_given(strategy: str) -> None:
    ours = named_ours()
    assert {"DDTREE_NODES", "DDTREE_DEPTH", "DDTREE_MIN_LOG_PROB"} <= ours
    theirs = {"SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD", "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER"}
    around = ("PATH", "DDTREE_NEW", "SGLANG_SIMULATE_NEW", "SGLANG_SPEC_NEW", "SGLANG_CACHE_DIR")
    machine = Machine("py", "bfloat16", 1, "0", inherited=around)
    given = build(arm(strategy), FOLDERS, machine, (1, 8)).environment
    expected = dict.fromkeys(ours | theirs | {"DDTREE_NEW", "SGLANG_SIMULATE_NEW", "SGLANG_SPEC_NEW"})
    if strategy == "ddtree":
        expected |= {"DDTREE_DEPTH": "7"}
    assert {name: given[name] for name in expected} == expected  # None: taken away
    assert not {"PATH", "SGLANG_CACHE_DIR"} & set(given)


def test_the_share_of_memory_is_the_configuration_s_or_the_machine_s() -> None:
    open_share = arm("dflash", replace(GIVEN, mem_fraction_static=None))
    machine = Machine("py", "bfloat16", 1, "0", share=0.93)
    for made, told in ((arm("dflash"), "0.85"), (open_share, "0.93")):
        assert value(build(made, FOLDERS, machine, (1, 8)), "--mem-fraction-static") == told
    assert value(launch(open_share), "--mem-fraction-static") == "0.85"


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
    own = {"DDTREE_DEPTH": "7", "DDTREE_MIN_LOG_PROB": "-4.0", "DDTREE_FORCE_SPINE": "1"}
    named = {name: text for name, text in made.environment.items() if name.startswith("DDTREE_")}
    assert named == {**dict.fromkeys(named_ours()), **own}
    for strategy in ("autoregressive", "dflash", "eagle"):
        other = launch(arm(strategy)).environment
        assert {name: other[name] for name in named} == dict.fromkeys(named)


@pytest.mark.parametrize(
    ("changes", "limits_asked", "smaller"),
    [
        ({}, {"nodes": 32, "width": 4, "depth": 7, "force_spine": False, "min_log_prob": None}, False),
        (
            {"width": None, "depth": None, "force_spine": True, "min_log_prob": -4.0},
            {"nodes": 32, "width": 32, "depth": 15, "force_spine": True, "min_log_prob": -4.0},
            True,
        ),
        ({"width": 2, "depth": 4}, {"width": 2, "depth": 4}, True),  # 2 + 4 + 8 + 16 = 30 < 32
        ({"width": 2, "depth": 4, "nodes": 30}, {"nodes": 30}, False),
        ({"width": 1, "nodes": 7}, {"width": 1}, False),
        ({"width": 1, "nodes": 8}, {"width": 1}, True),
    ],
)
def test_what_a_server_s_trees_must_be(changes: dict[str, Any], limits_asked: dict[str, Any], smaller: bool) -> None:
    draft = draft_of(arm("ddtree", **changes), FOLDERS)
    assert draft is not None
    asked = limits(draft)
    assert {name: asked[name] for name in limits_asked} == limits_asked
    assert may_be_smaller(draft) is smaller
    info.check_trees(asked, {"internal_states": [{"ddtree": {"verify_width": 33, **asked}}]})
    for name, other in (("nodes", 5), ("width", 3), ("depth", 2), ("force_spine", None), ("min_log_prob", -1.0)):
        with pytest.raises(EngineFailure, match=f"the trees' {name} is {other}, not "):
            info.check_trees(asked, {"internal_states": [{"ddtree": {**asked, name: other}}]})
    for silent in ({}, {"internal_states": []}, {"internal_states": [{}]}):
        with pytest.raises(EngineFailure, match="does not tell the limits of its trees"):
            info.check_trees(asked, silent)


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
