"""Workloads as the command line names them. Makes the helper module importable under any import mode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.errors import ConfigError
from experiments.settings import WorkloadSettings
from experiments.typed import build
from experiments.workloads import Workload, load_workload

sys.path.insert(0, str(Path(__file__).parent))
CONF = Path(__file__).resolve().parents[3] / "conf"


def workload_settings(*overrides: str) -> WorkloadSettings:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
    return build(WorkloadSettings, OmegaConf.to_container(config.workload, resolve=True), "workload")


@pytest.fixture
def loaded() -> Callable[..., Workload]:
    """A workload as the command line's overrides say."""
    return lambda *overrides: load_workload(workload_settings(*overrides))


@pytest.fixture
def refused() -> Callable[..., str]:
    """The one line with which a workload is refused."""

    def line(*overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load_workload(workload_settings(*overrides))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return line
