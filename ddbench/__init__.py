"""ddbench: which speculative decoding strategy is fastest on my model, my prompts and my GPU, and how sure are we?

Importing the package is light: neither torch nor pandas is loaded before something asks for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.load import RunFrames

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(run: str | Path) -> RunFrames:
    """The frames of a run (pandas): what was stored and what follows from it, see :class:`reports.load.RunFrames`.

    ``results``, ``requests``, ``rounds``, ``cells``, ``telemetry``, ``categories``, ``acceptance_variants``,
    ``selection``, ``drift`` and ``ledger``. ``run`` is the folder ``outputs/<experiment>/<run_id>``. All are derived
    afresh from the cells, so that they are right even where a run was broken off before its report. Raises
    FileNotFoundError where there is no such folder. ``docs/pandas.md`` shows how they are used.
    """
    from reports import load_run

    return load_run(Path(run))
