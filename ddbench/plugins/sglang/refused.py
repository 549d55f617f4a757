"""The plug-in's refusal: it would rather not start than answer wrongly."""

from __future__ import annotations

import sys


class Refused(ValueError):
    """What cannot be served, named in one line."""


def say(line: str) -> None:
    """One line for the server's log. SGLang only logs what goes wrong in a plug-in; this is seen at any log level."""
    sys.stderr.write(f"ddbench: {line}\n")
    sys.stderr.flush()
