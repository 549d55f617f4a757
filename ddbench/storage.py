"""Files that are there whole or not at all, and the version of what they hold.

A file is written beside its place, flushed to the disk and renamed into it, and then its folder is flushed: after a
power cut one finds the old file or the new one. Parquet files carry :data:`SCHEMA_VERSION` in their metadata and a
checksum of every page.

=======  ==============================================================================================================
version  what is new in it
=======  ==============================================================================================================
1        no version is stored
2        the version; checksums of pages; ``attempts``, ``schema`` and ``tables`` of ``status.json``
=======  ==============================================================================================================

Columns that a version lacks are read as null.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ddbench.redaction import redact

SCHEMA_VERSION = 2
KEY = b"ddbench.schema"  # in the metadata of a Parquet file, a decimal number


class NewerSchema(ValueError):
    """A file that a later version of ddbench wrote: reading it could misread it."""

    def __init__(self, path: Path, version: int) -> None:
        self.path, self.version = path, version
        super().__init__(f"{path} has schema {version}; this version of ddbench reads up to {SCHEMA_VERSION}")


def write_whole(path: Path, data: str | bytes) -> None:
    """Writes a file whole or not at all, a text without secrets. Raises OSError, and then leaves what was there."""
    draft = _draft(path)
    try:
        with draft.open("wb") as stream:
            stream.write(redact(data).encode() if isinstance(data, str) else data)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    sync_folder(path.parent)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Writes a table whole or not at all, with its version and checksums. Raises OSError."""
    metadata = {**(table.schema.metadata or {}), KEY: str(SCHEMA_VERSION).encode()}
    draft = _draft(path)
    try:
        pq.write_table(table.replace_schema_metadata(metadata), draft, write_page_checksum=True)
        _sync(draft)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    sync_folder(path.parent)


def read_parquet(path: Path) -> pa.Table:
    """A table, its version and checksums seen to.

    Raises:
        NewerSchema: a later version of ddbench wrote it.
        OSError, pyarrow.ArrowException: it is damaged, or cannot be read.
    """
    check_version(path, schema_version(path))
    return pq.read_table(path, page_checksum_verification=True)


def schema_version(path: Path) -> int:
    """The version that a Parquet file carries. Raises like :func:`read_parquet` for a damaged one."""
    stored = (pq.read_schema(path).metadata or {}).get(KEY, b"1")
    return int(stored) if stored.isdigit() else 1


def check_version(path: Path, version: object) -> None:
    """Raises NewerSchema for a version that this one does not know."""
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchema(path, version)


def damaged(path: Path) -> bool:
    """Whether a Parquet file is missing, cut or overwritten. All of it is read, and the checksums of its pages seen to;
    its version is not."""
    try:
        pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return True
    return False


def sync_tree(folder: Path) -> None:
    """Flushes the files of a folder, and then the folder, to the disk. Raises OSError."""
    for path in folder.iterdir():
        if path.is_file():
            _sync(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder. A file system that cannot is let be: it keeps them in its own way."""
    with suppress(OSError):
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
