"""``experiment=doctor``: everything that a sweep needs, looked at before one is started."""

from __future__ import annotations

from experiments.doctor.run import run

__all__ = ["run"]
