"""The golden report: a small SYNTHETIC run in stored files, and the page that must come of them.

    python tests/reports/golden/regenerate.py          the page again, after a change that is meant: read its diff
    python tests/reports/golden/regenerate.py --run    the stored files too, from tests/reports/synthetic.py

The page is compared byte for byte but for the line that says when it was built.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synthetic import Plan, arm, cell, write_cell, write_run, write_status

from reports import build_report
from reports.markdown import BUILT

HERE = Path(__file__).resolve().parent
RUN, PAGE = HERE / "run", HERE / "report.md"
PLAN = Plan(
    shapes={
        "autoregressive": [(None, None, None)],
        "dflash": [(None, 3, None)],
        "ddtree": [(2, 3, 40), (4, 3, 64)],
    },
    batch_sizes=(1, 8),
    prompts=6,
    max_new_tokens=32,
    with_rounds=False,
)


def built(folder: Path) -> str:
    """The page of the stored files, built in ``folder`` under the path that it names, without the line of its time."""
    run = folder / "outputs" / "golden" / "run"
    shutil.copytree(RUN, run)
    lines = build_report(run).report.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(BUILT))


def store() -> None:
    """Write the run: four arms at two batch sizes, one with other flags, one that failed, one that cannot be."""
    shutil.rmtree(RUN, ignore_errors=True)
    cells = write_run(RUN, PLAN)
    threads = arm("ddtree", 2, 3, 40, flags={"device": "cpu", "dtype": "float32", "threads": 4})
    other = cell(PLAN, threads, 1)
    write_cell(RUN, PLAN, other)
    for index, each in enumerate([*cells, other]):
        path = RUN / "cells" / each.cell_id / "status.json"
        started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=2 * index)
        path.write_text(json.dumps({**json.loads(path.read_text()), "started": started.isoformat()}))
    write_status(RUN, cell(PLAN, arm("eagle", 4, 3, 16), 1), "unsupported", "no EAGLE trees in this engine")
    write_status(RUN, cell(PLAN, arm("dflash", None, 7, None), 8), "failed", "out of memory | in <verify>")
    dropped = {"strategy": "ddtree", "width": 1, "depth": 3, "nodes": 8, "batch_size": 1, "temperature": 0.0}
    reason = "nodes 8 > 3: a tree of this width and depth holds no more"
    (RUN / "dropped.json").write_text(json.dumps([{**dropped, "reason": reason}]))
    for path in RUN.glob("cells/*/*.parquet"):  # small: no statistics, one codec
        pq.write_table(pq.read_table(path), path, compression="zstd", use_dictionary=False, write_statistics=False)


if __name__ == "__main__":
    if "--run" in sys.argv[1:]:
        store()
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(built(Path(scratch)), encoding="utf-8")
