"""Real runs of the command line, on random models that are made on the spot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.__main__ import conf_folder
from experiments import sweep

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """A process that ended: exit status, and both streams."""

    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.out.strip().splitlines()[-1])
        return data

    @property
    def errors(self) -> list[str]:
        return self.err.strip().splitlines()


@dataclass(frozen=True)
class CommandLine:
    """``python -m ddbench`` with the arguments of a small sweep on random models."""

    folder: Path

    @property
    def arguments(self) -> list[str]:
        return [
            "experiment=smoke",
            "model=tiny_untrained",
            "tracking=none",
            "report.figures=false",
            "engine.threads=1",
            "workload=file",
            f"workload.path={self.folder / 'prompts.jsonl'}",
            f"workload.warmup_path={self.folder / 'warmup.jsonl'}",
            f"output_dir={self.folder / 'out'}",
            "load.max_new_tokens=6",
            "load.warmup_tokens=2",
            "workload.max_prompts=4",
        ]

    def composed(self, *kept: str) -> Callable[..., dict[str, Any]]:
        """Composes a verb's configuration from the arguments that begin with one of ``kept``, and overrides."""
        own = [argument for argument in self.arguments if argument.startswith(kept)]

        def compose_verb(verb: str, *overrides: str) -> dict[str, Any]:
            with initialize_config_dir(str(conf_folder()), version_base="1.3"):
                config = compose("config", overrides=[f"experiment={verb}", *own, *overrides])
            plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
            return plain

        return compose_verb

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ddbench", *self.arguments, *overrides]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *overrides: str) -> Ended:
        process = self.start(*overrides)
        out, err = process.communicate(timeout=300)
        return Ended(process.returncode, out, err)

    def here(self, run_id: str, *overrides: str) -> dict[str, Any]:
        """The same in this process, which spares the start of another; its summary, or what it raises."""
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            config = compose("config", overrides=[*self.arguments, *overrides])
        plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name, value in self.environment.items():
                patch.setenv(name, value)
            return sweep.run(plain, run_id)

    def bare(self, *arguments: str) -> Ended:
        """Only the arguments given."""
        command = [sys.executable, "-m", "ddbench", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def path(self, run_id: str) -> Path:
        return self.folder / "out" / "smoke" / run_id


def write_prompts(path: Path, texts: list[str], prefix: str = "p") -> Path:
    records = [
        {"id": f"{prefix}{i}", "dataset": "made", "category": "ab"[i % 2], "turns": [text], "meta": {}}
        for i, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def make_command_line(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], CommandLine]:
    def make() -> CommandLine:
        folder = tmp_path_factory.mktemp("cli")
        write_prompts(folder / "prompts.jsonl", [f"def f{i}(x):\n    return x * {i}" + ", y" * i for i in range(6)])
        write_prompts(folder / "warmup.jsonl", ["class Warm:\n    pass"], "w")
        return CommandLine(folder)

    return make


@pytest.fixture(scope="module")
def ddbench(make_command_line: Callable[[], CommandLine]) -> CommandLine:
    return make_command_line()
