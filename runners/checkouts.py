"""A folder with other people's sources: which state of them it holds, under which licence."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

LICENCES = ("LICENSE", "LICENCE", "COPYING")


@dataclass(frozen=True)
class Checkout:
    """``commit`` is None where the folder is not the root of a git checkout, ``changed`` whether tracked files differ
    from it; ``source`` is a hash of its Python files; ``licence`` its licence file's name and first line."""

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


def examine(name: str, folder: Path, sources: Path) -> Checkout:
    """What is in ``folder``, of which the Python files below ``sources`` run."""
    commit = _git(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    changed = None if status is None else bool(status)
    return Checkout(name, folder, commit, changed, _source(sources), _licence(folder))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, None where it cannot; the folder may be another user's."""
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _source(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _licence(folder: Path) -> str | None:
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stem.upper() in LICENCES:
            lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return f"{path.name}: {lines[0].strip()}" if lines else path.name
    return None
