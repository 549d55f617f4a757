"""One W&B run, from its start to its end, with all switched off that would work beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reports.tracking.settings import WandbSettings

# No sampling of the machine in the background, no look at packages, code or git: environment.json has all that.
QUIET = {
    "silent": True,
    "console": "off",
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}

CLOSED = b"stream: all finished"
SETTLE_S = 0.5


@contextmanager
def wandb_run(
    settings: WandbSettings,
    folder: Path,
    *,
    run_id: str,
    job_type: str,
    name: str,
    config: dict[str, Any],
    exit_code: int = 0,
) -> Iterator[Any]:
    """A run of the group of the run folder ``folder``, finished with ``exit_code``, or 1 where its body raised.

    Raises:
        OSError: the folder ``wandb`` of the run folder cannot be made.
        Exception: whatever W&B raises.
    """
    import wandb

    (folder / "wandb").mkdir(exist_ok=True)  # W&B itself would go to a temporary folder without a word
    run = wandb.init(
        project=settings.project,
        entity=settings.entity,
        mode=settings.mode,  # type: ignore[arg-type]
        tags=list(settings.tags),
        dir=str(folder),
        id=run_id,
        name=name,
        group=folder.name,
        job_type=job_type,
        resume="allow",
        config=config,
        settings=wandb.Settings(**{key: value for key, value in QUIET.items() if key in wandb.Settings.model_fields}),
    )
    code = 1
    try:
        yield run
        code = exit_code
    finally:
        internal = Path(run.settings.log_internal)
        run.finish(exit_code=code)
        _settle(internal)


def _settle(internal: Path) -> None:
    """Waits until the process behind W&B has closed the run's files, which takes it some milliseconds after ``finish``.

    It says so at the end of its log; where another version says it in other words, the wait ends by itself.
    """
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        with suppress(OSError):
            if CLOSED in internal.read_bytes()[-500:]:
                return
        time.sleep(0.001)


def add_files(artifact: Any, folder: Path, files: Iterable[Path]) -> None:
    """Adds the files that are there, named by their place in ``folder``, without a second copy of them on this disk."""
    for path in files:
        if path.is_file():
            artifact.add_file(str(path), name=path.relative_to(folder).as_posix(), policy="immutable", skip_cache=True)
