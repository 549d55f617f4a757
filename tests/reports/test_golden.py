"""The page that stored files must give, to the byte: a change of it is meant, or it is a fault."""

from __future__ import annotations

import difflib
from pathlib import Path

from golden.regenerate import HERE, PAGE, built


def test_the_page_of_the_stored_run(tmp_path: Path) -> None:
    found, wanted = built(tmp_path), PAGE.read_text(encoding="utf-8")
    changes = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "report.md", "built now", lineterm="", n=0)
    assert found == wanted, (
        "the report of tests/reports/golden/run has changed. If that is meant, run\n"
        "    python tests/reports/golden/regenerate.py\nand read the diff of report.md before you commit it:\n"
        + "\n".join(list(changes)[:40])
    )


def test_it_stays_small() -> None:
    assert sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file()) < 150 * 1024


def test_the_page_has_what_the_run_was_made_for() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for phrase in (
        "SYNTHETIC DATA",
        "**eagle is unsupported on reference**",
        "1 point with other settings than the rest (ddtree w2 d3 n40 [threads=4])",
        "## Refused comparisons",
        "| threads ",
        r"out of memory \| in \<verify>",
        "nodes 8 > 3",
        "**Crossover**",
        "not distinguishable",
        "no interval",
    ):
        assert phrase in text, phrase
