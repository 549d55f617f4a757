"""The requests in flight: which sequence holds which row, what it has emitted, and when a row is freed and refilled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddbench.decoding.api import FinishReason, Generation, Request, Round


@dataclass
class Active:
    """A request in flight: ``length`` tokens are in the cache, the newest emitted one stands at position ``length``."""

    index: int
    request: Request
    start_s: float
    length: int = 0
    output: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    first_token_s: float = 0.0
    finish_s: float = 0.0
    finish_reason: FinishReason | None = None

    def emit(self, tokens: Sequence[int], now: float) -> int:
        """Adds ``tokens`` up to a stop token or the request's length; returns how many were kept."""
        kept = 0
        for token in tokens:
            self.output.append(token)
            kept += 1
            if token in self.request.stop_ids:
                self.finish_reason = "stop"
            elif len(self.output) == self.request.max_new_tokens:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                self.finish_s = now
                break
        return kept

    def generation(self) -> Generation:
        assert self.finish_reason is not None
        return Generation(
            request=self.request,
            output_token_ids=tuple(self.output),
            rounds=tuple(self.rounds),
            start_s=self.start_s,
            first_token_s=self.first_token_s,
            finish_s=self.finish_s,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.request.token_ids),
        )


@dataclass(frozen=True)
class Move:
    """Row ``source`` takes the place of row ``target``: ``length`` cached tokens go with it."""

    source: int
    target: int
    length: int


class Batch:
    """At most ``size`` requests in flight; row ``r`` of every buffer belongs to ``active[r]``."""

    def __init__(
        self,
        requests: Sequence[Request],
        size: int,
        now: Callable[[], float],
        on_finish: Callable[[Generation], None] | None,
    ) -> None:
        self.active: list[Active] = []
        self.now = now
        self._size = size
        self._waiting = deque(enumerate(requests))
        self._on_finish = on_finish
        self._done: dict[int, Generation] = {}

    def admit(self) -> list[Active]:
        """Takes waiting requests into the free rows, in order; they are the last of ``active``."""
        count = min(self._size - len(self.active), len(self._waiting))
        start = self.now()
        newcomers = [Active(*self._waiting.popleft(), start_s=start) for _ in range(count)]
        self.active += newcomers
        return newcomers

    def retire(self) -> list[Move]:
        """Reports finished sequences and frees their rows, the last row moving into each gap."""
        moves = []
        for row in reversed(range(len(self.active))):
            finished = self.active[row]
            if finished.finish_reason is None:
                continue
            self._done[finished.index] = finished.generation()
            last = len(self.active) - 1
            if row != last:
                self.active[row] = self.active[last]
                moves.append(Move(last, row, self.active[row].length))
            self.active.pop()
            if self._on_finish is not None:
                self._on_finish(self._done[finished.index])
        return moves

    def results(self) -> list[Generation]:
        """All generations in the order of the requests."""
        return [self._done[index] for index in sorted(self._done)]
