"""The errors that are the reader's to mend."""

from __future__ import annotations

from ddbench.redaction import hide


class ConfigError(ValueError):
    """A setting that cannot be: one line that names the key, the value and what is allowed, and shows no secret."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(hide(f"{key}={value!r}: {allowed}"))


class Broken(Exception):
    """Something outside that broke, an engine or a host, which no setting mends; the text is one line."""


class DrafterMismatch(ConfigError):
    """A drafter checkpoint that does not belong to the target, or is not of the kind it was named as."""


class JobEnded(Exception):
    """A job of the command line that did not end well; ``code`` is its exit status. It has been reported already."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)
