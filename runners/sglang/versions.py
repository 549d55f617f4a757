"""Which SGLang can do what."""

from __future__ import annotations

from ddbench.plugins.sglang.gate import READ, RUN

KNOWN = RUN + READ
OLDEST = (0, 5, 14)  # the first with the DFlash worker whose counts and flags these are


def parsed(version: str) -> tuple[int, ...]:
    """``0.5.17.post1`` as (0, 5, 17): the numbers at its start."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def too_old(version: str) -> str | None:
    """Why no cell can be run with this version; None if it is new enough, or not known."""
    numbers = parsed(version)
    if numbers and numbers < OLDEST:
        return f"SGLang {version} is older than {'.'.join(map(str, OLDEST))}, the oldest that ddbench drives"
    return None


def untried(version: str) -> str | None:
    """A warning for a version that was not run on a GPU; None for one that was."""
    if version in RUN:
        return None
    if version in READ:
        return f"SGLang {version} was read and its plug-in compared with its signatures; it was never run"
    return f"SGLang {version} has not been tried with ddbench (known: {', '.join(KNOWN)})"


def no_tree(version: str) -> str | None:
    """Why DDTree cannot be run with this version; None if it can."""
    return None if version in KNOWN else f"the DDTree plug-in knows SGLang {' and '.join(KNOWN)}, not {version}"
