"""Whether a setting is in its range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from typing import Any

from ddbench.errors import ConfigError


def require(key: str, values: Iterable[Any], holds: Any, allowed: str) -> None:
    """Raises ConfigError, named ``key``, for the first of ``values`` of which ``holds`` says no; it shows the value as
    the configuration has it."""
    for value in values:
        if holds(value):
            continue
        if is_dataclass(value) and not isinstance(value, type):
            raise ConfigError(key, asdict(value), allowed)
        raise ConfigError(key, list(value) if isinstance(value, tuple) else value, allowed)
