"""Training of the tiny target and its two drafters: ``python -m ddbench experiment=train_tiny``."""

from __future__ import annotations

import logging
import sys
from typing import Any

from ddbench.errors import ConfigError
from experiments.train_tiny.config import STAGES, TrainConfig
from experiments.typed import build


def run(config: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Runs the stages that ``train_tiny.stages`` names and says where the models are.

    Raises:
        ConfigError: an unknown stage, a setting of another type, or a device that is not there.
    """
    settings = build(TrainConfig, config["train_tiny"], "train_tiny")
    for stage in settings.stages:
        if stage not in STAGES:
            raise ConfigError("train_tiny.stages", stage, f"of {', '.join(STAGES)}")
    _check_device(settings.device)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")

    from experiments.train_tiny.stages import Workshop  # torch and transformers take seconds to import

    Workshop(settings).run()
    return {"models": settings.output, "notes": settings.work, "stages": list(settings.stages), "run_id": run_id}


def _check_device(device: str) -> None:
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("train_tiny.device", device, "a device of this machine, which has no CUDA GPU; use cpu")
    if not device.startswith(("cuda", "cpu")):
        raise ConfigError("train_tiny.device", device, "cpu, cuda or cuda:<index>")
