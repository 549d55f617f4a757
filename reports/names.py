"""Names for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def given_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Names of drafters by source, as a run of several was told them; empty for any other run."""
    given = config.get("drafters")
    return {str(source): str(name) for name, source in given.items()} if isinstance(given, dict) else {}


def short_names(sources: Sequence[str]) -> dict[str, str]:
    """For each source its shortest end, in whole parts of a path, that no other one has."""
    parts = {source: source.rstrip("/").split("/") for source in sources}
    longest = max((len(each) for each in parts.values()), default=0)
    for count in range(1, longest + 1):
        names = {source: "/".join(each[-count:]) for source, each in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {source: source for source in sources}
