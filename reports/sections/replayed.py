"""A scenario computed from a recording: what each width of the verify pass buys, and nothing that needs a clock."""

from __future__ import annotations

from reports.choose import Scenario, why_none
from reports.frames import records
from reports.sections.text import interval, number, table, whole


def only(scenario: Scenario) -> bool:
    """Whether every point of the scenario that finished was replayed."""
    done = scenario.frame[scenario.frame["status"] == "ok"]
    return len(done) > 0 and bool(done["replayed"].all())


def section(scenario: Scenario) -> list[str]:
    """The best shape of each verify width by acceptance length."""
    frame = scenario.frame[(scenario.frame["status"] == "ok") & scenario.frame["acceptance_length"].notna()]
    order = frame.sort_values(["verify_width", "acceptance_length"], ascending=[True, False], kind="stable")
    rows = [
        {
            "Verify width": whole(row["verify_width"]),
            "Hindsight-best shape": row["label"],
            "Acceptance length (replayed)": interval(row, "acceptance_length"),
            "x deepest chain (replayed)": interval(row, "acceptance_ratio_vs_dflash"),
            "Node efficiency": number(row["node_efficiency"]),
            "n (prompts)": whole(row["prompts"]),
        }
        for row in records(order.drop_duplicates(["batch_size", "verify_width"]))
    ]
    why = why_none(scenario.frame)
    return [
        "## Acceptance by verify width (replayed)",
        "",
        f"{why[0].upper()}{why[1:]}. The verify width is the tokens of one sequence in the target's pass, hence its "
        "price; which width pays is a question of round times, which must be measured.",
        "",
        *table(rows),
        "",
    ]
