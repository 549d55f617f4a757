"""A hash of the sources of ddbench that run inside an engine, as the engine itself finds them.

Whoever starts an engine reckons the same from outside (``runners/probe_script.py``, which imports nothing of this
package): a test holds the two together.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import ddbench

PARTS = ("__init__.py", "errors.py", "redaction.py", "adaptive", "cost", "plugins", "tree")


@cache
def source_hash() -> str:
    """16 hex digits."""
    root, digest = Path(ddbench.__file__).resolve().parent, hashlib.sha256()
    for part in PARTS:
        place = root / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
