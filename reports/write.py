"""Pages on disk: whole or not at all, and file names that every system takes."""

from __future__ import annotations

from pathlib import Path

from reports.html import to_html


def write_page(path: Path, markdown: str) -> None:
    """A page as markdown at ``path`` and, with its figures inside, as HTML beside it."""
    write_whole(path, markdown)
    title = markdown.partition("\n")[0].lstrip("# ")
    write_whole(path.with_suffix(".html"), to_html(markdown, path.parent, title))


def write_whole(path: Path, text: str) -> None:
    """Write by rename: a reader finds the old page or the new one, never half of one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def slug(text: str) -> str:
    """``text`` as a file name: whatever is no letter, digit, '-', '_' or '.' becomes '_'."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in text)
