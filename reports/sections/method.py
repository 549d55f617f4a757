"""How the numbers are defined, and how to make them again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from ddbench import metrics
from reports.frames import Stored
from reports.sections.text import table
from reports.statistics import BOOTSTRAP_BLOCKS, LEVEL, RESAMPLES, SEED


def section(stored: Stored) -> list[str]:
    folder = _folder(stored)
    quoted = json.dumps(folder, ensure_ascii=False)
    definitions = [
        {"Metric": f"`{each.name}`", "Unit": each.unit, "Definition": each.definition} for each in metrics.RATIOS
    ]
    definitions += [
        {"Metric": f"`{name}`", "Unit": _unit(name), "Definition": text}
        for name, text in metrics.OTHER_DEFINITIONS.items()
    ]
    return [
        "## How the numbers are defined",
        "",
        *table(definitions),
        "",
        f"Intervals are {LEVEL:.0%}. The prompt is the unit: its turns and repeats are summed first, and both arms of "
        "a ratio are drawn with the same prompts. From one block of repetition: bootstrap over prompts "
        f"({RESAMPLES:,} resamples, seed {SEED}), percentiles of the logarithm, widened for few prompts. From two to "
        f"{BOOTSTRAP_BLOCKS - 1} blocks: t, over blocks and prompts; from {BOOTSTRAP_BLOCKS} on: bootstrap over both. "
        "Aggregate tokens/s has the block as its unit and no interval from one. Requests in flight together share "
        "their rounds: above batch size 1 the intervals of times see the differences between prompts, not all noise "
        "of the machine, and with fewer than two batches of prompts blocks alone are replicates. Where n = 1 there "
        "is a point without an interval. *Not distinguishable*: the interval includes 1. A dash is a value that does "
        "not exist. How to read this page: `docs/report.md` of ddbench.",
        "",
        "## How to reproduce",
        "",
        "```sh",
        command(stored),
        f"python -m ddbench experiment=report {shlex.quote(f'run={folder}')}  # this page again, from the stored files",
        "```",
        "",
        "```python",
        "import ddbench",
        "",
        f"frames = ddbench.load({quoted})  # .results .requests .rounds .cells .telemetry",
        "```",
        "",
    ]


def command(stored: Stored) -> str:
    """The command that made the run: as stored, else its experiment by name."""
    recorded = stored.environment.get("command")
    if isinstance(recorded, list):
        return " ".join(str(part) for part in recorded)
    if recorded:
        return str(recorded)
    name = stored.config.get("name") or stored.run.resolve().parent.name
    return f"python -m ddbench experiment={name}   # with the settings of config.yaml, above"


def _folder(stored: Stored) -> str:
    """The run folder as the user gave ``output_dir``; of a run that was renamed or stored none, its last three parts.

    Relative paths count from where the run was started.
    """
    run = stored.run.resolve()
    given, name, run_id = (stored.config.get(key) for key in ("output_dir", "name", "run_id"))
    if given and (run.parent.name, run.name) == (str(name), str(run_id)):
        return str(Path(str(given)) / run.parent.name / run.name)
    return f"{run.parent.parent.name}/{run.parent.name}/{run.name}"


def _unit(name: str) -> str:
    if "tokens_per_s" in name:
        return "tokens/s"
    if name == "verify_width":
        return "tokens"
    known = {"_ms": "ms", "_s": "s", "_share": "share"}
    return next((unit for ending, unit in known.items() if name.endswith(ending)), "ratio")
