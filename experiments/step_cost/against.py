"""A cost file against what was measured apart: round times and tokens/s at a pinned acceptance of evidence programs, or
the points of another cost file.

Nothing of these went into the fit, but for a cost file that was itself taken from the same round times. Errors are
relative, told / measured - 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddbench.cost import CostModel, Fit, cost_from, inside, late_steps, prefill_of
from ddbench.cost.loop import Requests, closed_loop
from ddbench.errors import ConfigError
from experiments.step_cost.evidence import COUNTED, PROMPT, known, rows_of
from experiments.step_cost.fleets import check_dummy_cost
from experiments.step_cost.settings import STRATEGIES
from experiments.step_cost.whole_rounds import whole_rounds

ROUND = re.compile(r"(autoregressive|dflash|ddtree)(?:_(\d+))?")
SPEED = re.compile(r"(autoregressive|dflash|ddtree)(?:_(\d+)_nodes)?")
KEY = "step_cost.against"
EVIDENCE = "an evidence file of round times or pinned speeds"
DTYPE = "bfloat16"  # of all evidence of the engines' speed
CHAIN = 16  # verify width of the evidence's pinned chain


@dataclass(frozen=True)
class Told:
    """One measured number and what the cost file says of it; ``what``: ``round_ms`` or ``tokens_per_s``.

    ``fitted``: the cost file has points of this kind at this verify width, so that only their repeats are held against
    it. ``context``: committed tokens of a sequence in a round, None of a speed.
    """

    what: str
    kind: str
    verify_width: int
    batch: int
    measured: float
    told: float
    error: float
    inside: bool
    fitted: bool
    context: float | None = None


def against(cost: CostModel, place: str) -> list[Told]:
    """All numbers of an evidence file that the cost file tells, or the round times of another cost file.

    Raises:
        ConfigError: no such file, one of another engine, version, precision, GPU or model, or one without such numbers.
    """
    held = _held(place)
    if isinstance(held, CostModel):
        found = list(_points(cost, held))
    else:
        measured = _measured(cost, held, place, KEY)
        found = [*_rounds(cost, measured.get("round_ms") or {}), *_speeds(cost, measured)]
    if not found:
        wanted = f"a file with round times or pinned speeds of what was measured: {', '.join(cost.fits)}"
        raise ConfigError(KEY, place, wanted)
    return found


def check_engine(engine: str, place: str) -> None:
    """Before anything is measured on an engine: :func:`against` would not take a file of another for it.

    Raises:
        ConfigError: no such file, or none with times of that engine.
    """
    held = _held(place)
    told = {held.fingerprint.get("engine")} if isinstance(held, CostModel) else {*held["versions"]}
    if engine not in told:
        allowed = f"an evidence file or a cost file of {engine}, which is to be measured"
        raise ConfigError(KEY, place, allowed)


def _held(place: str) -> CostModel | dict[str, Any]:
    """The file, read once: a cost file by what those alone have, so that a damaged one is called what it is.

    Raises:
        ConfigError: no file, none that can be read, or neither of the two.
    """
    data = _read(place, KEY, f"{EVIDENCE}, or a cost file")
    if isinstance(data, dict) and "kinds" in data:
        return cost_from(data, place)
    return _evidence(data, place, KEY)


def _read(place: str, key: str, allowed: str) -> Any:
    try:
        return json.loads(Path(place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(key, place, allowed) from None


def _evidence(data: Any, place: str, key: str) -> dict[str, Any]:
    """Raises ConfigError for what is no evidence file's."""
    parts = ("measured", "versions")
    if isinstance(data, dict) and all(isinstance(data.get(part), dict) for part in parts):
        return data
    raise ConfigError(key, place, EVIDENCE)


def measured_of(cost: CostModel, place: str, key: str) -> dict[str, Any]:
    """What an evidence file of the cost's own setup measured; ``key`` of the configuration names the file.

    Raises:
        ConfigError: no such file, or one of another engine, version, precision, GPU or model.
    """
    return _measured(cost, _evidence(_read(place, key, EVIDENCE), place, key), place, key)


def _measured(cost: CostModel, data: dict[str, Any], place: str, key: str) -> dict[str, Any]:
    """:func:`measured_of`, of a file that was read."""
    versions = data["versions"]
    engine, gpu = cost.fingerprint.get("engine", "unknown"), cost.fingerprint.get("device")
    if engine not in versions or data.get("gpu") != gpu:
        raise ConfigError(key, place, f"an evidence file of {engine} on {gpu}, as the cost file is")
    _same_build(cost, engine, known(versions[engine]), place, key)
    check_dummy_cost(cost.fingerprint, key, place)
    found: dict[str, Any] = data["measured"]
    return found


def _same_build(cost: CostModel, engine: str, version: str, place: str, key: str) -> None:
    """Evidence is of bfloat16 and of the engine's version that it names; an error of another is none of the fit."""
    told, dtype = (cost.fingerprint.get(name, "unknown") for name in ("engine_version", "dtype"))
    if not f"{told} ".startswith(f"{engine} {version} "):
        raise ConfigError(key, f"{place}, {engine} {version}", f"an evidence file of {told}")
    if dtype != DTYPE:
        raise ConfigError(key, f"{place}, {DTYPE}", f"an evidence file of {dtype}, as the cost file is")


def summary(found: list[Told]) -> dict[str, Any]:
    """Errors without sign by what they are of, those inside the measured ranges alone: median, worst, n.

    ``fitted_widths``: at verify widths that the fit has seen; ``other_widths``: at those that it has not; ``all``.
    None where there is no such number.
    """
    result: dict[str, Any] = {}
    for what in dict.fromkeys(each.what for each in found):
        mine = [each for each in found if each.what == what and each.inside]
        if mine:
            result[what] = {
                "fitted_widths": _spread([each for each in mine if each.fitted]),
                "other_widths": _spread([each for each in mine if not each.fitted]),
                "all": _spread(mine),
            }
    return result


def _spread(found: list[Told]) -> dict[str, float] | None:
    if not found:
        return None
    errors = np.abs([each.error for each in found])
    return {"median": round(float(np.median(errors)), 4), "worst": round(float(errors.max()), 4), "n": len(errors)}


def _fitted(cost: CostModel, kind: str, width: int) -> bool:
    return any(point.verify_width == width for point in cost.points.get(kind, ()))


def to_rows(found: list[Told]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


def _rounds(cost: CostModel, times: dict[str, Any]) -> Iterator[Told]:
    for arm, batch, row in rows_of(times):
        named = ROUND.fullmatch(arm)
        if named is None or named[1] not in cost.fits or row.get("steady") is False:
            continue
        width = int(named[2] or 1)
        if named[1] == "dflash" and width > CHAIN:
            continue  # drafts a longer block
        measured = float(row["ms"] if "ms" in row else row["median"])
        yield _round(cost, named[1], width, batch, PROMPT + COUNTED, measured)


def _points(cost: CostModel, other: CostModel) -> Iterator[Told]:
    """The points of another cost file of the same setup. Its build may differ: evidence files name none either."""
    theirs = {name: value for name, value in other.fingerprint.items() if name != "build"}
    own = {name: value for name, value in cost.fingerprint.items() if name == "build"}
    cost.check(theirs | own, KEY)
    for kind in (kind for kind in STRATEGIES if kind in cost.fits):
        for point in other.points.get(kind, ()):
            yield _round(cost, kind, point.verify_width, point.batch, point.context, point.ms)


def _round(cost: CostModel, kind: str, width: int, batch: int, context: float, measured: float) -> Told:
    told = float(cost.step_ms(kind, width, batch, context, extrapolate=True))
    within, fitted = inside(cost.fit(kind), width, batch, context), _fitted(cost, kind, width)
    return Told("round_ms", kind, width, batch, measured, told, told / measured - 1, within, fitted, context)


def pinned_speeds(measured: Mapping[str, Any]) -> Iterator[tuple[str, int, int, float, float]]:
    """Kind of step, verify width, batch size, pinned length of a round, and the tokens a second that were measured."""
    from experiments.sglang_evidence.synthetic import LENGTHS

    own = measured.get("tokens_per_s") if measured.get("synthetic") else None  # of one shard's own file
    for arm, batch, row in rows_of(measured.get("tokens_per_s_synthetic") or own or {}):
        named = SPEED.fullmatch(arm)
        if named is not None:
            width = {"autoregressive": 1, "dflash": CHAIN}.get(named[1]) or int(named[2]) + 1
            yield named[1], width, batch, LENGTHS.get(arm, 1.0), float(row["median"])


def loop_speed(cost: CostModel, fit: Fit, width: int, batch: int, rounds: Mapping[int, float], late: int) -> float:
    """Tokens a second of a closed loop of twice as many prompts as are in flight, all of as many ``rounds`` (to their
    probability); ``late``: as :func:`ddbench.cost.loop.closed_loop` has it."""
    from experiments.sglang_evidence.synthetic import OUTPUT

    count, span = 2 * batch, 0.0
    for number, chance in rounds.items():
        asked = Requests(np.full(count, PROMPT), np.full(count, OUTPUT), np.full(count, number))
        span += chance * float(closed_loop(asked, batch, fit, width, prefill_of(cost), late).finish.max())
    return 1e3 * count * OUTPUT / span


def _speeds(cost: CostModel, measured: dict[str, Any]) -> Iterator[Told]:
    """Closed loops whose rounds emit the pinned length on average."""
    from experiments.sglang_evidence.synthetic import OUTPUT

    for kind, width, batch, length, speed in pinned_speeds(measured):
        if kind in cost.fits:
            fit, rounds = cost.fit(kind), whole_rounds(length, OUTPUT - 1)
            told = loop_speed(cost, fit, width, batch, rounds, late_steps(cost))
            within = inside(fit, width, batch, PROMPT + OUTPUT / 2)
            error, fitted = told / speed - 1, _fitted(cost, kind, width)
            yield Told("tokens_per_s", kind, width, batch, speed, told, error, within, fitted)
