"""What is different where Hydra starts the jobs: what it writes itself, its launchers, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from ddbench.errors import ConfigError
from ddbench.redaction import said_secret

# Launchers whose jobs are processes of this terminal, by their classes: Ctrl-C reaches each of them.
BESIDE = ("JoblibLauncher", "LocalLauncher")

_ended: list[int] = []  # the exit status of a job of this process that a signal ended


class Refused(BaseException):
    """A command line that is not to begin: the text is one line. No Exception, since Hydra only warns of those."""


class Stopped(BaseException):
    """A signal ended a job, and no other is to begin; ``code`` is its exit status. No Exception, as above."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


class Door(Callback):
    """What is seen to before Hydra writes or starts anything; both raise Refused."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """A launcher that was asked for starts nothing in a single run."""
        for word in sys.argv[1:]:
            group, name = word.partition("=")[::2]
            if group in ("launcher", "hydra/launcher") and name not in ("none", "basic"):
                allowed = "none, or --multirun with it: `python -m ddbench --multirun launcher=... worker=0,1 ...`"
                raise Refused(str(ConfigError(group, name, allowed)))

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """No secret in the section that Hydra stores in clear. Ctrl-C is left to jobs that are processes beside this.

        The first one lets each of them finish its cell; this process only waits for them. They inherit that it is
        ignored, and take it up themselves while they measure.
        """
        section: Any = OmegaConf.to_container(config.hydra, resolve=False)
        last = ("overrides", "job")  # where the command line is repeated
        section = {key: section[key] for key in sorted(section, key=lambda key: (key in last, key == last[0]))}
        found = said_secret(section, "hydra")
        if found is not None:
            allowed = "no secret: Hydra stores its section in multirun.yaml; jobs get yours from the environment"
            raise Refused(str(ConfigError(found, "(not shown)", allowed)))
        launcher = str(section["launcher"].get("_target_")).rpartition(".")[2]
        if launcher in BESIDE and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def ended() -> int | None:
    """The exit status of a job of this process that a signal ended: none is to begin after it."""
    return _ended[0] if _ended else None


def note_end(code: int) -> None:
    """Remembers that a signal ended a job."""
    _ended.append(code)
