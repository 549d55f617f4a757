"""Memory before a start: what is predicted, what of it is not known, and what a server is started with."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import spec
from sglang_arms import FOLDERS, GIVEN, GPU, arm

import ddbench
from ddbench.plugins.sglang.memory import GIB, slack_bytes
from ddbench.plugins.sglang.state_memory import Recurrent, state_parts
from ddbench.records import Arm
from experiments.evidence.dummy_models import drafter_parameters, target_parameters, write_dummy_pair
from runners.base import EngineFailure, ModelFiles
from runners.hosts import LocalHost, agent
from runners.random_models import RandomPair
from runners.sglang.flags import DEFAULT_ARM
from runners.sglang.memory import MIB, Prediction, free_bytes, predict
from runners.sglang.parameters import target_weights
from runners.sglang.probe import Environment
from runners.sglang.serving import SglangServing

ASSETS = Path(ddbench.__file__).parent / "assets"
FILES = ModelFiles(str(ASSETS / "target"), dflash=str(ASSETS / "dflash"), block_size=16)
OPEN = replace(GIVEN, mem_fraction_static=None)


def predicted(made: Arm, files: ModelFiles = FILES) -> Prediction:
    found = predict(made, files, "bfloat16", (1, 2), "0.5.17")
    assert isinstance(found, Prediction), found
    return found


def test_memory_is_predicted_from_the_checkpoints() -> None:
    narrow, wide = (predicted(arm("ddtree", nodes=nodes)).gib() for nodes in (15, 63))
    assert narrow["weights"] == wide["weights"] == round(2 * (7_345_408 + 2_623_872) / 2**30, 4)
    assert narrow["total"] == pytest.approx(sum(size for name, size in narrow.items() if name != "total"), abs=1e-3)
    assert wide["logits"] == pytest.approx(4 * narrow["logits"], rel=0.05)
    assert predicted(arm("dflash")).gib()["kv_target"] == narrow["kv_target"]


def test_weights_without_files_are_counted_by_the_configuration(tmp_path: Path) -> None:
    """As many as the files of the same models have; and those of the dummy pair."""
    for name in ("target", "dflash"):
        (tmp_path / name).mkdir()
        shutil.copyfile(ASSETS / name / "config.json", tmp_path / name / "config.json")
    bare = ModelFiles(str(tmp_path / "target"), dflash=str(tmp_path / "dflash"), block_size=16)
    tree = arm("ddtree", nodes=15)
    assert predicted(tree, bare).gib() == predicted(tree).gib()
    write_dummy_pair(tmp_path)
    found = predicted(tree, bare)
    assert found.target.weight_bytes == 2 * target_parameters()
    assert found.drafter.weight_bytes == 2 * drafter_parameters()
    path = tmp_path / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "another"}))
    why = predict(tree, bare, "bfloat16", (1, 2), "0.5.17")
    assert why == "ValueError: there are no weight files, and how many weights model type another has is not known"


def test_biases_and_shared_tables_are_counted() -> None:
    plain = json.loads((ASSETS / "target" / "config.json").read_text())
    hidden, heads, kv_heads, head, layers = 256, 4, 2, 64, 8
    apart = target_weights(plain | {"tie_word_embeddings": False}) - target_weights(plain)
    assert apart == 4096 * hidden
    keys = (heads + 2 * kv_heads) * head
    assert target_weights(plain | {"attention_bias": True}) - target_weights(plain) == layers * (keys + hidden)
    assert target_weights(plain | {"model_type": "llama"}) - target_weights(plain) == -layers * 2 * head
    assert target_weights(plain | {"model_type": "qwen2"}) - target_weights(plain) == layers * (keys - 2 * head)


def test_a_hybrid_s_states_are_predicted_too(tmp_path: Path) -> None:
    hybrid = ASSETS / "hybrid"
    text = json.loads((hybrid / "target" / "config.json").read_text())
    seeing = tmp_path / "target"
    shutil.copytree(hybrid / "target", seeing)
    (seeing / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    for target in (hybrid / "target", seeing):
        files = ModelFiles(str(target), dflash=str(hybrid / "dflash"), block_size=16)
        found = predicted(arm("ddtree", nodes=15), files)
        assert (found.target.layers, found.setup.sizes.verify_width) == (2, 16)
        requests = found.setup.requests
        expected = state_parts(Recurrent(4, 2, 4, 64, 64, 4), requests, requests, found.setup.sizes)
        gib = found.gib()
        assert {name: gib[name] for name in expected} == {name: round(v / GIB, 4) for name, v in expected.items()}
    halved = replace(GIVEN, extra_args=("--mamba-ssm-dtype", "bfloat16"))
    assert predicted(arm("ddtree", halved, nodes=15), files).target.recurrent == Recurrent(
        4, 2, 4, 64, 64, 4, element=2
    )


@pytest.mark.parametrize(
    ("made", "files", "version", "why"),
    [
        (arm("eagle"), FILES, "0.5.17", "eagle has no DFlash drafter"),
        (arm("autoregressive"), FILES, "0.5.17", "autoregressive has no DFlash drafter"),
        (arm("ddtree"), FOLDERS, "0.5.17", "a model is no folder of this machine"),
        (arm("ddtree"), replace(FILES, dflash=None), "0.5.17", "no DFlash drafter is named"),
        (arm("ddtree"), FILES, "0.5.20", "SGLang 0.5.20 is not known"),
        (arm("ddtree", replace(GIVEN, quantization="fp8")), FILES, "0.5.17", "weights are quantized"),
        (arm("ddtree", replace(GIVEN, kv_cache_dtype="fp8_e4m3")), FILES, "0.5.17", "the key-value cache is quantized"),
        (arm("dflash", replace(GIVEN, attention_backend="trtllm_mha")), FILES, "0.5.17", "attention trtllm_mha"),
        (arm("dflash", replace(GIVEN, tensor_parallel=2)), FILES, "0.5.17", "tensor parallelism"),
        (arm("dflash", replace(GIVEN, cuda_graphs=False)), FILES, "0.5.17", "CUDA graphs are off"),
        (arm("dflash", replace(GIVEN, page_size=16)), FILES, "0.5.17", "pages of more than one token"),
        (arm("dflash", depth=31), replace(FILES, block_size=32), "0.5.17", "speculative_dflash_block_size=32"),
    ],
)
def test_what_is_not_known_has_a_reason_and_ends_nothing(made: Arm, files: ModelFiles, version: str, why: str) -> None:
    found = predict(made, files, "bfloat16", (1, 2), version)
    assert isinstance(found, str)
    assert found.startswith(why)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"text_config": {"hidden_size": 4}, "num_attention_heads": None}, "a config.json has no num_attention_heads"),
        ({"num_experts": 8}, "a model is not dense with multi-head attention (num_experts)"),
        ({"head_dim": "many"}, "ValueError: "),
        ({"hidden_size": None, "head_dim": None}, "a config.json has no hidden_size"),
    ],
)
def test_checkpoints_that_the_formulas_do_not_have(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    shutil.copytree(ASSETS / "target", tmp_path / "target")
    path = tmp_path / "target" / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    found = predict(arm("ddtree"), replace(FILES, target=str(tmp_path / "target")), "bfloat16", (1, 2), "0.5.17")
    assert isinstance(found, str)
    assert found.startswith(why), found


def test_a_broken_checkpoint_ends_nothing(tmp_path: Path) -> None:
    shutil.copytree(ASSETS / "target", tmp_path / "target")
    (tmp_path / "target" / "more.safetensors").write_bytes(b"none")
    found = predict(arm("ddtree"), replace(FILES, target=str(tmp_path / "target")), "bfloat16", (1, 2), "0.5.17")
    assert isinstance(found, str)
    assert found.startswith("OSError: more.safetensors")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an ``nvidia-smi`` on the path that tells of so many free MiB of each GPU, None for what it cannot read."""

    def told(*free: int | None) -> None:
        rows = []
        for index, each in enumerate(free):
            known = {"index": index, "memory_total_mib": 100_000, "uuid": f"GPU-{index}"}
            known["memory_used_mib"] = "[N/A]" if each is None else 100_000 - each
            rows.append(", ".join(str(known.get(name, "x")) for name in (*agent.NUMBERS, *agent.TEXTS)))
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(rows) + "\nEND\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return told


def test_free_memory_is_that_of_the_fullest_gpu(gpus: Any) -> None:
    gpus(5000, 7000, None)
    assert free_bytes(LocalHost(), (0, 1)) == 5000 * MIB
    assert free_bytes(LocalHost(), ("GPU-1",)) == 7000 * MIB
    assert free_bytes(LocalHost(), (1, 2)) is None
    assert free_bytes(LocalHost(), ("MIG-1",)) is None
    assert free_bytes(LocalHost(), ()) is None


def command_of(made: Arm, folder: Path) -> tuple[SglangServing, str]:
    """What starts an arm on GPU 0, and the share of its memory that it is told."""
    pair = RandomPair(ASSETS / "target", ASSETS / "dflash", ASSETS / "dflash")
    given = replace(spec(None, pair), device="cuda:0", dtype="bfloat16")
    environment = Environment("py", "0.5.17", {"torch": "2.11.0"}, ("GPU",))
    serving = SglangServing(given, environment, FILES, folder)
    argv = serving.command(made).argv
    return serving, argv[argv.index("--mem-fraction-static") + 1]


def test_a_server_is_told_the_share_that_leaves_room_for_its_buffers(gpus: Any, tmp_path: Path) -> None:
    gpus(20_480)
    made = arm("ddtree", OPEN)
    found = predicted(made)
    slack = slack_bytes(found.setup, found.target, found.drafter)
    serving, share = command_of(made, tmp_path)
    assert (1 - float(share)) * 20 * GIB == pytest.approx(slack, rel=0.02)
    assert serving._memory == {
        "memory_predicted_gib": found.gib(),
        "memory_unknown": None,
        "memory_free_gib": 20.0,
    }
    assert command_of(arm("ddtree"), tmp_path)[1] == "0.85"  # the configuration's own word
    for unknown in (arm("autoregressive", OPEN), replace(made, flags={**made.flags, **DEFAULT_ARM})):
        serving, share = command_of(unknown, tmp_path)
        assert share == "0.85"
        assert serving._memory["memory_unknown"]
    gpus(None)
    assert command_of(made, tmp_path)[1] == "0.85"


def test_a_width_that_cannot_fit_is_refused_before_a_start_and_the_widest_is_named(gpus: Any, tmp_path: Path) -> None:
    made = arm("ddtree", OPEN, replace(GPU, batch_size=2), nodes=63)
    found = predicted(made)
    with pytest.raises(EngineFailure) as failure:
        found.fitted(1)
    assert "fewer requests, a shorter context" in str(failure.value)
    need = next(mib for mib in range(2048, 20_000) if _fits(found, mib * MIB))
    gpus(need - 1)
    with pytest.raises(EngineFailure, match=r"speculative_num_draft_tokens=64: .* at most 6\d ") as failure:
        command_of(made, tmp_path)
    assert failure.value.kind == "hopeless"
    gpus(need)
    command_of(made, tmp_path)
    gpus(need - 1)
    command_of(replace(made, flags={**made.flags, "mem_fraction_static": 0.85}), tmp_path)  # told to try


def _fits(found: Prediction, free: int) -> bool:
    try:
        found.fitted(free)
    except EngineFailure:
        return False
    return True
