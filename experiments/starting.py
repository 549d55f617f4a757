"""The first start of an engine, tried again where it does not come up, and waited for where it finds no GPU free."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from experiments.attempts import BUSY_S
from experiments.diagnosis import INFRASTRUCTURE
from experiments.interrupt import Stop
from experiments.outage import Outage
from experiments.progress import duration, warn
from experiments.settings import FaultSettings
from runners import out_of_memory
from runners.base import EngineFailure, Runner
from runners.hosts import HostFailure

T = TypeVar("T")


def answered(question: Callable[[], T], faults: FaultSettings, outage: Outage) -> T:
    """The answer to what is asked of a host before anything starts; again where the host is lost meanwhile.

    Raises:
        HostAway: it does not come back.
        HostFailure: it was lost at every try.
    """
    tries = max(2, faults.retries + 1)
    for number in range(2, tries + 2):
        try:
            return question()
        except HostFailure as failure:
            outage.wait(Stop())
            if number > tries:
                raise
            warn(f"{failure}; try {number} of {tries}")
    raise AssertionError("a try returns or raises")


def started(runner: Runner, faults: FaultSettings, outage: Outage | None = None) -> dict[str, Any]:
    """Starts a runner, ``faults.retries`` times more at most; returns facts of it.

    A host that is gone is waited for. So is a GPU that another engine holds, which is no try.

    Raises:
        HostAway: it does not come back.
        ConfigError: what the runner refuses.
        EngineFailure: it did not come up, or has too little memory.
    """
    outage = outage or Outage()
    tries = faults.retries + 1
    number, told, until = 1, False, time.monotonic() + faults.gpu_wait_s
    while True:
        try:
            return runner.start()
        except EngineFailure as error:
            if error.kind == "busy" and time.monotonic() < until:
                if not told:
                    told = True
                    warn(f"{error}; waiting for it, {duration(faults.gpu_wait_s)} at most (faults.gpu_wait_s)")
                time.sleep(BUSY_S)
                continue
            if outage.wait(Stop()):
                tries = max(2, tries)
            elif error.kind not in INFRASTRUCTURE or out_of_memory.find(str(error)) is not None:
                raise
            number += 1
            if number > tries:
                raise
            warn(f"{error}; try {number} of {tries}")
            time.sleep(faults.retry_wait_s)
