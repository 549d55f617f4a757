"""Weights without files: a server that was told ``--load-format dummy`` makes them up, and its text means nothing."""

from __future__ import annotations

from reports.frames import flag


def has_random_weights(flags: str | None) -> bool:
    """Whether an arm's flags, as ``results`` hold them, say so in ``extra_args``; the last word counts, as it does
    where servers read theirs."""
    words = [str(each) for each in flag(flags, "extra_args") or []]
    told = None
    for word, after in zip(words, [*words, ""][1:], strict=True):
        name, given, value = word.partition("=")
        if name.replace("_", "-") == "--load-format":
            told = value if given else after
    return told == "dummy"
