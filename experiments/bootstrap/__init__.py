"""``experiment=bootstrap``: makes the environment that an engine runs in, on a host, and does so once."""

from __future__ import annotations

from experiments.bootstrap.run import run

__all__ = ["run"]
