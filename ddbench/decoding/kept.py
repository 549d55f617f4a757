"""A target and a proposer that outlive a decode, so that the next one of the same sizes replays the graphs of the last.

Graphs belong to the cache that they were captured over. Without this each call of :func:`ddbench.decoding.decode` makes
a cache of its own and captures anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ddbench.decoding.api import Strategy
from ddbench.decoding.pair import ModelPair
from ddbench.decoding.proposal import Proposer
from ddbench.decoding.target import Target


@dataclass(frozen=True)
class Sizes:
    """What a target is made for: ``rows`` sequences of at most ``length`` tokens."""

    pair: ModelPair
    strategy: Strategy
    rows: int
    length: int

    def same(self, other: Sizes) -> bool:
        """Whether graphs made for one do for the other, at the same cost in time and memory."""
        return self.pair is other.pair and self._numbers == other._numbers

    @property
    def _numbers(self) -> tuple[Strategy, int, int]:
        return self.strategy, self.rows, self.length


class KeptGraphs:
    """Give it to :func:`ddbench.decoding.decode` as ``graphs``: what was captured is kept for the next decode.

    Holds at most one target with its cache; one of other :class:`Sizes` takes its place. The model is free of hooks
    between two decodes. A decode that ends with an error leaves nothing behind.

    ``room``: tokens of a sequence, prompt and output, that a cache is made for at least: decodes of shorter texts then
    have the same sizes.
    """

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self._sizes: Sizes | None = None
        self._held: tuple[Target, Proposer | None] | None = None

    @contextmanager
    def bound(
        self, sizes: Sizes, make: Callable[[], tuple[Target, Proposer | None]]
    ) -> Iterator[tuple[Target, Proposer | None]]:
        """The held target with its proposer if its sizes are these, else what ``make`` makes."""
        if self._held is None or self._sizes is None or not self._sizes.same(sizes):
            self.release()
            self._held, self._sizes = make(), sizes
        target, proposer = self._held
        target.hook()
        try:
            yield target, proposer
        except BaseException:
            self.release()
            raise
        finally:
            target.unhook()

    def release(self) -> None:
        """Destroys the graphs and lets go of target and caches."""
        if self._held is not None:
            self._held[0].close()
        self._held = self._sizes = None
