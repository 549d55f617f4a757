"""The first start of an engine, tried again where it does not come up."""

from __future__ import annotations

import time
from typing import Any

from experiments.diagnosis import INFRASTRUCTURE
from experiments.progress import warn
from experiments.settings import FaultSettings
from runners import out_of_memory
from runners.base import EngineFailure, Runner


def started(runner: Runner, faults: FaultSettings) -> dict[str, Any]:
    """Starts a runner, ``faults.retries`` times more at most; returns facts of it.

    Raises:
        ConfigError: what the runner refuses.
        EngineFailure: it did not come up, or has too little memory.
    """
    tries = faults.retries + 1
    for number in range(2, tries + 1):
        try:
            return runner.start()
        except EngineFailure as error:
            if error.kind not in INFRASTRUCTURE or out_of_memory.find(str(error)) is not None:
                raise
            warn(f"{error}; try {number} of {tries}")
            time.sleep(faults.retry_wait_s)
    return runner.start()
