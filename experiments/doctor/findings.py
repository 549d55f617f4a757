"""What the doctor found: a line a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ddbench.errors import ConfigError
from ddbench.redaction import hide
from runners.base import EngineFailure

State = Literal["ok", "note", "missing", "wrong"]
BAD: tuple[State, ...] = ("missing", "wrong")


@dataclass(frozen=True)
class Finding:
    """``missing`` and ``wrong`` keep a sweep from starting, or from meaning what its configuration says; ``note`` does
    not. ``todo`` says what to do."""

    state: State
    what: str
    said: str
    todo: str | None = None

    @property
    def line(self) -> str:
        """For a person to read, with no secret in it."""
        return hide(f"{self.state:<8} {self.what:<22} {self.said}{f'; {self.todo}' if self.todo else ''}")


Check = Callable[[], Iterable[Finding]]


def checked(what: str, check: Check) -> Iterator[Finding]:
    """The findings of one check; what it raises for a person to mend is a finding too, and stops no other check."""
    try:
        yield from check()
    except ConfigError as error:
        yield Finding("wrong", what, hide(f"{error.key}={error.value!r}"), f"needed: {error.allowed}")
    except (EngineFailure, OSError) as error:
        yield Finding("wrong", what, str(error))
