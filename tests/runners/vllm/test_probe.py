"""Real interpreters are asked; the answers of ones without vLLM are refusals of one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddbench.errors import ConfigError
from runners import probe_script
from runners.devices import gpus_of
from runners.environments import find_python
from runners.hosts import LocalHost
from runners.rows import request_seed
from runners.vllm.probe import Environment, check_plugin, probe
from runners.vllm.versions import capabilities, cpu_fault, parsed, too_old, untried


def fake_python(folder: Path, answer: str, code: int = 0) -> str:
    """A program that answers like an interpreter would."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def test_an_environment_without_vllm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine.python=.*an environment with vLLM"):
        probe(sys.executable, "cpu")


def test_what_is_no_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such program"):
        probe(str(tmp_path / "nowhere"), "cpu")
    with pytest.raises(ConfigError, match="a working Python interpreter"):
        probe(fake_python(tmp_path, "hello"), "cpu")
    with pytest.raises(ConfigError, match="a working Python interpreter"):
        probe(fake_python(tmp_path, "{}", code=3), "cpu")


def test_old_versions_are_refused(tmp_path: Path) -> None:
    answer = '{"python": "3.11", "version": "0.20.2", "torch": "2.11.0", "plugin": null}'
    with pytest.raises(ConfigError, match=r"vLLM 0.20.2 is older than 0.26"):
        probe(fake_python(tmp_path, answer), "cpu")


def test_without_an_environment_the_command_that_makes_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("runners.environments.ROOT", tmp_path)
    with pytest.raises(ConfigError, match=r"experiment=bootstrap engine=vllm engine\.device=cpu"):
        find_python(LocalHost(), "vllm", "cpu", None)
    made = tmp_path / ".venvs" / "vllm" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.touch()
    assert find_python(LocalHost(), "vllm", "cuda:1", None) == str(made)


def environment(plugin: object) -> Environment:
    return Environment("py", "0.32.0", {"torch": "2.13.0+cpu", "plugin": plugin, "per_request_metrics": None}, None)


def test_the_plug_in_must_be_this_one() -> None:
    import ddbench

    ours = probe_script.plugin_hash(Path(ddbench.__file__).parent)
    check_plugin(environment({"entry_point": True, "hash": ours}))
    with pytest.raises(ConfigError, match=r"another version of ddbench .* experiment=bootstrap engine=vllm"):
        check_plugin(environment({"entry_point": True, "hash": "0" * 16}))
    for plugin in (None, {"entry_point": False, "hash": ours}):
        with pytest.raises(ConfigError, match="no ddbench is installed there"):
            check_plugin(environment(plugin))


def test_the_hash_follows_what_runs_in_the_engine(tmp_path: Path) -> None:
    for name in ("errors.py", "plugins/vllm/a.py", "tree/b.py", "metrics.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    first = probe_script.plugin_hash(tmp_path)
    (tmp_path / "metrics.py").write_text("x = 2\n")
    assert probe_script.plugin_hash(tmp_path) == first
    (tmp_path / "tree" / "b.py").write_text("x = 2\n")
    assert probe_script.plugin_hash(tmp_path) != first
    assert probe_script.plugin_hash(tmp_path / "tree") is None


def test_versions() -> None:
    assert parsed("0.32.0+cpu") == (0, 32, 0)
    assert (too_old("0.26.0"), too_old("unknown")) == (None, None)
    assert [untried(version) for version in ("0.26.0", "0.32.1", "0.33.0+cu130")] == [None] * 3
    for version in ("0.26.1", "0.320.0", "0.34.0"):
        assert "has not been tried" in (untried(version) or "")
    assert not capabilities("0.26.0").per_request_metrics
    assert capabilities("0.33.0").per_request_metrics
    assert capabilities("0.30.0", {"per_request_metrics": True}).per_request_metrics
    told = [capabilities("0.32.0", facts).torchvision for facts in ({}, {"torchvision": None}, {"torchvision": "0.28"})]
    assert told == [None, False, True]
    assert probe_script.facts("vllm", False)["torchvision"] == probe_script.installed("torchvision")
    assert environment(None).described == "vllm 0.32.0 torch 2.13.0"
    assert cpu_fault("cuda", ["dflash"]) is None
    assert cpu_fault("cpu", ["eagle"]) is None
    assert "first layer" in (cpu_fault("cpu", ["ddtree"]) or "")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_of("cpu", 1) == ()
    assert gpus_of("cuda:2", 2) == (2, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5")
    assert gpus_of("cuda", 2) == (4, "GPU-5")
    assert gpus_of("cuda:1", 1) == ("GPU-5",)
    with pytest.raises(ConfigError, match=r"engine\.device='cuda:1'"):
        gpus_of("cuda:1", 2)


def test_every_prompt_has_a_seed_of_its_own() -> None:
    seeds = {request_seed(seed, prompt) for seed in range(3) for prompt in ("a", "b")}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)
