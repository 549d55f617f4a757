"""What ``conf/tracking`` may say of Weights & Biases."""

from __future__ import annotations

from dataclasses import dataclass

from ddbench.errors import ConfigError

MODES = ("offline", "online", "disabled")


@dataclass(frozen=True)
class WandbSettings:
    """``mode`` is offline (files below the run folder, no key, no network), online or disabled.

    ``cells``: one W&B run a cell, logged as the cell ends; False: the report alone. ``timeout_s``: longest wait for one
    cell to be logged, after which W&B is given up for the rest of the sweep.
    """

    mode: str = "offline"
    project: str = "ddbench"
    entity: str | None = None
    tags: tuple[str, ...] = ()
    cells: bool = True
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError("tracking.mode", self.mode, f"one of {', '.join(MODES)}")
        if not self.timeout_s > 0:
            raise ConfigError("tracking.timeout_s", self.timeout_s, "seconds > 0")
