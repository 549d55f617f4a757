"""Pages on disk: whole or not at all, and file names that every system takes."""

from __future__ import annotations

from pathlib import Path

from ddbench.storage import write_whole
from reports.html import to_html

__all__ = ["slug", "write_page", "write_whole"]


def write_page(path: Path, markdown: str) -> None:
    """A page as markdown at ``path`` and, with its figures inside, as HTML beside it."""
    write_whole(path, markdown)
    title = markdown.partition("\n")[0].lstrip("# ")
    write_whole(path.with_suffix(".html"), to_html(markdown, path.parent, title))


def slug(text: str) -> str:
    """``text`` as a file name: whatever is no letter, digit, '-', '_' or '.' becomes '_'."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in text)
