"""Secrets out of everything that is written: values that the environment or a configuration calls a key, a token, a
secret or a password never reach a file of a run, a log or W&B.

A name is a secret's if its last word is one of those (``HF_TOKEN``, ``wandb_api_key``, not ``mask_token_id`` or
``max_new_tokens``). What is hidden is the value, wherever it stands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECRET_NAME = re.compile(r"(?i)(?:^|[_.\-])(?:api_?key|key|token|secret|password|passwd|credentials?)$")
NOT_SECRET = ("host.key", "host.hosts.key")  # a file's path
SHORTEST = 8  # characters: a shorter value is a word that stands in many places
OPTION = re.compile(r"(?i)^--?[\w-]*(?:key|token|secret|password)$")  # of a command line, whose value comes next
TEXTS = (".log", ".json", ".yaml", ".txt", ".md")

_configured: dict[str, str] = {}


def learn(config: Any, place: str = "") -> None:
    """Remembers the secrets of a configuration, by name, for this process."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            where = f"{place}.{name}" if place else str(name)
            if isinstance(value, str) and len(value) >= SHORTEST and is_secret(where):
                _configured[value] = where
            learn(value, where)
    elif isinstance(config, list | tuple):
        for before, value in zip([None, *config], config, strict=False):
            if isinstance(value, str) and isinstance(before, str) and OPTION.match(before):
                _configured[value] = before
            learn(value, place)


def is_secret(name: str) -> bool:
    """Whether what has this name, dotted or of the environment, is to be hidden."""
    return name not in NOT_SECRET and SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """``text`` with every known secret replaced by its name."""
    for value, name in _known():
        text = text.replace(value, f"<{name} hidden>")
    return text


def redacted(data: Any) -> Any:
    """Plain data with every known secret replaced in its texts; a copy."""
    if isinstance(data, Mapping):
        return {key: redacted(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(redacted(value) for value in data)
    return redact(data) if isinstance(data, str) else data


def redact_files(folder: Path) -> list[Path]:
    """Replaces secrets in the text files of a folder and of those in it; returns the files that had one."""
    changed = []
    known = [(value.encode(), f"<{name} hidden>".encode()) for value, name in _known()]
    for path in sorted(folder.rglob("*")) if known else ():
        if path.suffix not in TEXTS or not path.is_file():
            continue
        before = data = path.read_bytes()
        for value, instead in known:
            data = data.replace(value, instead)
        if data != before:
            path.write_bytes(data)
            changed.append(path)
    return changed


def _known() -> list[tuple[str, str]]:
    """Value and name of every secret, the longest first, since one may hold another."""
    named = {value: name for name, value in os.environ.items() if is_secret(name) and not Path(value).is_absolute()}
    known = _configured | {value: name for value, name in named.items() if len(value) >= SHORTEST}
    return sorted(known.items(), key=lambda item: -len(item[0]))
