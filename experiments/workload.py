"""Prompt records: read, checked line by line, chosen the same way every time."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import ddbench
from ddbench.errors import ConfigError
from ddbench.records import content_hash
from experiments.settings import WorkloadSettings
from runners.base import Prompt

ASSETS = "asset://"


def asset_path(text: str) -> Path:
    """A path as written in a config; ``asset://`` stands for the folder ``ddbench/assets``."""
    if text.startswith(ASSETS):
        return Path(ddbench.__file__).parent / "assets" / text.removeprefix(ASSETS)
    return Path(text).expanduser()


def read_prompts(key: str, source: str) -> list[Prompt]:
    """The prompts of a file of JSON lines ``{"id", "dataset", "category", "turns": [text, ...], "meta": {...}}``.

    Raises:
        ConfigError: no such file, an empty one, or a line that is no prompt record, named by its number.
    """
    try:
        lines = asset_path(source).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no UTF-8 text"
        raise ConfigError(key, source, f"a readable file of prompts, JSON lines ({reason})") from None
    prompts = [_parse(key, f"{source}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError(key, source, "at least one prompt; the file is empty")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ConfigError(key, source, f"every id once; {prompt.id!r} comes twice")
        seen.add(prompt.id)
    return prompts


def choose(prompts: list[Prompt], settings: WorkloadSettings) -> list[Prompt]:
    """The measured prompts: of the wanted categories, spread evenly over them, in the order of the file.

    Raises:
        ConfigError: a category that the file does not have.
    """
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    for category in settings.categories or ():
        if category not in known:
            raise ConfigError("workload.categories", category, f"one of {', '.join(known)}")
    wanted = [p for p in prompts if settings.categories is None or p.category in settings.categories]
    if settings.max_prompts is None or settings.max_prompts >= len(wanted):
        return wanted
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in wanted:
        by_category[prompt.category].append(prompt)
    rank = {p.id: (place, known.index(p.category)) for group in by_category.values() for place, p in enumerate(group)}
    chosen = {prompt.id for prompt in sorted(wanted, key=lambda p: rank[p.id])[: settings.max_prompts]}
    return [prompt for prompt in wanted if prompt.id in chosen]


def prompts_hash(prompts: list[Prompt]) -> str:
    """Content hash of the prompt records, in order."""
    return content_hash([[p.id, p.dataset, p.category, list(p.turns)] for p in prompts])


def _parse(key: str, place: str, line: str) -> Prompt:
    try:
        record: Any = json.loads(line)
    except ValueError:
        raise ConfigError(key, place, "one JSON object a line") from None
    if not isinstance(record, dict):
        raise ConfigError(key, place, "one JSON object a line")
    for name in ("id", "dataset", "category"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise ConfigError(key, place, f"a text under {name!r}")
    turns = record.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ConfigError(key, place, "a list of at least one non-empty text under 'turns'")
    if not isinstance(record.get("meta", {}), dict):
        raise ConfigError(key, place, "an object under 'meta'")
    return Prompt(record["id"], record["dataset"], record["category"], tuple(turns))
