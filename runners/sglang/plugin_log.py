"""What a server's log says of our plug-in (loaded, refused, at work), and of a drafter that lost its CUDA graphs."""

from __future__ import annotations

import re

from runners.base import EngineFailure

REGISTERED = re.compile(r"ddbench: DDTREE plugin registered: .*")
REFUSED = re.compile(r"(?:ddbench: DDTREE plug-in refused|\bRefused): (.+)")
NO_SUCH = re.compile(r"[Uu]nknown speculative algorithm.*DDTREE|DDTREE.*[Uu]nknown speculative algorithm")
ANY = re.compile(r"ddbench: DDTREE .*")
# With too little memory left SGLang's DFlash worker goes on without graphs of the drafter, with a warning alone.
NO_DRAFT_GRAPH = re.compile(r"Disable \w+ draft cuda graph\b.*")


def refusal(log: str) -> str | None:
    """Why a server with DDTREE did not start, as far as the plug-in is the reason; None if it is not."""
    found = REFUSED.search(log)
    if found:
        return f"the DDTree plug-in refused: {found[1].strip().removeprefix('DDTREE plug-in refused: ')}"
    return "SGLang did not load the DDTree plug-in" if NO_SUCH.search(log) else None


def check_absent(log: str) -> None:
    """Raises EngineFailure where the plug-in came into a server that is none of ours."""
    found = ANY.search(log)
    if found:
        raise EngineFailure(f"our plug-in is in the server of a checkout: {found[0].strip()}", "hopeless")


def draft_graph_off(log: str) -> str | None:
    """The line by which a server tells that its drafter runs without CUDA graphs; None if it has them."""
    found = NO_DRAFT_GRAPH.search(log)
    return found[0].strip() if found else None


def check(log: str) -> str:
    """The line by which the plug-in says that it is at work. Raises EngineFailure without it."""
    found = REGISTERED.search(log)
    if not found:
        raise EngineFailure("the DDTree plug-in did not register itself in the server", "hopeless")
    return found[0]
