"""The command line of this process, as what is stored says how it came about."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence


def command_line(words: Sequence[str] | None = None) -> str:
    """For a shell; ``words``: what was asked for, None: all of it."""
    return shlex.join(["python", "-m", "ddbench", *(sys.argv[1:] if words is None else words)])
