"""What the two last rules of the closed loop did to the tokens/s that a cost file tells of trees.

    python benchmarks/loop_rules.py COST EVIDENCE ROUNDS [--evidence FILE]

COST: the cost file. EVIDENCE: tokens/s of trees at a pinned length of a round. ROUNDS: another cost file whose points
are rounds of these very trees, measured. The loop is taken as it was (rounds rounded to a whole number, a place free at
once), with whole rounds, and with a place that is free a step late as well; each by the fit of COST, and by that fit
shifted, for each tree and batch size, to the round that was measured. One JSON object on standard output: errors of
tokens/s without sign, told / measured - 1, in the median and at worst, and the worst tree.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ddbench.cost import CostModel, Fit, late_steps, load_cost
from ddbench.errors import ConfigError
from ddbench.storage import write_whole
from experiments.sglang_evidence.synthetic import OUTPUT
from experiments.step_cost.against import loop_speed, measured_of, pinned_speeds
from experiments.step_cost.whole_rounds import whole_rounds
from experiments.writable import check_place

WANTED = OUTPUT - 1  # tokens that come of rounds: the first is the reading's
LOOPS = ("as_it_was", "whole_rounds", "whole_rounds_and_late")


def measure(cost: CostModel, speeds: Mapping[str, Any], rounds: CostModel) -> list[dict[str, Any]]:
    """Each loop by the fit and by the measured rounds."""
    return [_row(cost, speeds, rounds, loop, shifted) for loop in LOOPS for shifted in (False, True)]


def _row(cost: CostModel, speeds: Mapping[str, Any], rounds: CostModel, loop: str, shifted: bool) -> dict[str, Any]:
    errors: dict[str, float] = {}
    for kind, width, batch, length, speed in pinned_speeds(speeds):
        if kind != "ddtree":
            continue
        fit = _as_measured(cost.fit(kind), rounds, width, batch) if shifted else cost.fit(kind)
        law = {round(WANTED / length): 1.0} if loop == "as_it_was" else whole_rounds(length, WANTED)
        late = late_steps(cost) if loop == "whole_rounds_and_late" else 0
        errors[f"width {width}, batch {batch}"] = loop_speed(cost, fit, width, batch, law, late) / speed - 1
    if not errors:
        raise ConfigError("EVIDENCE", None, "a file with tokens/s of trees at a pinned length of a round")
    worst = max(errors, key=lambda name: abs(errors[name]))
    return {
        "loop": loop,
        "rounds": "as measured" if shifted else "fitted",
        "n": len(errors),
        "median": round(float(np.median(np.abs(list(errors.values())))), 4),
        "worst": round(errors[worst], 4),
        "worst_at": worst,
    }


def _as_measured(fit: Fit, rounds: CostModel, width: int, batch: int) -> Fit:
    """The fit, shifted to the round of that width and batch that was measured at the least context."""
    points = [each for each in rounds.points.get("ddtree", ()) if (each.verify_width, each.batch) == (width, batch)]
    if not points:
        raise ConfigError("ROUNDS", None, f"a cost file with rounds of trees of verify width {width} at batch {batch}")
    point = min(points, key=lambda each: each.context)
    told = float(fit(width, batch, point.context, extrapolate=True))
    return replace(fit, base=fit.base + point.ms - told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("cost", "speeds", "rounds"):
        parser.add_argument(name, metavar="EVIDENCE" if name == "speeds" else name.upper())
    parser.add_argument("--evidence", type=Path, help="file to write for docs/evidence")
    options = parser.parse_args()
    try:
        if options.evidence is not None:
            check_place("--evidence", str(options.evidence), "loop_rules.py")
        cost, rounds = load_cost(options.cost), load_cost(options.rounds)
        rows = measure(cost, measured_of(cost, options.speeds, "EVIDENCE"), rounds)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"benchmark": "loop_rules", "rows": rows}))
    if options.evidence is not None:
        told = {
            "command": shlex.join(["python", "benchmarks/loop_rules.py", *sys.argv[1:]]),
            "date": datetime.now(UTC).date().isoformat(),
            "gpu": cost.fingerprint.get("device"),
            "driver": None,
            "versions": {str(cost.fingerprint.get("engine")): cost.fingerprint.get("engine_version")},
            "measured": {"predicted": True, "rows": rows},
            "notes": "Errors of predicted tokens/s of trees at a pinned length of a round. The two rules of the loop "
            "were found by looking at these very points.",
        }
        write_whole(options.evidence, json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
