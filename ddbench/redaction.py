"""Secrets out of everything that is written: values that the environment or a configuration calls a key, a token, a
secret or a password never reach a file of a run, a log or W&B.

A name is a secret's if its last word is one of those (``HF_TOKEN``, ``wandb_api_key``, not ``mask_token_id`` or
``max_new_tokens``). What is hidden is the value, wherever it stands.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

SECRET_NAME = re.compile(r"(?i)(?:^|[_.\-])(?:api_?key|key|token|secret|password|passwd|credentials?)$")
NOT_SECRET = ("host.key", "host.hosts.key")  # a file's path
SHORTEST = 8  # characters: a shorter value is a word that stands in many places
OPTION = re.compile(r"(?i)^--?[\w-]*(?:key|token|secret|password)$")  # of a command line, whose value comes next
TEXTS = (".log", ".json", ".yaml", ".txt", ".md")
HIDDEN = "<hidden>"

# What a line may hold of secrets that nobody knows yet: a URL's user and password, and what follows a secret's name, as
# ``--api-key=x``, ``--api-key x``, ``['--api-key', 'x']``, ``api_key=x`` or ``{api_key: x}``. What stands already for a
# hidden value stays.
_WORD = r"(?:key|token|secret|password|passwd|credentials?)"
_VALUE = r"(?P<value>\\?'(?!<|\(not)[^']*'|\\?\"(?!<|\(not)[^\"]*\"|(?!['\"<]|None\b)[^\s,\]})'\"]+)"
USER = re.compile(r"(?P<before>://)(?P<value>[^\s<>]+)(?=@)")
NAMED = (
    re.compile(rf"(?i)(?P<before>(?<!\w)--?[\w-]*{_WORD}['\"]?(?:\s*[=,:]\s*|\s+)){_VALUE}"),
    re.compile(rf"(?i)(?P<before>(?<![\w.\[\]-])(?P<name>[\w.\[\]-]*{_WORD})\s*=\s*){_VALUE}"),
    re.compile(rf"(?i)(?P<before>(?:[{{,]\s*['\"]?|['\"])(?P<name>[\w.-]*{_WORD})['\"]?\s*:\s*){_VALUE}"),
)

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
            if isinstance(value, str) and isinstance(before, str) and OPTION.match(before) and len(value) >= SHORTEST:
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


def hide(line: str, given: Iterable[str] = ()) -> str:
    """``line`` for a person to read, without known secrets and without what looks like one.

    ``given``: what was typed, whose secrets are hidden in ``line`` wherever they stand there, cut loose or not.
    """
    line = redact(line)
    for text in given:
        for value in sorted(_looks_secret(text), key=len, reverse=True):
            line = line.replace(value, HIDDEN)
    for pattern in (USER, *NAMED):
        line = pattern.sub(lambda found: found["before"] + HIDDEN if _meant(found) else found[0], line)
    return line


def secret_in(config: Any, place: str = "") -> tuple[str, str] | None:
    """Where a configuration holds the value of a known secret: the dotted key, and the secret's name; None if nowhere.

    What the configuration itself calls a secret is not looked for under its own name.
    """
    return _secret_in(config, place, _known())


def said_secret(config: Any, place: str = "") -> str | None:
    """The dotted key under which a text is written out that is called a secret, or holds what looks like one, as
    ``export API_KEY=x`` does; None where none is. Interpolations and paths are no secrets."""
    if isinstance(config, Mapping):
        inner = ((f"{place}.{name}" if place else str(name), value) for name, value in config.items())
        return next((found for where, value in inner if (found := said_secret(value, where)) is not None), None)
    if isinstance(config, list | tuple):
        return next((found for value in config if (found := said_secret(value, place)) is not None), None)
    if not isinstance(config, str) or not config or config.startswith(("${", "/", "~")):
        return None
    return place if is_secret(place) or any(_looks_secret(config)) or redact(config) != config else None


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
    known |= {other: name for value, name in known.items() for other in _spellings(value)}
    return sorted(known.items(), key=lambda item: -len(item[0]))


def _spellings(value: str) -> list[str]:
    """How a text stands in JSON, in Python and in a URL."""
    return [json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1], quote(value, "")]


def _secret_in(config: Any, place: str, known: list[tuple[str, str]]) -> tuple[str, str] | None:
    if isinstance(config, Mapping):
        for name, value in config.items():
            found = _secret_in(str(name), place, known)
            found = found or _secret_in(value, f"{place}.{name}" if place else str(name), known)
            if found is not None:
                return found
    elif isinstance(config, list | tuple):
        return next((found for value in config if (found := _secret_in(value, place, known)) is not None), None)
    elif config is not None and not isinstance(config, bool):
        text = str(config)
        return next(((place, name) for value, name in known if value in text and name != place), None)
    return None


def _looks_secret(text: str) -> Iterator[str]:
    """Values in ``text`` that follow a secret's name, and users and passwords of URLs; short ones left out."""
    for pattern in (USER, *NAMED):
        for found in pattern.finditer(text):
            value = found["value"].strip("\\'\"")
            parts = [value, value.rpartition(":")[2]] if pattern is USER else [value]
            yield from (part for part in parts if len(part) >= 4 and _meant(found))


def _meant(found: re.Match[str]) -> bool:
    """Whether what was found by its name has one of a secret: not one of :data:`NOT_SECRET`, nor the bare word key."""
    name = found.groupdict().get("name")
    return name is None or (name.lower() != "key" and is_secret(re.sub(r"\[\d*\]", "", name)))
