"""What our plug-in says in a server's log when it is loaded, refuses, or is at work."""

from __future__ import annotations

import re

from runners.base import EngineFailure

REGISTERED = re.compile(r"ddbench: DDTREE plugin registered: .*")
REFUSED = re.compile(r"(?:ddbench: DDTREE plug-in refused|\bRefused): (.+)")
NO_SUCH = re.compile(r"[Uu]nknown speculative algorithm.*DDTREE|DDTREE.*[Uu]nknown speculative algorithm")


def refusal(log: str) -> str | None:
    """Why a server with DDTREE did not start, as far as the plug-in is the reason; None if it is not."""
    found = REFUSED.search(log)
    if found:
        return f"the DDTree plug-in refused: {found[1].strip().removeprefix('DDTREE plug-in refused: ')}"
    return "SGLang did not load the DDTree plug-in" if NO_SUCH.search(log) else None


def check(log: str) -> str:
    """The line by which the plug-in says that it is at work. Raises EngineFailure without it."""
    found = REGISTERED.search(log)
    if not found:
        raise EngineFailure("the DDTree plug-in did not register itself in the server", "hopeless")
    return found[0]
