"""Text for the tiny models: units of permissively licensed files that lie on any Python machine.

A unit is one function, docstring, paragraph group or structured fragment: short, complete, and ended by the end-of-text
token, so that a small model learns to stop instead of looping. Whole distributions are held out for the prompts.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import re
import sys
import sysconfig
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CATEGORIES = ("code", "tests", "docstrings", "docs", "structured", "declarations")
SUFFIX_CATEGORY = {
    ".md": "docs",
    ".rst": "docs",
    ".txt": "docs",
    ".json": "structured",
    ".yaml": "structured",
    ".yml": "structured",
    ".toml": "structured",
    ".cfg": "structured",
    ".ini": "structured",
    ".csv": "structured",
    ".pyi": "declarations",
    ".h": "declarations",
}
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Python-2\.0|HPND|Zlib|Unlicense|CC0|0BSD)\b", re.I
)
RESTRICTED = re.compile(r"\b(A?L?GPL\w*|GNU|MPL\S*|Mozilla|EPL|CDDL|CC-BY-\S+|proprietary|NVIDIA|commercial)\b", re.I)
VENDORED = frozenset(
    ["_vendor", "vendor", "vendored", "_vendored", "third_party", "externals", "extern", "_extern", "site-packages"]
)
MIN_CHARS, MAX_CHARS, MAX_FILE_BYTES = 120, 3000, 400_000


@dataclass(frozen=True)
class Source:
    """One distribution whose text may be used."""

    name: str
    version: str
    licence: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Unit:
    source: str
    category: str
    text: str


def permissive_licence(metadata: importlib.metadata.PackageMetadata) -> str | None:
    """The licence as the distribution states it, or None unless it is clearly permissive and nothing else."""
    classifiers = [c.split("::")[-1].strip() for c in metadata.get_all("Classifier") or [] if c.startswith("License")]
    stated = metadata.get("License-Expression") or ""
    free_text = (metadata.get("License") or "").strip().splitlines()[:1]
    candidates = [stated, *classifiers, *free_text]
    joined = " / ".join(dict.fromkeys(text for text in candidates if text and text != "OSI Approved"))
    if not PERMISSIVE.search(joined) or RESTRICTED.search(joined):
        return None
    return stated or joined[:80]


def installed_sources(only: Sequence[str] | None = None) -> list[Source]:
    """The standard library and every installed distribution with a permissive licence, sorted by name.

    ``only`` restricts them to the named ones.
    """
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    own = tuple(p for p in sorted(stdlib.rglob("*")) if _usable(p, p.relative_to(stdlib)))
    version = ".".join(str(part) for part in sys.version_info[:3])
    sources = {"python-stdlib": Source("python-stdlib", version, "PSF-2.0", own)}
    for dist in importlib.metadata.distributions():
        name = (dist.metadata["Name"] or "").lower()
        licence = permissive_licence(dist.metadata)
        if not name or name in sources or licence is None or (only is not None and name not in only):
            continue
        files = [(Path(str(dist.locate_file(f))), Path(str(f))) for f in dist.files or []]
        usable = tuple(sorted(path for path, relative in files if _usable(path, relative)))
        if usable:
            sources[name] = Source(name, dist.version, licence, usable)
    return [sources[name] for name in sorted(sources) if only is None or name in only]


def _usable(path: Path, relative: Path) -> bool:
    if path.suffix not in SUFFIX_CATEGORY and path.suffix != ".py":
        return False
    if VENDORED & {part.lower() for part in relative.parts[:-1]} or "licen" in path.name.lower():
        return False
    return path.is_file() and MIN_CHARS <= path.stat().st_size <= MAX_FILE_BYTES


def read_units(sources: Iterable[Source], max_units_per_source: int, workers: int) -> list[Unit]:
    """Units of all sources, near-identical ones dropped, in an order that does not depend on ``workers``."""
    jobs = [(source.name, path) for source in sources for path in source.files]
    units: list[Unit] = []
    seen: set[bytes] = set()
    taken: dict[str, int] = {}
    with ProcessPoolExecutor(workers) as pool:
        for found in pool.map(_units_of_job, jobs, chunksize=64):
            for unit in found:
                key = hashlib.sha1(re.sub(r"\W+", "", unit.text).encode()).digest()
                if key in seen or taken.get(unit.source, 0) >= max_units_per_source:
                    continue
                seen.add(key)
                taken[unit.source] = taken.get(unit.source, 0) + 1
                units.append(unit)
    return units


def _units_of_job(job: tuple[str, Path]) -> list[Unit]:
    name, path = job
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return []
    return [Unit(name, category, body) for category, body in _split(path, text) if _good(body)]


def _split(path: Path, text: str) -> Iterator[tuple[str, str]]:
    if path.suffix == ".py":
        yield from _python_units(path, text)
        return
    category = SUFFIX_CATEGORY[path.suffix]
    yield from ((category, chunk) for chunk in _chunks(text))


def _good(text: str) -> bool:
    """Long enough, mostly ASCII, no very long lines and no data tables of bare numbers."""
    if not MIN_CHARS <= len(text) <= MAX_CHARS or max(map(len, text.splitlines())) > 300:
        return False
    plain = sum(c.isalpha() for c in text)
    return plain > 0.35 * len(text) and text.isascii()


def _python_units(path: Path, text: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.splitlines()
    testing = "test" in path.name or "tests" in path.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield (
                ("tests" if testing else "code"),
                textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno])).strip(),
            )
            if not testing and len(node.args.args) >= 2 and zlib.crc32(f"{path.name}.{node.name}".encode()) % 3 == 0:
                yield "structured", _signature_record(path, node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node)
            if docstring is not None and len(docstring) >= 2 * MIN_CHARS:
                yield from (("docstrings", chunk) for chunk in _chunks(docstring))


def _signature_record(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's signature as an indented JSON record: structured text of which every package has plenty."""
    positional = node.args.posonlyargs + node.args.args
    arguments = positional + node.args.kwonlyargs
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(node.args.defaults))
    defaults += [*node.args.defaults, *node.args.kw_defaults]
    parameters = []
    for argument, default in zip(arguments, defaults, strict=True):
        parameter: dict[str, object] = {"name": argument.arg}
        if argument.annotation is not None:
            parameter["type"] = ast.unparse(argument.annotation)
        parameter["required"] = default is None
        if default is not None:
            parameter["default"] = ast.unparse(default)
        parameters.append(parameter)
    record: dict[str, object] = {"function": node.name, "module": path.stem, "parameters": parameters}
    if node.returns is not None:
        record["returns"] = ast.unparse(node.returns)
    summary = (ast.get_docstring(node) or "").partition("\n")[0]
    if summary:
        record["summary"] = summary
    return json.dumps(record, indent=2)


def _chunks(text: str) -> Iterator[str]:
    """Groups of whole paragraphs, each at most about 1200 characters."""
    group: list[str] = []
    size = 0
    for paragraph in re.split(r"\n\s*\n", text):
        if group and size + len(paragraph) > 1200:
            yield "\n\n".join(group).strip("\n")
            group, size = [], 0
        group.append(paragraph.rstrip())
        size += len(paragraph)
    if group:
        yield "\n\n".join(group).strip("\n")
