"""Whether a setting is in its range."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddbench.errors import ConfigError


def require(key: str, values: Iterable[Any], holds: Any, allowed: str) -> None:
    """Raises ConfigError, named ``key``, for the first of ``values`` of which ``holds`` says no."""
    for value in values:
        if not holds(value):
            raise ConfigError(key, list(value) if isinstance(value, tuple) else value, allowed)
