"""What the page shows of the frames beside the results: each section against the numbers that it must hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Plan, arm, cell, write_cell, write_run

from reports import build_report
from reports.aggregate import Analysis, analyse
from reports.choose import labelled, scenarios
from reports.frames import read_run, records
from reports.sections import tables

SHAPES: dict[str, Any] = {
    "autoregressive": [(None, None, None)],
    "dflash": [(None, 3, None)],
    "ddtree": [(2, 3, 8), (4, 3, 16)],
}
PLAN = Plan(shapes=SHAPES, batch_sizes=(1,), prompts=12)


def written(folder: Path, plan: Plan = PLAN) -> Path:
    run = folder / "synthetic" / "run"
    write_run(run, plan)
    return run


def page(run: Path) -> str:
    text = build_report(run, figures=False).report.read_text()
    assert "<NA>" not in text
    assert "nan" not in text.lower().replace("provenance", "")
    return text


def section(text: str, title: str) -> str:
    assert f"\n## {title}\n" in text, title
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, head and rule left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def edit(run: Path, cells: str, column: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change a column of the stored requests of every cell that has the line ``cells`` in its ``cell.yaml``."""
    for path in run.glob("cells/*/requests.parquet"):
        if f"{cells}\n" not in path.with_name("cell.yaml").read_text():
            continue
        table = pq.read_table(path)
        index = table.schema.get_field_index(column)
        values = pa.array(change(table[column].to_pylist()), table.schema.field(index).type)
        pq.write_table(table.set_column(index, column, values), path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Analysis]:
    run = written(tmp_path_factory.mktemp("outputs"), replace(PLAN, batch_sizes=(1, 4)))
    return page(run), analyse(read_run(run))


def test_the_answer_is_two_sentences_that_name_the_fastest(plain: tuple[str, Analysis]) -> None:
    text, analysis = plain
    answer = section(text, "The answer").split("```")[0].strip()
    first, second = answer.removeprefix("**").split(".** ")
    for size in (1, 4):
        frame = analysis.frame[analysis.frame["batch_size"] == size]
        winner = frame.sort_values("tokens_per_s_per_user").iloc[-1]
        assert f"{winner['speedup_vs_autoregressive']:.2f} [" in first
        assert str(winner["strategy"]) in first
    assert first.startswith("On tiny · engine reference")
    assert "distinguishable" in second
    assert "its shape chosen on one half of the prompts gave" in second
    assert second.endswith(".")
    assert re.search(r"\.\s+[A-Z]", second) is None  # one sentence


def test_the_winner_s_command_is_there(plain: tuple[str, Analysis]) -> None:
    block = section(plain[0], "The answer").split("```sh\n")[1].split("```")[0]
    assert "the winner at batch size" in block
    assert "python -m ddbench experiment=smoke 'sweep.strategy=[" in block


def test_the_order_is_answer_doubts_results_guards_methods(plain: tuple[str, Analysis]) -> None:
    heads = re.findall(r"^## (.+)$", plain[0], re.MULTILINE)
    order = [
        "The answer",
        "Before you believe it",
        "Results",
        "Best configuration by batch size",
        "Chosen on one half of the prompts, reported on the other",
        "Won or lost by acceptance or by cost",
        "By category of prompt",
        "All results",
        "What each tool would have printed",
        "Unsupported, failed and suspect points",
        "Losslessness ledger",
        "Degenerate outputs",
        "Telemetry",
        "Provenance",
        "How the numbers are defined",
        "How to reproduce",
    ]
    assert [head for head in heads if head in order] == order


def test_the_split_selection_stands_beside_the_hindsight_best(plain: tuple[str, Analysis]) -> None:
    text, analysis = plain
    found = {
        (row[0], row[1]): row for row in rows(section(text, "Chosen on one half of the prompts, reported on the other"))
    }
    wanted = records(analysis.selection)
    assert len(found) == len(wanted) == 6
    for row in wanted:
        shown = found[str(row["batch_size"]), row["strategy"]]
        assert shown[2] == row["chosen_label"]
        assert shown[3].startswith(f"{row['value']:.1f} [")
        assert shown[5:8] == [
            row["hindsight_label"],
            f"{row['hindsight_value']:.1f}",
            f"{row['hindsight_speedup']:.2f}",
        ]
        assert shown[8] == f"{row['prompts_choose']} + {row['prompts_report']}"


def test_categories_are_those_of_the_frame(plain: tuple[str, Analysis]) -> None:
    text, analysis = plain
    shown = section(text, "By category of prompt").split("Batch size 1</summary>")[1].split("</details>")[0]
    chain = {row["point_id"]: row for row in records(analysis.frame)}
    wanted = {
        str(row["category"]): f"{row['acceptance_length']:.2f}"
        for row in records(analysis.categories)
        if chain[row["point_id"]]["strategy"] == "dflash" and chain[row["point_id"]]["batch_size"] == 1
    }
    assert {row[0]: row[2].split(" ")[0] for row in rows(shown) if row[1] == "dflash d3"} == wanted
    assert len(wanted) == 3


def test_every_tool_has_its_row(plain: tuple[str, Analysis]) -> None:
    text, analysis = plain
    lines = [line for line in section(text, "What each tool would have printed").splitlines() if line.startswith("|")]
    head = [part.strip() for part in lines[0].split("|")[1:-1]]
    shown = {row[0]: row for row in rows("\n".join(lines))}
    from ddbench.acceptance import VARIANTS

    values = {row["point_id"]: row for row in records(analysis.acceptance_variants)}
    chain = next(r for r in records(analysis.frame) if r["strategy"] == "dflash" and r["batch_size"] == 1)
    for variant in VARIANTS:
        value = values[chain["point_id"]][variant.name]
        assert shown[variant.tool][head.index("dflash d3")] == f"{value:.3f}"
    assert len(shown) == len(VARIANTS)


def test_the_bandwidth_ceiling_is_shown_where_it_is_known(plain: tuple[str, Analysis]) -> None:
    text, analysis = plain
    assert "| Bandwidth ceiling " not in text
    frame = analysis.frame.assign(bandwidth_ceiling_tokens_per_s=500.0, bandwidth_share=0.25)
    (scenario,) = scenarios(frame)
    shown = rows("\n".join(line for line in tables.product(scenario) if line.startswith("|")))
    assert {tuple(row[5:7]) for row in shown} == {("500", "25 %")}


def test_blocks_give_drift_and_other_intervals(tmp_path: Path) -> None:
    run = written(tmp_path, replace(PLAN, blocks=3))
    text = page(run)
    drift = rows(section(text, "Drift"))
    wanted = records(analyse(read_run(run)).drift)
    assert [row[4] for row in drift] == [f"{row['relative_rate']:.3f}" for row in wanted]
    assert len(drift) >= 2
    assert "One block of repetition" not in text
    assert "paired t over 3 blocks and prompts" in text
    assert "t over blocks (n = 3 blocks)" in text


def test_an_arm_with_other_settings_is_not_ranked(tmp_path: Path) -> None:
    """The fastest arm of all, had it the others' flags."""
    run = written(tmp_path)
    fast = arm("ddtree", 2, 3, 8, flags={"device": "cpu", "dtype": "float32", "threads": 64})
    write_cell(run, PLAN, cell(PLAN, fast, 1))
    for column in ("latency_s", "ttft_s"):
        edit(run, "threads: 64", column, lambda values: [value / 10 for value in values])
    text = page(run)
    for title in ("The answer", "Results", "Best configuration by batch size", "Won or lost by acceptance or by cost"):
        assert "threads=64" not in section(text, title), title
    assert "**1 point with other settings than the rest (ddtree w2 d3 n8 [threads=64])**" in text
    refused = rows(section(text, "Refused comparisons"))
    assert [row[2] for row in refused] == ["autoregressive", "dflash d3"]
    assert all(row[3].startswith("~~") and row[3].endswith("~~") and row[4] == "threads" for row in refused)
    assert "ddtree w2 d3 n8 [threads=64]" in section(text, "All results")


def test_outputs_that_part_are_in_the_ledger(tmp_path: Path) -> None:
    run = written(tmp_path)

    def part(outputs: list[Any]) -> list[Any]:
        return [[*ids[:5], ids[5] + 1, *ids[6:]] if index == 2 else ids for index, ids in enumerate(outputs)]

    edit(run, "strategy: dflash", "output_token_ids", part)
    shown = section(page(run), "Losslessness ledger")
    assert "Every request identical: 2 of 3 points." in shown
    (parted,) = [row for row in rows(shown.split("<details>")[0]) if row[0] == "dflash d3"]
    assert parted[2:5] == ["91.6 %", "12", "5"]
    (request,) = [row for row in rows(shown.split("Requests that differ: 1<")[1]) if row[0] == "dflash d3"]
    assert request[2] == "p002"
    assert request[5] == "5"


def test_degenerate_text_is_suspect_with_its_reason(tmp_path: Path) -> None:
    run = written(tmp_path)
    edit(run, "strategy: ddtree", "output_token_ids", lambda outputs: [[7] * len(ids) for ids in outputs])
    text = page(run)
    assert "ddtree" not in section(text, "The answer")
    assert "2 points suspect (ddtree 2)" in text
    assert "Here: 2 of 4 points." in section(text, "Degenerate outputs")
    reasons = {row[0]: row[7] for row in rows(section(text, "Degenerate outputs"))}
    assert reasons["ddtree w2 d3 n8"] != "–"
    assert reasons["dflash d3"] == "–"


def test_a_fixed_length_run_says_so_first(tmp_path: Path) -> None:
    plan = replace(PLAN, shapes={})
    run = written(tmp_path, plan)
    flags = {"device": "cpu", "dtype": "float32", "threads": 2, "ignore_eos": True}
    for strategy, (shape, *_) in SHAPES.items():
        write_cell(run, plan, cell(plan, arm(strategy, *shape, flags=flags), 1))
    text = page(run)
    head = text.split("## The answer")[0]
    assert "Fixed length: step cost only, no statement about acceptance, speed-up or quality" in head
    assert "All answers run past their end of text" in head
    answer = section(text, "The answer")
    assert "fixed length: step cost only. A round took at batch size 1" in answer
    cost = {row["label"]: row["step_ms"] for row in records(labelled(analyse(read_run(run)).frame))}
    assert f"{cost['dflash d3']:.2f} [" in answer
    assert "```" not in answer
    for word in ("was fastest", "won", "lost", "autoregressive decoding (", "x as fast", "| x autoregressive"):
        assert word not in text.split("## Unsupported")[0], word


def test_a_run_of_an_older_schema_renders(tmp_path: Path) -> None:
    """Columns that are new since, and files that are gone, are nulls and absent sections."""
    run = written(tmp_path)
    new = ("cached_tokens", "finish_reason", "output_token_ids", "output_gaps", "category", "seed")
    for path in run.glob("cells/*/requests.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.drop_columns([name for name in new if name in table.column_names]), path)
        path.with_name("telemetry.parquet").unlink()
        path.with_name("rounds.parquet").unlink(missing_ok=True)
    (run / "environment.json").unlink()
    text = page(run)
    assert "was fastest at batch size 1" in text
    assert "## Telemetry" not in text
    assert "## By category" not in text
    assert "## Losslessness ledger" not in text
