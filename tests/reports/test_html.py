"""The HTML page: whole, alone, safe, and the same as the markdown."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic import Plan, arm, cell, write_run, write_status

from reports import build_report
from reports.html import to_html

PLAN = Plan(
    shapes={"autoregressive": [(None, None, None)], "dflash": [(None, 3, None)], "ddtree": [(2, 3, 8), (4, 3, 8)]},
    batch_sizes=(1,),
    prompts=4,
)
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags in order, attributes by tag, and text; a tag that is not closed in order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "synthetic" / "run"
    write_run(folder, PLAN)
    write_status(folder, cell(PLAN, arm("eagle", 4, 4, 16), 1), "failed", "<script>alert(1)</script> & a | bar")
    build_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page((run / "report.html").read_text())


def test_every_tag_is_closed(page: Page) -> None:
    assert page.open == []
    assert page.all("html")
    assert [attributes["charset"] for attributes in page.all("meta") if "charset" in attributes] == ["utf-8"]


def test_figures_are_inside(page: Page, run: Path) -> None:
    sources = [str(image["src"]) for image in page.all("img")]
    linked = re.findall(r"\]\((figures/[^)]+)\)", (run / "report.md").read_text())
    assert len(sources) == len(linked) > 5
    for source, path in zip(sources, linked, strict=True):
        head, _, data = source.partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data) == (run / path).read_bytes()
    assert all(image["alt"] for image in page.all("img"))


def test_nothing_is_fetched_and_nothing_runs(page: Page) -> None:
    assert not page.all("script")
    assert not page.all("link")
    sources = [str(attributes["src"]) for _, attributes in page.tags if "src" in attributes]
    assert all(source.startswith("data:") for source in sources)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "url(" not in (Path(__file__).parents[2] / "reports" / "page.css").read_text()


def test_text_of_an_engine_is_text(page: Page, run: Path) -> None:
    assert "<script>alert(1)</script> & a | bar" in page.text
    assert "<script>" not in (run / "report.html").read_text()
    assert r"\<script>" in (run / "report.md").read_text()  # GitHub shows it as text too


def test_tables_details_and_headings_are_rendered(page: Page, run: Path) -> None:
    text = (run / "report.md").read_text()
    assert len(page.all("details")) == text.count("<details>")
    assert len(page.all("table")) == len(re.findall(r"^\|[:\-| ]+\|$", text, re.MULTILINE))
    names = [attributes["id"] for tag, attributes in page.tags if tag in ("h1", "h2")]
    assert len(names) == len(set(names))
    assert "the-answer" in names
    assert "refused-comparisons" not in names


def test_links_within_the_page_lead_somewhere() -> None:
    page = Page(to_html("# A\n\n[b](#b-c) [b](#b-c-2)\n\n## B, c\n\n## B c\n", Path(), "t"))
    names = {attributes["id"] for tag, attributes in page.tags if tag in ("h1", "h2")}
    assert {str(link["href"]).lstrip("#") for link in page.all("a")} <= names


def test_an_image_that_is_not_there_stays_a_link(tmp_path: Path) -> None:
    assert Page(to_html("![a](figures/none.png)", tmp_path, "t")).all("img")[0]["src"] == "figures/none.png"


def test_struck_out_and_code() -> None:
    page = Page(to_html("~~1.32~~ and `a < b`", Path(), "t <i>"))
    assert page.all("s")
    assert "a < b" in page.text
    assert "t <i>" in page.text
