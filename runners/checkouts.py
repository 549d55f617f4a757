"""A folder with other people's sources: which state of them it holds, under which licence."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LICENCES = ("LICENSE", "LICENCE", "COPYING")
# Files that run, or are compiled when they are first called.
PYTHON = frozenset({".py", ".pyi", ".pyx", ".pxd"})
COMPILED = frozenset(
    {
        *(".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inl", ".rs"),
        *(".cu", ".cuh", ".hip", ".ptx", ".cl"),
    }
)
CODE = PYTHON | COMPILED
# Text that code may load: configs of kernels, templates.
TEXT = frozenset({".json", ".yaml", ".yml", ".toml", ".txt", ".jinja"})
PASSED_OVER = ("__pycache__", ".git")


@dataclass(frozen=True)
class Checkout:
    """``commit`` is None where the folder is not the root of a git checkout, ``changed`` whether tracked files differ
    from it; ``source`` is a hash of the files that run; ``licence`` its licence file's name and first line."""

    name: str
    folder: Path
    commit: str | None
    changed: bool | None
    source: str
    licence: str | None

    def __str__(self) -> str:
        named = f"commit {self.commit[:12]}{' changed' if self.changed else ''}" if self.commit else "no commit"
        return f"{self.name} ({named}, source {self.source})"

    @property
    def facts(self) -> dict[str, str | bool | None]:
        """What ``environment.json`` has of it."""
        return {"commit": self.commit, "changed": self.changed, "licence": self.licence, "source": self.source}


def examine(name: str, folder: Path, sources: Path, suffixes: frozenset[str] = CODE) -> Checkout:
    """What is in ``folder``, of which the files below ``sources`` run whose names end in one of ``suffixes``."""
    commit = _git(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    changed = None if status is None else bool(status)
    return Checkout(name, folder, commit, changed, _source(sources, suffixes), _licence(folder))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, None where it cannot; the folder may be another user's."""
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _source(folder: Path, suffixes: frozenset[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(_files(folder, suffixes)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _files(folder: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    """Those with one of the suffixes, at any depth; links to folders are not followed."""
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name not in PASSED_OVER]
        for name in names:
            path = Path(place, name)
            if path.suffix.lower() in suffixes and path.is_file():
                yield path


def _licence(folder: Path) -> str | None:
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stem.upper() in LICENCES:
            lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return f"{path.name}: {lines[0].strip()}" if lines else path.name
    return None
