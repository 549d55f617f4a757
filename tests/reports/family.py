"""Processes that a test starts, apart from those that earlier tests of the same process have left, ended ones too."""

from __future__ import annotations

from collections.abc import Collection

import psutil


def living(known: Collection[psutil.Process] = ()) -> list[psutil.Process]:
    """Children of this process, and theirs, that run; those in ``known`` left out."""
    found = psutil.Process().children(recursive=True)
    return [child for child in found if child not in known and child.status() != psutil.STATUS_ZOMBIE]
