"""How the numbers are defined, and how to make them again."""

from __future__ import annotations

from ddbench import metrics
from reports.frames import Stored
from reports.sections.text import table
from reports.statistics import RESAMPLES, SEED


def section(stored: Stored) -> list[str]:
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
        f"Intervals are 95 %: bootstrap over prompts ({RESAMPLES:,} resamples, seed {SEED}), the turns, repeats "
        "and blocks of a prompt kept together, both arms of a ratio drawn with the same prompts; percentiles of the "
        "logarithm, widened for few prompts by t(n - 1) / z x sqrt(n / (n - 1)). n counts prompts. Aggregate tokens/s "
        "has an interval only where there are two or more blocks of repetition (t over blocks). Requests in flight "
        "together share their rounds: above batch size 1 the intervals of times see the differences between prompts, "
        "not all noise of the machine, and with fewer than two batches of prompts there is none. Where n = 1 there "
        "is a point without an interval. A dash is a value that does not exist.",
        "",
        "## How to reproduce",
        "",
        "```sh",
        command(stored),
        f"python -m ddbench experiment=report run={_folder(stored)}   # this page again, from the stored files",
        "```",
        "",
        "```python",
        "import ddbench",
        "",
        f'frames = ddbench.load("{_folder(stored)}")  # .results .requests .rounds .cells .telemetry',
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
    run = stored.run.resolve()
    return f"{run.parent.parent.name}/{run.parent.name}/{run.name}"


def _unit(name: str) -> str:
    if name.startswith("tokens_per_s"):
        return "tokens/s"
    if name == "verify_width":
        return "tokens"
    return "share" if name == "lossless_share" else "ratio"
