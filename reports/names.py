"""Names for people."""

from __future__ import annotations

from collections.abc import Sequence


def short_names(sources: Sequence[str]) -> dict[str, str]:
    """For each source its shortest end, in whole parts of a path, that no other one has."""
    parts = {source: source.rstrip("/").split("/") for source in sources}
    longest = max((len(each) for each in parts.values()), default=0)
    for count in range(1, longest + 1):
        names = {source: "/".join(each[-count:]) for source, each in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {source: source for source in sources}
