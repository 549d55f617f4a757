"""Rows of whatever source, as prompt records."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddbench
from ddbench.errors import ConfigError
from experiments.settings import COLUMN, RowSettings
from runners.base import Prompt

ASSETS = "asset://"
UNCATEGORISED = "uncategorised"


@dataclass(frozen=True)
class Row:
    """A row of a source. ``place`` is what a message calls it; ``group`` names its set, for ids and categories."""

    place: str
    group: str
    number: int  # from 0, in the source's own order
    data: Mapping[str, Any]


def asset_path(text: str) -> Path:
    """A path as written in a config; ``asset://`` stands for the folder ``ddbench/assets``."""
    if text.startswith(ASSETS):
        return Path(ddbench.__file__).parent / "assets" / text.removeprefix(ASSETS)
    return Path(text).expanduser()


def read_prompts(key: str, source: str, rows: RowSettings | None = None, name: str = "") -> list[Prompt]:
    """The prompts of a file (:func:`file_rows`), as :func:`prompts_of` makes them."""
    return prompts_of(key, source, file_rows(key, source, name), rows, name)


def file_rows(key: str, source: str, group: str) -> Iterator[Row]:
    """The rows of a file of JSON lines, packed (``.gz``) or not, or of Parquet (``.parquet``).

    Raises:
        ConfigError: no such file, one that cannot be read, or a line that is no JSON object, named by its number.
    """
    path = asset_path(source)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(key, source, "a file of prompts; a device or a pipe may never end, and is not there again")
    try:
        if path.suffix == ".parquet":
            return iter(_parquet_rows(source, group, path))
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, ValueError) as error:  # a broken file of either kind is one of these
        known = {UnicodeDecodeError: "no UTF-8 text", ValueError: "no Parquet"}
        reason = getattr(error, "strerror", None) or known.get(type(error)) or str(error).splitlines()[0]
        raise ConfigError(key, source, f"a readable file of prompts, JSON lines or Parquet ({reason})") from None
    return _json_rows(key, source, group, text)


def prompts_of(key: str, source: str, rows: Iterable[Row], how: RowSettings | None, name: str) -> list[Prompt]:
    """A prompt a row; ``how`` None: rows are prompt records ``{"id", "dataset", "category", "turns", "meta"}``.

    A dataset that is null or missing is the name of the workload, such a category :data:`UNCATEGORISED`.

    Raises:
        ConfigError: a row that makes no prompt, named by its place; an id that comes twice; no row at all.
    """
    prompts = [_record(key, row) if how is None else _made(key, row, how, name) for row in rows]
    if not prompts:
        raise ConfigError(key, source, "at least one prompt; the file is empty")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ConfigError(key, source, f"every id once; {prompt.id!r} comes twice")
        seen.add(prompt.id)
    return prompts


def _json_rows(key: str, source: str, group: str, text: str) -> Iterator[Row]:
    for index, line in enumerate(text.splitlines()):
        if not line.strip():
            continue
        place = f"{source}:{index + 1}"
        try:
            data: Any = json.loads(line)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ConfigError(key, place, "one JSON object a line")
        yield Row(place, group, index, data)


def _parquet_rows(source: str, group: str, path: Path) -> list[Row]:
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    return [Row(f"{source} row {number}", group, number, data) for number, data in enumerate(rows)]


def _record(key: str, row: Row) -> Prompt:
    data = row.data
    usual = {"id": None, "dataset": row.group or None, "category": UNCATEGORISED}
    texts = {name: data[name] if data.get(name) is not None else other for name, other in usual.items()}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise ConfigError(key, row.place, f"a text under {name!r}")
    if not isinstance(data.get("meta") or {}, dict):
        raise ConfigError(key, row.place, "an object under 'meta'")
    return Prompt(texts["id"], texts["dataset"], texts["category"], _turns(key, row, "turns"))


def _made(key: str, row: Row, how: RowSettings, name: str) -> Prompt:
    """A prompt from a row of a set that has columns of its own."""
    for column, nothing in ((how.id, (None, "")), (how.category, ("",))):
        if column is not None and (column not in row.data or row.data[column] in nothing):
            raise ConfigError(key, row.place, f"a value under {column!r}")
    identity = f"{row.group}/{row.number}" if how.id is None else str(row.data[how.id])
    category = row.group
    if how.category is not None:
        value = row.data[how.category]
        category = UNCATEGORISED if value is None else str(value)
    turns = _turns(key, row, how.turns) if how.turns is not None else (_filled(key, row, how.template or ()),)
    return Prompt(identity, name, category, turns)


def _turns(key: str, row: Row, column: str) -> tuple[str, ...]:
    """A column of turns: texts, or messages of the user ``{"role": "user", "content": text}``."""
    found = row.data.get(column)
    items: Sequence[Any] = found if isinstance(found, list) else []
    turns = tuple(item.get("content") if _by_user(item) else item for item in items)
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ConfigError(key, row.place, f"a list of at least one non-empty text under {column!r}")
    return turns


def _by_user(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") == "user"


def _filled(key: str, row: Row, templates: tuple[str, ...]) -> str:
    """The first template whose columns all have a text, with ``{column}`` replaced; other braces stay as they are."""
    named = [set(re.findall(COLUMN, template)) for template in templates]
    for column in sorted(set().union(*named)):
        if column not in row.data:
            known = ", ".join(map(str, row.data))
            raise ConfigError("workload.rows.template", f"{{{column}}}", f"a column of {row.place}: {known}")
    for template, columns in zip(templates, named, strict=True):
        if all(row.data[column] not in (None, "") for column in columns):
            return re.sub(COLUMN, lambda match: str(row.data[match.group(1)]), template)
    wanted = " or ".join(" and ".join(sorted(columns)) for columns in named)
    raise ConfigError(key, row.place, f"a text under {wanted}")
