"""Sweeps with ``engine=sglang``, one by the command line, against the stand-in of tests/runners/sglang: no GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runners" / "sglang"))

from engines import write_stand_in

from ddbench.cost.file import save_cost
from ddbench.cost.points import Point

SMALL = ("sweep.batch_size=[1]", "engine=sglang", "engine.flags.context_length=512")
LONGER = ("load.max_new_tokens=6", "workload.max_prompts=2", "engine.start_timeout_s=120")


def statuses(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("cells/*/status.json"))]


def test_a_tree_of_stock_dflash_is_unsupported_and_never_run_as_a_chain(ddbench: Any, tmp_path: Path) -> None:
    python = f"engine.python={write_stand_in(tmp_path)}"
    flags = "engine.flags.extra_args=['--speculative-eagle-topk=4']"
    summary = ddbench.here("refused", *SMALL, python, flags, "sweep.strategy=[dflash]", "sweep.depth=[7]")
    assert summary["cells"] == {"ok": 0, "unsupported": 1, "failed": 0, "suspect": 0}
    (status,) = statuses(ddbench.path("refused"))
    assert status["reason"].startswith("SGLang's DFlash verifies a chain: told of a width above 1")
    report = (ddbench.path("refused") / "report.md").read_text().partition("## Results")[0]
    assert "is unsupported on sglang** and was not run as something else" in report
    assert not list(ddbench.path("refused").glob("cells/*/server.log"))


def cost_file(folder: Path, kinds: dict[str, tuple[int, ...]], **changed: str) -> str:
    """Costs of the stand-in, as far as a plan looks at them."""
    points = {
        kind: [
            Point(width, batch, context, 1.0 + width / 50, 1.0, 9.0, 3)
            for width in widths
            for batch in (1, 2)
            for context in (20.0, 60.0)
        ]
        for kind, widths in kinds.items()
    }
    path = folder / "cost.json"
    save_cost(path, {"engine": "sglang"} | changed, points, {"how": "made up"})
    return f"strategy.cost={path}"


def test_a_policys_arm_is_refused_by_name_where_its_costs_do_not_do(ddbench: Any, tmp_path: Path) -> None:
    python = f"engine.python={write_stand_in(tmp_path)}"
    shape = ("strategy.policies=[cost_optimal]", "sweep.strategy=[ddtree]", "sweep.depth=[7]", "sweep.nodes=[8]")
    few = cost_file(tmp_path, {"ddtree": (9,), "autoregressive": (1,)})
    ddbench.here("few", *SMALL, python, *shape, few)
    (status,) = statuses(ddbench.path("few"))
    assert status["status"] == "unsupported"
    assert "verify_width" in status["reason"]


def test_a_sweep_is_measured_and_compared(ddbench: Any, tmp_path: Path) -> None:
    python = f"engine.python={write_stand_in(tmp_path)}"
    shape = ("sweep.strategy=[autoregressive,ddtree]", "sweep.width=[2]", "sweep.depth=[7]", "sweep.nodes=[8]")
    ended = ddbench.run("run_id=whole", *SMALL, *LONGER, python, *shape)
    assert ended.code == 0, ended.err
    cells = ended.summary["cells"]
    assert (cells["unsupported"], cells["failed"]) == (0, 0), statuses(ddbench.path("whole"))
    results = pq.read_table(ddbench.path("whole") / "results.parquet").to_pandas().set_index("strategy")
    assert set(results.index) == {"autoregressive", "ddtree"}
    assert set(results["engine_version"]) == {"sglang 0.5.17 torch 2.11.0"}
    assert (results["lossless_share"].dropna() == 1.0).all()
    assert results.loc["ddtree", "verify_width"] == 9
