"""Synthetic runs are made by the module that the tests of reports make theirs with."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))
