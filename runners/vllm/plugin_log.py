"""What our plug-in says in a server's log when it is loaded."""

from __future__ import annotations

import re

from runners.base import EngineFailure

REGISTERED = re.compile(r"ddbench: DDTree plug-in for vLLM \S+ registered")
REFUSED = re.compile(r"ddbench: DDTree plug-in refused: (.+)")


def refusal(log: str) -> str | None:
    """Why the plug-in refused to run; None if it did not."""
    found = REFUSED.search(log)
    return f"the DDTree plug-in refused: {found[1].strip()}" if found else None


def check(log: str) -> None:
    """Raises EngineFailure unless the plug-in is at work: a server without it would serve a plain chain."""
    if not REGISTERED.search(log):
        raise EngineFailure("the DDTree plug-in did not register itself in the server")
