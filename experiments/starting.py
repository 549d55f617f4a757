"""The first start of an engine, tried again where it does not come up."""

from __future__ import annotations

import time
from typing import Any

from experiments.diagnosis import INFRASTRUCTURE
from experiments.interrupt import Stop
from experiments.outage import Outage
from experiments.progress import warn
from experiments.settings import FaultSettings
from runners import out_of_memory
from runners.base import EngineFailure, Runner


def started(runner: Runner, faults: FaultSettings, outage: Outage | None = None) -> dict[str, Any]:
    """Starts a runner, ``faults.retries`` times more at most; returns facts of it. A host that is gone is waited for.

    Raises:
        HostAway: it does not come back.
        ConfigError: what the runner refuses.
        EngineFailure: it did not come up, or has too little memory.
    """
    outage = outage or Outage()
    tries = faults.retries + 1
    number = 1
    while True:
        try:
            return runner.start()
        except EngineFailure as error:
            if outage.wait(Stop()):
                tries = max(2, tries)
            elif error.kind not in INFRASTRUCTURE or out_of_memory.find(str(error)) is not None:
                raise
            number += 1
            if number > tries:
                raise
            warn(f"{error}; try {number} of {tries}")
            time.sleep(faults.retry_wait_s)
