"""Several jobs of one sweep through Hydra's launchers, for real: they share a run, and each cell is measured once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins

from ddbench import multirun
from ddbench.__main__ import conf_folder
from ddbench.multirun import Door
from experiments.turns import placed
from runners.hosts import HostConfig

FAULTS = Path(__file__).resolve().parents[1] / "faults"
sys.path.insert(0, str(FAULTS))

from sweeps import CELLS, RAW, cell_content, environment_of, wait_for  # noqa: E402

RAY = pytest.param("ray", marks=pytest.mark.ray)


def prompts(path: Path, count: int, prefix: str) -> Path:
    rows = [
        {"id": f"{prefix}{i}", "dataset": "made", "category": "a", "turns": [f"{prefix} {i} " * (i + 1)]}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def command(folder: Path, *overrides: str) -> list[str]:
    """Small sweeps on the stand-in engine of tests/faults, as jobs of a command of its own."""
    return [
        *(
            sys.executable,
            "-m",
            "ddbench",
            "--multirun",
            "experiment=smoke",
            "_target_=standin.run",
            "model=tiny_untrained",
        ),
        *("tracking=none", "report.build=false", "workload=file", "load.max_new_tokens=24", "faults.retry_wait_s=0"),
        f"workload.path={prompts(folder / 'prompts.jsonl', 4, 'p')}",
        f"workload.warmup_path={prompts(folder / 'warmup.jsonl', 1, 'w')}",
        f"output_dir={folder / 'out'}",
        *("sweep.strategy=[autoregressive,dflash]", "sweep.depth=[3]", "sweep.batch_size=[1,2,3]", *overrides),
    ]


def ddbench(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    line = command(folder, *overrides)
    return subprocess.run(
        line, cwd=folder, env=environment_of(), capture_output=True, text=True, timeout=240, check=False
    )


def said(folder: Path, done: subprocess.CompletedProcess[str]) -> str:
    """What the jobs printed, wherever their launcher puts it."""
    logs = sorted((folder / "out" / ".submitit").rglob("*.err")) if (folder / "out" / ".submitit").is_dir() else []
    return done.stderr + done.stdout + "".join(path.read_text() for path in logs)


def content(run: Path) -> dict[str, Any]:
    return {path.name: cell_content(path) for path in (run / "cells").iterdir()}


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", RAY])
def test_jobs_share_a_run_and_report_merges_it(tmp_path: Path, launcher: str) -> None:
    done = ddbench(tmp_path, f"launcher={launcher}", "worker=0,1", "run_id=jobs")
    told = said(tmp_path, done)
    assert done.returncode == 0, told
    run = tmp_path / "out" / "smoke" / "jobs"
    assert sum(": ok in" in line for line in told.splitlines()) == CELLS
    assert told.count(f"{CELLS} cells to measure") >= 1
    cells = content(run)
    assert len(cells) == CELLS
    assert {status for status, _ in cells.values()} == {"ok"}
    assert all(set(row) == set(RAW) for _, rows in cells.values() for row in rows)
    assert not list(run.glob("config-*.yaml"))
    assert not (run / ".claims").exists()
    if launcher == "submitit_local":
        return  # once is enough
    report = [sys.executable, "-m", "ddbench", "experiment=report", f"run={run}", "report.figures=false"]
    merged = subprocess.run(report, cwd=tmp_path, env=environment_of(), capture_output=True, text=True, check=False)
    assert merged.returncode == 0, merged.stderr
    assert json.loads(merged.stdout)["cells"]["ok"] == CELLS


@pytest.mark.parametrize("launcher", ["none", "joblib", "submitit_local"])
def test_ctrl_c_once_ends_every_job_after_its_cell(tmp_path: Path, launcher: str) -> None:
    """As a terminal sends it: to the whole process group. No job begins after it."""
    jobs = "0,1,2,3" if launcher == "joblib" else "0,1"  # of joblib two at a time
    line = command(tmp_path, f"launcher={launcher}", f"worker={jobs}", "run_id=jobs", "load.max_new_tokens=150")
    with (tmp_path / "told").open("w") as told:
        process = subprocess.Popen(
            line, cwd=tmp_path, env=environment_of(), stdout=told, stderr=told, start_new_session=True
        )
    run = tmp_path / "out" / "smoke" / "jobs"
    at_work = 1 if launcher == "none" else 2
    wait_for(lambda: len(list(run.glob(".running/*/*/"))) >= at_work and len(list(run.glob("cells/*/"))) >= 1, 120)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(120) == 130, (tmp_path / "told").read_text()
    text = (tmp_path / "told").read_text()
    texts = text + "".join(path.read_text() for path in (tmp_path / "out").glob(".submitit/*/*log.*"))
    assert texts.count("the running cell was finished; the same command with run_id=jobs does the rest") >= at_work
    assert "Traceback" not in text
    assert 1 <= len(content(run)) < CELLS
    assert not (run / ".claims").exists()
    assert not (run / ".running").exists()


def test_a_launcher_without_a_multirun_is_refused(tmp_path: Path) -> None:
    line = [word for word in command(tmp_path, "launcher=submitit_slurm") if word != "--multirun"]
    done = subprocess.run(line, cwd=tmp_path, env=environment_of(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: launcher='submitit_slurm': none, or --multirun with it")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("launcher", ["joblib", RAY])
def test_the_exit_status_of_a_job_comes_home(tmp_path: Path, launcher: str) -> None:
    done = ddbench(tmp_path, f"launcher={launcher}", "worker=0,1", "sweep.batch_size=[0]")
    assert done.returncode == 2, done.stderr
    assert "sweep.batch_size=0: an integer >= 1" in done.stderr + done.stdout
    assert not (tmp_path / "out" / "smoke").exists()


def test_two_commands_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    from ddbench.__main__ import new_run_id

    names = {new_run_id() for _ in range(50)}
    assert len(names) == 50
    assert len({name.rpartition("-")[0] for name in names}) <= 2


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "submitit_slurm"])
def test_the_configurations_are_what_the_launchers_take(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launcher is made from its file here, so that no key is one that it does not know."""
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", overrides=[f"launcher={launcher}"], return_hydra_config=True)
    with monkeypatch.context() as context:
        context.setattr(multirun, "BESIDE", ())
        Door().on_multirun_start(config)  # none of what stands there is taken for one
    HydraConfig.instance().set_config(config)
    made = Plugins.instance()._instantiate(config.hydra.launcher)
    assert type(made).__name__ in ("JoblibLauncher", "LocalLauncher", "SlurmLauncher")


def test_slurm_is_asked_for_what_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to sbatch, whose place a script takes that keeps what it is given and refuses it."""
    asked = tmp_path / "asked"
    for name, text in (("sbatch", f'for last; do :; done; cat "$last" > {asked}; exit 1'), ("srun", "exit 1")):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = ddbench(tmp_path, "launcher=submitit_slurm", "worker=range(3)")
    assert done.returncode != 0
    text = asked.read_text()
    for line in ("--gpus-per-node=1", "--time=720", "--mem=64GB", "--cpus-per-task=8", "--array=0-2%"):
        assert f"#SBATCH {line}" in text, text
    assert str(tmp_path / "out" / ".submitit") in text


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("+hydra.job.env_set.HF_TOKEN=planted4321", "hydra.job.env_set.HF_TOKEN"),
        ("hydra.launcher.setup=['export WANDB_API_KEY=planted9876']", "hydra.launcher.setup"),
    ],
)
def test_a_secret_is_not_left_to_what_hydra_writes(tmp_path: Path, override: str, key: str) -> None:
    """Its multirun.yaml holds the command line and its own section in clear."""
    done = ddbench(tmp_path, "launcher=submitit_slurm", "worker=0", override)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {key}='(not shown)': no secret")
    assert "planted" not in line
    assert not (tmp_path / "out").exists()


def test_workers_of_a_host_begin_with_gpus_of_their_own() -> None:
    host = HostConfig("local", "local", None, gpus=(4, 5, 6, 7))
    assert [placed(host, "cuda", worker, 1).gpus[0] for worker in range(5)] == [4, 5, 6, 7, 4]
    assert [placed(host, "cuda", worker, 2).gpus[:2] for worker in range(3)] == [(4, 5), (6, 7), (4, 5)]
    assert placed(host, "cuda:1", 2, 1) == host
    assert placed(HostConfig("local", "local", None), "cuda", 2, 1).gpus is None
