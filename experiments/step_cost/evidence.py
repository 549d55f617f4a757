"""Cost points out of what was measured before: round times in an evidence file, or the points of a cost file.

An evidence file holds round times at the dimensions of Qwen3-8B with random weights. Taken are the arms that a cost
file means: autoregressive decoding, the chain up to the drafter's block (a longer chain drafts a longer block, which is
another drafter's work), the tree. Rows that the evidence calls unsteady are left out and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ddbench.cost import Point, cost_from
from ddbench.errors import ConfigError
from experiments.settings import Settings
from experiments.step_cost import sglang, vllm
from experiments.step_cost.fingerprint import fingerprint
from experiments.step_cost.fleets import check_dummy
from experiments.step_cost.measured import Measured, Points
from experiments.step_cost.settings import StepCostSettings

ARM = re.compile(r"(autoregressive|dflash|ddtree)(?:_(\d+))?")
TREE = re.compile(r"ddtree_\d+")
FLAGS = {"sglang": sglang.FLAGS, "vllm": vllm.FLAGS}
COUNTED = 15 + 6  # tokens a sequence is longer than its prompt in the middle of the rounds that evidence times
PROMPT = 256


def import_evidence(
    settings: Settings, asked: StepCostSettings, save: Callable[[Measured], None], folder: Path
) -> Measured:
    """The points of ``step_cost.evidence``.

    Raises:
        ConfigError: no such file, or one without round times, or of a model of another size.
    """
    place = Path(str(asked.evidence))
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError("step_cost.evidence", str(place), "an evidence file, or a cost file") from None
    if isinstance(data, Mapping) and "kinds" in data:
        cost = cost_from(data, place)
        points = {kind: list(each) for kind, each in cost.points.items()}
        return Measured(cost.fingerprint, points, {**cost.source, "refitted": place.name})
    times = data.get("measured", {}).get("round_ms") if isinstance(data, Mapping) else None
    engine = next((name for name in FLAGS if isinstance(data, Mapping) and name in data.get("versions", {})), None)
    if not times or engine is None:
        raise ConfigError("step_cost.evidence", str(place), "a file with round times (measured.round_ms) of an engine")
    check_dummy(settings.model)
    left_out: list[str] = []
    block = settings.model.dflash.block_size if settings.model.dflash else None
    points = points_of(times, block or 1, left_out, "step_cost.evidence", str(place))
    source = {
        "how": f"taken from {place.name}",
        "measured_by": str(data.get("command")),
        "measured_on": str(data.get("date")),
        "accepted": "pinned at 0: the weights are random",
        "weights": "random",
        "left_out": ", ".join(left_out) or "none",
    }
    versions, attention = data["versions"], {"verify_attention": _attention(data)} if engine == "sglang" else {}
    setup = fingerprint(
        engine,
        f"{engine} {known(versions.get(engine))} torch {known(versions.get('torch'))}",
        None,
        str(data.get("gpu")),
        "",
        settings.model,
        {"dtype": "bfloat16", **FLAGS[engine], **attention},
    )
    return Measured(setup, points, source)


def _attention(data: Mapping[str, Any]) -> str:
    """Whose attention the trees of the round times verified with; unknown where their engines do not all say the same.

    Which plug-in that was is not in such a file either: its ``build`` is none, which is no server's.
    """
    rounds = [shard for name, shard in data.get("shards", {}).items() if name.startswith("rounds")]
    started = [each for shard in rounds for each in (shard.get("started") or {}).items()]
    named = {facts.get("verify_attention") for name, facts in started if TREE.fullmatch(name)}
    (only,) = named if len(named) == 1 else (None,)
    return str(only or "unknown").partition(",")[0]


def points_of(times: Mapping[str, Any], block: int, left_out: list[str], key: str, place: str) -> Points:
    """The steady rows of round times by kind of step; names of the unsteady ones are added to ``left_out``.

    Raises:
        ConfigError: none at all; ``key`` of the configuration names the file ``place``.
    """
    points: Points = {}
    for arm, batch, row in rows_of(times):
        found = ARM.fullmatch(arm)
        if found is None or (found[1] == "autoregressive") != (found[2] is None):
            continue
        width = int(found[2] or 1)
        if found[1] == "dflash" and width > block:
            continue
        if row.get("steady") is False:
            left_out.append(f"{arm} at batch {batch} (unsteady)")
            continue
        middle = row["ms"] if "ms" in row else row["median"]
        point = Point(width, batch, PROMPT + COUNTED, middle, row["low"], row["high"], row["n"], None)
        points.setdefault(found[1], []).append(point)
    if not points:
        raise ConfigError(key, place, "a file with at least one steady round time (measured.round_ms)")
    return points


def rows_of(times: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """(arm, batch size, row) of a table by batch size and arm, or by arm and batch size."""
    for outer, inner in times.items():
        for name, row in inner.items():
            arm, batch = (name, outer) if str(outer).isdigit() else (outer, name)
            yield arm, int(batch), row


def known(version: object) -> str:
    """A version without what an index adds to it; a fingerprint has it so."""
    return str(version).partition("+")[0] if version else "unknown"
