"""Can a file be written there? Asked at the door, before anything is measured for it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from ddbench.errors import ConfigError
from experiments.command import command_line
from experiments.evidence.shards import plain


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


def check_place(key: str, place: str | None, writer: str) -> None:
    """Is the file that ``key`` of the configuration names, if any, a place for what ``writer`` keeps?

    Raises:
        ConfigError: it cannot be written, or is there and is nothing that ``writer`` wrote, whose name stands in the
            ``command`` of such a file: a file of another kind was meant to be read.
    """
    if place is None:
        return
    why = unwritable(Path(place))
    if why is not None:
        raise ConfigError(key, place, f"a file that can be written ({why})")
    if Path(place).exists() and not _wrote(writer, Path(place)):
        raise ConfigError(key, place, f"a new file, or one that {writer} wrote: this one would be written over")


def _wrote(writer: str, path: Path) -> bool:
    """By its command, which is that of this process where an experiment is called from Python."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    command = data.get("command") if isinstance(data, dict) else None
    return isinstance(command, str) and (writer in command or command == plain(command_line()))
