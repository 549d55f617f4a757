"""The page as one HTML file: the markdown rendered, figures inlined, no script, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import html
import re
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
"""
_FOOT = "</main>\n</body>\n</html>\n"


def to_html(markdown: str, folder: Path, title: str) -> str:
    """``markdown`` as a whole HTML page; an image at a path below ``folder`` becomes part of the page.

    HTML blocks of the markdown stay (the page folds tables with ``<details>``); HTML inside a line is text, so what an
    engine wrote into a reason cannot become markup.
    """
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("html_inline")
    tokens = parser.parse(markdown)
    _number_headings(tokens)
    for token in tokens:
        for child in token.children or []:
            if child.type == "image":
                child.attrSet("src", _inlined(str(child.attrGet("src")), folder))
    body = str(parser.renderer.render(tokens, parser.options, {}))
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    head = _HEAD.format(policy=POLICY, title=html.escape(title), style=STYLE.read_text(encoding="utf-8"))
    return head + body + _FOOT


def _number_headings(tokens: list[Token]) -> None:
    """An ``id`` for each heading, from its words, unique in the page: what a link to a section needs."""
    seen: dict[str, int] = {}
    for token, inside in pairwise(tokens):
        if token.type == "heading_open":
            name = re.sub(r"[^a-z0-9]+", "-", inside.content.lower()).strip("-") or "section"
            seen[name] = seen.get(name, 0) + 1
            token.attrSet("id", name if seen[name] == 1 else f"{name}-{seen[name]}")


def _inlined(source: str, folder: Path) -> str:
    """A PNG below ``folder`` as a data URI; any other source as it is."""
    path = folder / source
    if path.suffix != ".png" or not path.is_file():
        return source
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
