"""Can a file be written there? Asked at the door, before anything is measured for it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ddbench.errors import ConfigError


def probe(path: Path) -> None:
    """Makes a file there, and the folders that lack, and removes them again: leaves no trace. Raises OSError."""
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.unlink()
    finally:
        for folder in made:
            with suppress(OSError):  # not made, or another process already uses it
                folder.rmdir()


def unwritable(path: Path) -> str | None:
    """Why a file cannot be written there, None where it can. Leaves no trace of the attempt."""
    try:
        if path.is_dir():
            return "it is a folder"
        probe(path.with_name(f".{path.name}.{os.getpid()}"))
    except FileExistsError:
        return f"{path.parent} is no folder"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def check_place(key: str, place: str | None) -> None:
    """Raises ConfigError where the file that ``key`` of the configuration names, if any, cannot be written."""
    why = None if place is None else unwritable(Path(place))
    if why is not None:
        raise ConfigError(key, place, f"a file that can be written ({why})")
