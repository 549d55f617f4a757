"""Which plans `verify_attention.py` tries, in what order, and what its times say of a rule; needs no GPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout without installing

from ddbench.plugins.kernels.tiles import RESERVED, Tile, splits_of
from ddbench.plugins.sglang.kernels.attention_plan import Plan, plan, programs_of, shape_of

HEADS, KV_HEADS, HEAD = 32, 8, 128  # Qwen3-8B
SPLITS = (1, 2, 4, 8, 16)
TILES = ((64, 32, 4, 2), (64, 32, 4, 3), (64, 32, 4, 4), (64, 64, 4, 3), (128, 32, 8, 4), (128, 64, 8, 3))
NOTES = (
    "Microseconds of one layer's attention of a verify pass, kernels alone; Qwen3-8B's heads, bfloat16. us: the "
    "plug-in's kernel by plan; rule: the plan that a server launches. chain_us, masked_us: SGLang's extend attention "
    "without and with the tree's mask. apart: the largest difference from the latter of any plan, outputs near 1 in "
    "bfloat16."
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Device:
    """Of a GPU: ``shared`` bytes that a program may have, ``l2`` bytes of the last cache."""

    multiprocessors: int
    shared: int
    l2: int


@dataclass(frozen=True)
class Point:
    """``batch`` windows of ``width`` tokens, each after ``context`` tokens."""

    width: int
    batch: int
    context: int


def points(widths: Sequence[int], batches: Sequence[int], contexts: Sequence[int]) -> list[Point]:
    return [Point(w, b, c) for c in contexts for w in widths for b in batches]


def shapes(width: int, shared: int) -> list[Tile]:
    """The rule's tile first, then what may beat it and fits."""
    stacked = width * HEADS // KV_HEADS
    found = [shape_of(width, HEADS, KV_HEADS, HEAD, 2, shared)]
    for m, n, warps, stages in TILES:
        if m <= max(stacked, 64):
            found.append(Tile(m, n, warps, stages))
    return list(dict.fromkeys(each for each in found if each.bytes(HEAD, 2) + RESERVED <= shared))


def tried(point: Point, device: Device) -> list[Plan]:
    """The rule's plan first, then each shape with every number of splits that may help."""
    found = [rule(point, device)]
    for tile in shapes(point.width, device.shared):
        programs = programs_of(point.batch, point.width, HEADS, KV_HEADS, tile)
        helpful = [each for each in SPLITS if each == 1 or programs * each <= 4 * device.multiprocessors]
        found += [Plan(tile, splits) for splits in helpful]
    return list(dict.fromkeys(found))


def rule(point: Point, device: Device) -> Plan:
    """What a server launches, which does not know the context."""
    sizes = (HEADS, KV_HEADS, HEAD, device.multiprocessors)
    return plan(point.width, point.batch, *sizes, element=2, shared=device.shared)


def to_compile(asked: Sequence[Point], device: Device) -> list[tuple[int, Plan]]:
    """Verify widths and plans that need a kernel of their own."""
    return list(dict.fromkeys((point.width, each) for point in asked for each in tried(point, device)))


def name_of(cut: Plan) -> str:
    tile = cut.tile
    return f"{tile.m}x{tile.n} warps {tile.warps} stages {tile.stages} splits {cut.splits}"


def copies_of(point: Point, device: Device) -> int:
    """Launches on contexts of their own, which together are twice what the last cache holds; 8 to 128."""
    return min(128, max(8, math.ceil(2 * device.l2 / (point.batch * point.context * KV_HEADS * HEAD * 4))))


def judged(rows: Sequence[Row], device: Device) -> Iterator[Row]:
    """What each shape, with splits by a policy, takes of the chain's time: geometric mean and worst, by verify width.

    A policy of ``fill`` programs a multiprocessor takes the largest number of splits in ``SPLITS`` that stays below;
    0: never splits.
    """
    for width in sorted({row["width"] for row in rows}):
        of_width = [row for row in rows if row["width"] == width]
        kept = []
        for shape in shapes(width, device.shared):
            for fill in (0, 1, 2):
                times = [row["us"].get(name_of(_with_splits(shape, fill, row, device))) for row in of_width]
                if all(time is not None for time in times):
                    ratios = [time / row["chain_us"] for time, row in zip(times, of_width, strict=True)]
                    shown = name_of(Plan(shape, 1)).rpartition(" splits")[0]
                    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                    kept.append({"width": width, "shape": shown, "fill": fill, "mean": mean, "worst": max(ratios)})
        yield from sorted(kept, key=lambda each: each["mean"])


def _with_splits(tile: Tile, fill: int, row: Row, device: Device) -> Plan:
    programs = programs_of(row["batch"], row["width"], HEADS, KV_HEADS, tile)
    room = splits_of(programs, device.multiprocessors, fill)
    return Plan(tile, max(each for each in SPLITS if each <= room))


def evidence_of(data: Row, command: str, date: str, driver: str | None, python: str) -> Row:
    """What docs/evidence keeps of a run: ``data`` is the last line that it printed."""
    versions = {"python": python, **{name: data[name] for name in ("torch", "triton", "sglang")}}
    return {
        "command": command,
        "date": date,
        "gpu": data["gpu"],
        "driver": driver,
        "versions": versions,
        "measured": {name: data[name] for name in ("verdicts", "rows", "skipped", "compile_s")},
        "notes": NOTES,
    }


def table(rows: Sequence[Row], verdicts: Sequence[Row]) -> Iterator[str]:
    """Lines of microseconds, and each width's three best shapes."""
    columns = [f"{name:>8}" for name in ("chain", "masked", "rule")]
    yield f"width batch context {' '.join(columns)} /chain     best  best plan"
    for row in rows:
        best = min(row["us"], key=row["us"].get)
        sizes = f"{row['width']:5d} {row['batch']:5d} {row['context']:7d}"
        times = f"{row['chain_us']:8.1f} {row['masked_us']:8.1f} {row['rule_us']:8.1f}"
        yield f"{sizes} {times} {row['rule_us'] / row['chain_us']:6.2f} {row['us'][best]:8.1f}  {best}"
    for width in sorted({each["width"] for each in verdicts}):
        for each in [one for one in verdicts if one["width"] == width][:3]:
            said = f"{each['shape']}, splits for {each['fill']} programs a multiprocessor"
            yield f"width {width}: {each['mean']:.3f} of the chain's time, at worst {each['worst']:.3f}: {said}"
