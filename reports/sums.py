"""Requests to what is resampled: sums by block and prompt, of one arm or of two arms side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from reports.quantities import Floats, Quantity
from reports.statistics import Estimate, intervals


@dataclass(frozen=True)
class Sums:
    """``values`` [blocks, prompts, terms]; prompts are named in sorted order.

    ``one_clock``: the requests of a block shared their rounds, so that their times are one observation.
    """

    prompts: tuple[str, ...]
    values: Floats
    one_clock: bool

    def among(self, prompts: Collection[str]) -> Sums:
        """The same of some prompts alone."""
        kept = [i for i, name in enumerate(self.prompts) if name in prompts]
        return Sums(tuple(self.prompts[i] for i in kept), self.values[:, kept], self.one_clock)

    def pooled(self) -> Sums:
        """All blocks as one."""
        return Sums(self.prompts, self.values.sum(axis=0, keepdims=True), self.one_clock)

    def timed(self, *quantities: Quantity) -> list[Estimate]:
        """Quantities into which clocks enter, with their intervals; a point without a bar says which n is 1."""
        estimates = intervals(self.values, quantities, self.one_clock)
        bare = self.one_clock and self.values.shape[0] == 1
        return [each.without_bar("n = 1 block") if bare and each.value is not None else each for each in estimates]

    def counted(self, *quantities: Quantity) -> list[Estimate]:
        """Quantities of counts alone, each prompt's own however it was batched."""
        return intervals(self.values, quantities)

    def mixed(self, timed: Sequence[Quantity], counted: Sequence[Quantity]) -> tuple[list[Estimate], list[Estimate]]:
        """Both kinds, in one pass where one serves both."""
        if self.one_clock:
            return self.timed(*timed), self.counted(*counted)
        both = self.counted(*timed, *counted)
        return both[: len(timed)], both[len(timed) :]


def by_block_and_prompt(prompts: Sequence[str], blocks: Sequence[int], terms: Floats, one_clock: bool) -> Sums:
    """Sums ``terms`` [requests, terms] over the requests of each prompt in each block; 0 where there is none."""
    names, which = np.unique(np.asarray(prompts, dtype=str), return_inverse=True)
    indices, block = np.unique(np.asarray(blocks, dtype=np.int64), return_inverse=True)
    values = np.zeros((len(indices), len(names), terms.shape[1]))
    np.add.at(values, (block, which), terms)
    return Sums(tuple(str(name) for name in names), values, one_clock)


def beside(first: Sums, second: Sums) -> Sums:
    """Two arms on the same prompts and blocks: the terms of the second follow those of the first."""
    return Sums(
        first.prompts, np.concatenate([first.values, second.values], axis=2), first.one_clock or second.one_clock
    )
