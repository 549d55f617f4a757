"""The doctor finds each planted problem. Real interpreters, ports, disks and a real sshd; the GPU is a stand-in program
in the place of nvidia-smi."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.__main__ import conf_folder
from experiments.doctor import run
from experiments.doctor.findings import Finding
from experiments.doctor.host_script import weights_in
from experiments.doctor.machine import clock_finding
from experiments.doctor.models import told_finding
from experiments.settings import DrafterSettings
from runners.environments import our_hash
from tests.runners.hosts.ssh_servers import SshServer

SMI = """#!{python}
import sys
CARD = {card!r}
query = next((word for word in sys.argv if word.startswith("--query-gpu=")), None)
if query:
    print(", ".join(CARD.get(name, "[N/A]") for name in query.partition("=")[2].split(",")))
elif any(word.startswith("--query-compute-apps=") for word in sys.argv):
    print("GPU-1, 4242, 512, /usr/bin/neighbour")
"""
MAX_Q = {
    "index": "0",
    "name": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "uuid": "GPU-1",
    "memory.total": "97887",
    "memory.used": "90000",
    "power.limit": "300.00",
    "clocks.max.mem": "14001",
    "driver_version": "580.1",
}
INTERPRETER = """#!/bin/sh
case "$1" in *probe_script.py) echo '{facts}'; exit 0;; esac
exec {python} "$@"
"""


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs it on the tiny random pair; returns the summary with the printed lines."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)

    def look(*overrides: str) -> Any:
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            config = compose("config", ["experiment=doctor", "model=tiny_untrained", "sweep.depth=[7]", *overrides])
        summary = run(OmegaConf.to_container(config, resolve=True), "id")
        return summary | {"lines": capsys.readouterr().out.splitlines()}

    return look


def found(summary: Any, state: str, what: str) -> str:
    """What is said and what is to be done, of the one finding of that state and name."""
    (one,) = [each for each in summary["findings"] if (each["state"], each["what"]) == (state, what)]
    assert any(line.startswith(f"{state} ") and f" {what} " in line for line in summary["lines"])
    assert state == "note" or "could not start" in summary["error"]
    return f"{one['said']}; {one['todo']}"


def interpreter(folder: Path, **changes: Any) -> Path:
    """An interpreter whose environment says that it has a vLLM."""
    plugin = {"entry_point": True, "hash": our_hash()}
    facts = {"python": "3.11.0", "dist": "vllm", "version": "0.32.0", "torch": "2.13.0", "plugin": plugin, **changes}
    path = folder / "python"
    path.write_text(INTERPRETER.format(facts=json.dumps(facts), python=sys.executable))
    path.chmod(0o755)
    return path


def on_vllm(python: Path | str) -> list[str]:
    return ["engine=vllm", "engine.device=cpu", "engine.dtype=float32", f"engine.python={python}"]


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Max-Q, nearly full, with a neighbour."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI.format(python=sys.executable, card=MAX_Q))
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_nothing_is_wrong_with_the_reference_engine(doctor: Any) -> None:
    summary = doctor()
    assert "error" not in summary
    assert (summary["checks"]["missing"], summary["checks"]["wrong"]) == (0, 0)
    for what in ("workload", "output", "strategy ddtree", "host", "python", "gpu", "port", "model target", "disk"):
        assert any(line.startswith("ok ") and f" {what} " in line for line in summary["lines"]), what


def test_a_missing_drafter(doctor: Any, tmp_path: Path) -> None:
    summary = doctor("model=tiny", "model.dflash.source=/nowhere/drafter")
    assert "/nowhere/drafter" in found(summary, "missing", "model dflash")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    summary = doctor("model=tiny", f"model.dflash.source={tmp_path / 'empty'}")
    assert "a checkpoint with safetensors" in found(summary, "missing", "model dflash")


def test_a_strategy_without_a_drafter_is_a_note_while_another_one_can_run(doctor: Any) -> None:
    """As in the sweep, which has unsupported cells then, and starts."""
    summary = doctor("model=tiny_hybrid")
    assert "error" not in summary
    assert "unsupported: model tiny_hybrid has no eagle drafter" in found(summary, "note", "strategy eagle")
    summary = doctor("model=tiny_hybrid", "sweep.strategy=[eagle]")
    assert "nothing of what is asked for can be run" in found(summary, "missing", "strategies")


def test_a_hybrid_on_a_vllm_without_torchvision(doctor: Any, tmp_path: Path) -> None:
    """The stock arms need it, trees are refused whatever is there, and what was not asked for is not known to lack."""
    for name, facts in (("without", {"torchvision": None}), ("with", {"torchvision": "0.28.0"}), ("untold", {})):
        (tmp_path / name).mkdir()
        asked = on_vllm(interpreter(tmp_path / name, **facts))
        summary = doctor("model=tiny_hybrid", *asked)
        lines = {line.split()[2]: line for line in summary["lines"] if " strategy " in line}
        assert "siblings of a tree would share" in lines["ddtree"]
        for strategy in ("autoregressive", "dflash"):
            lacks = "note     strategy" in lines[strategy] and "needs torchvision in engine.python's" in lines[strategy]
            assert lacks is (name == "without"), lines
        assert ("error" in summary) is (name == "without")
        assert "error" not in doctor("model=tiny", *asked)


def test_a_model_that_is_neither_here_nor_to_be_had(doctor: Any) -> None:
    said = found(doctor("model=qwen3_8b"), "missing", "model target")
    assert "Qwen/Qwen3-8B at b968826d9c46dd6066d109eabc6255188de91218: not on this machine" in said
    assert "`hf download Qwen/Qwen3-8B --revision b968826d9c46dd6066d109eabc6255188de91218`" in said


def test_a_plug_in_of_another_checkout(doctor: Any, tmp_path: Path) -> None:
    assert "error" not in doctor(*on_vllm(interpreter(tmp_path)))
    other = {"entry_point": True, "hash": "0" * 16}
    said = found(doctor(*on_vllm(interpreter(tmp_path, plugin=other))), "wrong", "plug-in")
    assert "plug-in 0000000000000000" in said
    assert "experiment=bootstrap engine=vllm engine.device=cpu" in said
    assert "bootstrap.install_plugin=true" in said
    assert "no ddbench" in found(doctor(*on_vllm(interpreter(tmp_path, plugin=None))), "missing", "plug-in")


def test_an_environment_without_the_engine(doctor: Any) -> None:
    assert "has no vLLM; `python -m ddbench experiment=bootstrap" in found(
        doctor(*on_vllm(sys.executable)), "missing", "engine"
    )
    assert "there is no such program" in found(doctor(*on_vllm("/nowhere/python")), "missing", "python")


def test_a_full_disk(doctor: Any) -> None:
    summary = doctor("doctor.free_disk_gib=1e9")
    lines = [each["said"] for each in summary["findings"] if (each["state"], each["what"]) == ("wrong", "disk")]
    assert any("1000000000.0 needed" in line and "outputs" in line for line in lines)


def test_states_of_a_hybrid_are_counted_or_said_not_to_be(doctor: Any) -> None:
    asked = ["model=tiny_hybrid", "sweep.strategy=[autoregressive,dflash,ddtree]", "sweep.nodes=[64]"]
    (line,) = [line for line in doctor(*asked)["lines"] if " recurrent states " in line]
    assert line.startswith("ok ")
    assert re.search(r"0\.\d\d GiB for 8 requests, 65 tokens of each in a verify pass$", line)
    (said,) = [each for each in doctor(*asked, "model.target.delta_nets=null")["findings"] if each["state"] == "note"]
    assert (said["what"], said["said"]) == ("recurrent states", "not counted")
    assert "model.target.delta_nets" in said["todo"]
    assert not any(" recurrent states " in line for line in doctor()["lines"])


def test_shapes_that_the_engine_refuses_take_no_states(doctor: Any, tmp_path: Path) -> None:
    """Its plug-in verifies 128 tokens a sequence; 513 of a real hybrid's would be hundreds of GiB."""
    asked = [
        "engine=sglang",
        "model=tiny_hybrid",
        "sweep.strategy=[ddtree]",
        "sweep.depth=[null]",
        "sweep.width=[null]",
    ]
    asked += ["engine.device=cuda:7", "sweep.batch_size=[8]"]
    for python in (interpreter(tmp_path, dist="sglang", version="0.5.23"), "/nowhere/python"):
        for nodes, tokens in (("[15,512]", 16), ("[15,64]", 65)):
            summary = doctor(*asked, f"sweep.nodes={nodes}", f"engine.python={python}")
            (line,) = [line for line in summary["lines"] if " recurrent states " in line]
            assert line.endswith(f"GiB for 8 requests, {tokens} tokens of each in a verify pass")


def test_a_checkout_that_is_not_there_is_said_without_an_engine(doctor: Any, tmp_path: Path) -> None:
    for python in ("/nowhere/python", interpreter(tmp_path, dist="sglang", version="0.5.17")):
        asked = ("engine=sglang", "engine.device=cuda:7", f"engine.python={python}")
        said = found(doctor(*asked, "engine.checkout=/nonexistent"), "missing", "checkout")
        assert "engine.checkout='/nonexistent': a folder of SGLang sources" in said
    checkout = tmp_path / "checkout" / "python" / "sglang"
    checkout.mkdir(parents=True)
    (checkout / "launch_server.py").touch()
    (line,) = [
        line for line in doctor(*asked, f"engine.checkout={tmp_path / 'checkout'}")["lines"] if " checkout " in line
    ]
    assert line.startswith("ok ")
    assert line.endswith("licence file: none")


def test_a_target_that_this_sglang_has_in_another_form_alone(doctor: Any, tmp_path: Path) -> None:
    for version, refused in (("0.5.17", True), ("0.5.23", False)):
        place = tmp_path / version
        place.mkdir()
        python = interpreter(place, dist="sglang", version=version)
        summary = doctor("engine=sglang", "model=tiny_hybrid", f"engine.python={python}", "engine.device=cuda:7")
        said = [each for each in summary["findings"] if each["what"] == "strategies"]
        assert bool(said) is refused, version
        assert not refused or "SGLang 0.5.17 has no Qwen3_5ForCausalLM" in said[0]["todo"]


def test_a_port_that_is_taken(doctor: Any) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        said = found(doctor(f"engine.port={holder.getsockname()[1]}", *on_vllm(sys.executable)), "wrong", "port")
    assert "it is taken" in said


def test_an_unreachable_host(doctor: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    summary = doctor("host=pro6000", "host.address=127.0.0.1", f"host.port={port}", "engine=vllm")
    assert "cannot be reached" in found(summary, "wrong", "host")
    assert "nothing else on it was looked at" in found(summary, "note", "host")


@pytest.mark.usefixtures("card")
def test_a_card_that_is_not_as_configured(doctor: Any, tmp_path: Path) -> None:
    asked = [*on_vllm(interpreter(tmp_path, gpus=["GPU"])), "engine.device=cuda"]
    summary = doctor(*asked, "host.sku=Workstation", "host.power_limit_w=600", "host.memory_clock_mhz=13365")
    wrong = [each["said"] for each in summary["findings"] if (each["state"], each["what"]) == ("wrong", "gpu")]
    assert len(wrong) == 3
    for word in ("Max-Q edition", "limited to 300 W", "memory clock of 14001 MHz"):
        assert any(word in each for each in wrong), word
    assert "7.7 of 95.6 GiB free, the engine wants 90%" in found(summary, "wrong", "gpu 0 memory")
    assert "process 4242" in found(summary, "note", "gpu")
    good = doctor(*asked, "host.sku=Max-Q", "engine.flags.gpu_memory_utilization=0.05")
    assert "error" not in good
    absent = doctor(*asked[:-1], "engine.device=cuda:1")
    assert "GPUs that are not there" in found(absent, "missing", "gpu")


def test_no_gpu_where_one_is_asked_for(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "nvidia-smi shows none" in found(doctor("engine.device=cuda"), "missing", "gpu")


def test_a_workload_that_is_not_there(doctor: Any) -> None:
    assert "nothing.jsonl" in found(doctor("workload.path=nothing.jsonl"), "wrong", "workload")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    with SshServer(tmp_path / "ssh") as server:
        yield server


def test_over_ssh(doctor: Any, server: SshServer, tmp_path: Path) -> None:
    """What a real sshd's user sees: a host that is ready, then one whose key is another's."""
    there = [*server.overrides(), "host.gpu_name=null", "host.sku=null", "host.power_limit_w=null"]
    there += ["host.pythons={}", *on_vllm(interpreter(tmp_path)), "model=tiny"]
    summary = doctor(*there)
    said = "\n".join(summary["lines"])
    for what in ("host", "clock", "port", "disk", "model target"):
        assert f"ok       {what} " in said, said
    assert "through a tunnel" in said
    assert "sent to the host" in said
    assert "has no vLLM" in found(summary, "missing", "engine")  # on a host the probe comes by standard input
    (server.folder / "known_hosts").write_text("")
    assert "its key is not there" in found(doctor(*there), "wrong", "host")


def test_one_cause_is_one_finding(doctor: Any, server: SshServer, tmp_path: Path) -> None:
    """Without a Python for our scripts, and with no place for them: the rest is looked at all the same."""
    there = [*server.overrides(), "host.gpu_name=null", "host.sku=null", "host.power_limit_w=null", "model=tiny"]
    python = f"host.pythons.reference={sys.executable}"
    (tmp_path / "file").touch()
    for bad, what in (("host.python=/nope", "host python"), (f"host.workdir={tmp_path}/file/x", "workdir")):
        summary = doctor(*there, python, bad)
        assert bad.partition("=")[0] in found(summary, "wrong", what)
        assert summary["checks"]["wrong"] + summary["checks"]["missing"] == 1
        assert "not looked at" in found(summary, "note", "gpu and port")
        said = "\n".join(summary["lines"])
        for seen in ("python", "strategy ddtree", "clock", "model target", "disk"):
            assert f"ok       {seen} " in said, said
    said = "\n".join(doctor(*there, "host.python=/nope", "host.pythons.reference=/nope")["lines"])
    assert "ok       disk " in said, said  # by df


def test_clocks_revisions_and_files(tmp_path: Path) -> None:
    assert clock_finding(100.0, 99.0, 5.0) == Finding("ok", "clock", "1.0 s ahead of ours")
    assert clock_finding(0.0, 99.0, 5.0).state == "wrong"
    part = DrafterSettings("a/b", "abcdef1", "l", 1, 1)
    here = {"state": "cached", "revision": "abcdef1234"}
    assert told_finding("dflash", part, here, "x").state == "ok"
    assert told_finding("dflash", part, {**here, "revision": "1234567"}, "x").state == "wrong"
    assert told_finding("dflash", DrafterSettings("a/b", None, "l", 1, 1), here, "x").state == "note"
    assert "3.0 GiB" in told_finding("dflash", part, {**here, "state": "hub", "gib": 3.0}, "x").said
    assert told_finding("dflash", part, {"state": "unknown", "why": "w"}, "x").state == "note"
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    assert not weights_in(tmp_path)  # half of a download
    (tmp_path / "model-2.safetensors").touch()
    assert weights_in(tmp_path)
