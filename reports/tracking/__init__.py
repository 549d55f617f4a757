"""Weights & Biases: a copy of a run for those who want it, never the only one, never a reason to fail."""

from __future__ import annotations

from reports.tracking.recorder import Recorder, log_report
from reports.tracking.settings import WandbSettings

__all__ = ["Recorder", "WandbSettings", "log_report"]
