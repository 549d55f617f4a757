"""What a policy is told of a round, gathered on the device and copied to the host while the round goes on.

`Offers` is part of the drafter's graph: the drafter's probability of each row's tree by budget, by depth, and on or off
its own chain. `Sightings` copies it into page-locked memory behind the round, with the path that was taken, and hands
over what has arrived: the host never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.options import Sizes

Array = NDArray[Any]

AHEAD = 4  # rounds whose copies may be under way; with overlap it is two


class Offers:
    """Attributes, D = B - 1 depths:

    mass: float32 ``[R, budgets, 2, D]``, the sum of the drafter's probabilities over the nodes of each budget's tree,
        off (0) and on (1) its own chain (`ddbench.adaptive.policy`, one row's).
    chain: int32 ``[R, N]``, 1 for a node on that chain.
    """

    def __init__(self, ops: Any, rows: int, sizes: Sizes, budgets: tuple[int, ...], device: torch.device | str) -> None:
        """``budgets``: nodes, ascending, the last one of all nodes."""
        depth, nodes = sizes.block - 1, sizes.verify_width - 1
        self._ops = ops
        self.mass = torch.zeros((rows, len(budgets), 2, depth), dtype=torch.float32, device=device)
        self.chain = torch.zeros((rows, sizes.verify_width), dtype=torch.int32, device=device)
        self._scores = torch.full((rows, sizes.verify_width), float("-inf"), dtype=torch.float32, device=device)
        self._steps = torch.arange(1, depth + 1, dtype=torch.int32, device=device)
        place = torch.arange(nodes, device=device)
        self._inside = (place < torch.tensor(budgets, device=device)[:, None]).float()  # [budgets, nodes]

    def measure(self, trees: Trees, log_probs: Tensor, ids: Tensor) -> None:
        """Of trees that were just built of these candidates, ``[R, B - 1, K]``."""
        rows = log_probs.shape[0]
        self._ops.weigh(trees, log_probs, ids, self._scores, self.chain)
        chance = self._scores[:rows, 1:].exp()
        on = self.chain[:rows, 1:].float()
        parts = torch.stack((chance * (1.0 - on), chance * on), dim=1)  # [R, 2, nodes]
        weights = parts[:, None] * self._inside[:, None]  # [R, budgets, 2, nodes]
        deep = (trees.depths[:rows, 1:, None] == self._steps).float()  # [R, nodes, D]
        self.mass[:rows].copy_(torch.matmul(weights.flatten(1, 2), deep).view_as(self.mass[:rows]))


@dataclass(frozen=True)
class Sighting:
    """A round that is over, on the host; ``width`` was verified. ``mass`` and ``chain`` as `Offers`, ``path`` as
    `Walk` has them."""

    width: int
    context: float
    mass: Array
    path: Array
    chain: Array


class Sightings:
    """The last rounds, oldest first. One that is not fetched before `AHEAD` more have come is forgotten."""

    def __init__(self, offers: Offers, block: int) -> None:
        self._offers = offers
        self._slots = [_Slot(offers, block) for _ in range(AHEAD)]
        self._under_way: deque[_Slot] = deque()
        self._next = 0

    def add(self, rows: int, width: int, context: float, walk: Walk) -> None:
        """Starts the copies of a round that was just walked."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % AHEAD
        if len(self._under_way) == AHEAD:
            self._under_way.popleft()
        slot.fill(self._offers, rows, width, context, walk)
        self._under_way.append(slot)

    def arrived(self) -> Iterator[Sighting]:
        """What has arrived since the last call, without waiting for more."""
        while self._under_way and self._under_way[0].there():
            yield self._under_way.popleft().read()


class _Slot:
    """Host memory for one round, page-locked where there is a GPU."""

    def __init__(self, offers: Offers, block: int) -> None:
        device = offers.mass.device
        locked = device.type == "cuda"
        self._event: Any = _event() if locked else None
        self._mass = torch.zeros(offers.mass.shape, dtype=torch.float32, pin_memory=locked)
        self._chain = torch.zeros(offers.chain.shape, dtype=torch.int32, pin_memory=locked)
        self._path = torch.zeros((offers.mass.shape[0], block), dtype=torch.int32, pin_memory=locked)
        self._rows, self._width, self._context = 0, 0, 0.0

    def fill(self, offers: Offers, rows: int, width: int, context: float, walk: Walk) -> None:
        self._rows, self._width, self._context = rows, width, context
        self._mass[:rows].copy_(offers.mass[:rows], non_blocking=True)
        self._chain[:rows].copy_(offers.chain[:rows], non_blocking=True)
        self._path[:rows].copy_(walk.path[:rows], non_blocking=True)
        if self._event is not None:
            self._event.record()

    def there(self) -> bool:
        return self._event is None or bool(self._event.query())

    def read(self) -> Sighting:
        rows = self._rows
        parts = (np.array(part[:rows].numpy()) for part in (self._mass, self._path, self._chain))
        return Sighting(self._width, self._context, *parts)


def _event() -> Any:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
