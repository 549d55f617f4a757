"""Which cell comes next, where several processes may work on one plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from ddbench.records import Cell, content_hash
from experiments.interrupt import Stop
from experiments.plan import Planned
from experiments.progress import counted, say
from experiments.store import RunFolder, Stamp
from runners.hosts.config import HostConfig

POLL_S = 0.5


@dataclass(frozen=True)
class Todo:
    """A cell to be run, and the seconds it was estimated at. ``seen``: how it stood when it was found to be undone."""

    planned: Planned
    seconds: float
    seen: Stamp | None = None


@dataclass(frozen=True)
class Sharing:
    """How a process shares a plan with others.

    ``by_arm``: an arm has a server of its own, so that the cells of one arm and block are best measured by one process.
    ``wait``: whether to wait for the cells that others measure.
    """

    by_arm: bool = False
    wait: bool = True

    def group(self, cell: Cell) -> str:
        """Cells of one group share a start of the engine."""
        return content_hash([asdict(cell.arm), cell.block]) if self.by_arm else cell.cell_id


def turns(
    todo: Sequence[Todo],
    folder: RunFolder,
    sharing: Sharing,
    stop: Stop,
    elsewhere: Callable[[], None] = lambda: None,
    idle: Callable[[], None] = lambda: None,
) -> Iterator[Todo]:
    """The cells of ``todo`` that fall to this process, each claimed for as long as it is the caller's.

    Order: as listed, but groups that another process is at come last. A cell that another process finished meanwhile is
    left out, and ``elsewhere`` is told. When all that is left is with others, ``idle`` is called once, and then this
    waits until they are done, or dead. Ends early where ``stop`` was asked.
    """
    left = list(todo)
    told = False
    while left and stop.asked is None:
        taken = _take(left, folder, sharing)
        if taken is not None:
            left.remove(taken)
            if _done(taken, folder):
                elsewhere()
            else:
                yield taken
            folder.claims.release(taken.planned.cell.cell_id)
            continue
        done = [item for item in left if _done(item, folder)]
        for item in done:
            left.remove(item)
            elsewhere()
        if not left:
            return
        who = _who(left, folder)
        if who is not None and not told:
            told = True
            idle()
            then = "waiting for the end of it" if sharing.wait else "faults.wait=false, so this process ends"
            say(f"{counted(len(left), 'cell')} left, claimed by {who}; {then}")
        if who is not None and not sharing.wait:
            return
        time.sleep(POLL_S)


def _done(item: Todo, folder: RunFolder) -> bool:
    """Whether somebody has finished the cell since it was found to be undone."""
    cell = item.planned.cell
    return folder.stamp(cell) != item.seen and folder.status(cell) is not None


def placed(host: HostConfig, device: str, worker: int, gpus_each: int) -> HostConfig:
    """The host as the ``worker``-th of several processes uses it: its ``gpus`` begin with those that fall to it.

    Only where ``engine.device`` is ``cuda``, whichever comes first; ``cuda:<index>`` is one and the same for all.
    """
    if not host.gpus or device != "cuda":
        return host
    first = worker * gpus_each % len(host.gpus)
    return replace(host, gpus=host.gpus[first:] + host.gpus[:first])


def _take(left: Sequence[Todo], folder: RunFolder, sharing: Sharing) -> Todo | None:
    """The first cell that can be claimed, of a group where nobody else is at work if there is one."""
    others = folder.claims.others()
    busy = {claim.group for claim in others.values()}
    groups = {item.planned.cell.cell_id: sharing.group(item.planned.cell) for item in left}
    free = [item for item in left if item.planned.cell.cell_id not in others]
    ordered = sorted(free, key=lambda item: groups[item.planned.cell.cell_id] in busy)
    for item in ordered:
        cell_id = item.planned.cell.cell_id
        if folder.claims.take(cell_id, groups[cell_id]):
            return item
    return None


def _who(left: Sequence[Todo], folder: RunFolder) -> str | None:
    """The processes that have these cells, in words; None where they have been given up meanwhile."""
    claims = folder.claims.others()
    held = [claims[each.planned.cell.cell_id] for each in left if each.planned.cell.cell_id in claims]
    names = {f"process {claim.owner.pid} on {claim.owner.host}" for claim in held if claim.owner is not None}
    unread = any(claim.owner is None for claim in held)  # its file is damaged, or is being written
    return ", ".join([*sorted(names), *(["a process that its claim does not name"] if unread else [])]) or None
