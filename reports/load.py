"""What ``ddbench.load`` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from reports.aggregate import Analysis, analyse
from reports.frames import read_run


@dataclass(frozen=True)
class RunFrames:
    """The frames of a run, all with nullable dtypes; one is empty where the run has nothing of it.

    ``results`` has one row a point, ``cells`` one a cell; ``requests``, ``rounds`` and ``telemetry`` are the stored
    rows. The rest is derived: ``drift`` and ``ledger`` with the results, the properties when they are first asked for.
    """

    results: pd.DataFrame
    requests: pd.DataFrame
    rounds: pd.DataFrame
    cells: pd.DataFrame
    telemetry: pd.DataFrame
    drift: pd.DataFrame
    ledger: pd.DataFrame
    analysis: Analysis = field(repr=False)

    @property
    def categories(self) -> pd.DataFrame:
        """One row a point and category of prompts."""
        return self.analysis.categories

    @property
    def acceptance_variants(self) -> pd.DataFrame:
        """One row a point: its acceptance length as each tool defines it."""
        return self.analysis.acceptance_variants

    @property
    def selection(self) -> pd.DataFrame:
        """One row a scenario, batch size and strategy: the shape chosen on half of the prompts; the hindsight-best."""
        return self.analysis.selection


def load_run(run: Path) -> RunFrames:
    """The frames of a run; see :func:`ddbench.load`.

    Raises:
        FileNotFoundError: the folder is no run.
    """
    if not (run / "cells").is_dir():
        raise FileNotFoundError(f"{run}: no such run folder; one has cells/ in it")
    stored = read_run(run)
    analysis = analyse(stored)
    return RunFrames(
        results=analysis.frame,
        requests=stored.requests,
        rounds=stored.rounds,
        cells=stored.cells,
        telemetry=stored.telemetry,
        drift=analysis.drift,
        ledger=analysis.ledger,
        analysis=analysis,
    )
