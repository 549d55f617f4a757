"""Gaps between the target's two best tokens, for the losslessness ledger: where they are gathered, and what fits.

The baseline's first answers are what the ledger holds others against, hence one block and one repeat of the
autoregressive arm at temperature 0 is all that needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddbench.records import Cell
from runners.base import ServerSpec

Gaps = list[float | None]


def wanted(spec: ServerSpec, cell: Cell) -> bool:
    """Whether a cell is followed by a pass that gathers them, for its first repeat."""
    return spec.gaps and cell.arm.strategy == "autoregressive" and cell.temperature == 0 and cell.block == 0


def of_another_run(output_ids: Sequence[int], again: Sequence[int], gaps: Sequence[float | None]) -> Gaps | None:
    """Gaps of a measured output from a run that was repeated for them; None where nothing fits.

    A gap belongs to what stood before it. Those up to the first token in which the runs differ, this one included, have
    the same tokens before them; what follows is another text, and null.
    """
    if not output_ids or len(gaps) != len(again):
        return None
    same = next((i for i, (a, b) in enumerate(zip(output_ids, again, strict=False)) if a != b), len(again))
    known = list(gaps[: min(same + 1, len(output_ids))])
    return [*known, *([None] * (len(output_ids) - len(known)))]
