"""What an engine on another host needs of this machine: this checkout's source, and models that are folders here."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import ddbench
from runners.base import ModelFiles
from runners.hosts.base import Host

PACKAGES = ("ddbench", "runners")
ROOT = Path(ddbench.__file__).resolve().parent.parent
ROLES = ("target", "dflash", "eagle")


def source(host: Host) -> str:
    """A folder on the host with this checkout's packages, for ``PYTHONPATH``; put there once for every state of them.

    Raises:
        HostFailure: it cannot be written there.
    """
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    there = host.path("source", digest.hexdigest()[:16])
    if not _exists(host, there):
        with tempfile.TemporaryDirectory(prefix="ddbench-source-") as scratch:
            for path in files:
                target = Path(scratch) / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            host.put(Path(scratch), there)
    return there


def model_there(host: Host, files: ModelFiles) -> ModelFiles:
    """The files of a model as the host has them: folders of this machine are put there once, names of a hub stay.

    Raises:
        HostFailure: they cannot be written there.
    """
    if host.is_local:
        return files
    changed = {role: folder_there(host, Path(path)) for role in ROLES if (path := getattr(files, role)) and _here(path)}
    return replace(files, **changed)  # type: ignore[arg-type]


def folder_there(host: Host, folder: Path) -> str:
    """Where the host has a folder of this machine; put there unless it has one of the same names, sizes and times."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found = path.stat()
        if path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    there = host.path("models", f"{folder.name}-{digest.hexdigest()[:16]}")
    if not _exists(host, there):
        host.put(folder, there)
    return there


def _here(path: str) -> bool:
    return Path(path).is_dir()


def _exists(host: Host, path: str) -> bool:
    return host.run(["test", "-e", path]).ok
