"""What a run of W&B that was cut off leaves behind: a folder whose record file has a head and no record."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

HEAD_BYTES = 7  # of a record file


def offline_runs(folder: Path, run_id: str) -> set[Path]:
    """Folders of offline runs of one id below a run folder."""
    return set((folder / "wandb").glob(f"offline-run-*-{run_id}"))


def drop_empty(folder: Path, run_id: str, before: set[Path]) -> None:
    """Removes the offline runs of ``run_id`` without a record, but for those that were there ``before``.

    What was recorded before the cut stays. So does a run that cannot be removed: nothing depends on it.
    """
    for run in offline_runs(folder, run_id) - before:
        if all(path.stat().st_size <= HEAD_BYTES for path in run.glob("run-*.wandb")):
            shutil.rmtree(run, ignore_errors=True)
    for link in (folder / "wandb").glob("*"):
        if link.is_symlink() and not link.exists():
            with suppress(OSError):
                link.unlink()
