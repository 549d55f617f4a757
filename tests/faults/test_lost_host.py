"""A host that goes away under a sweep, by a real ssh server on loopback: waited for, and no cell fails for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "runners" / "hosts"))

from ssh_servers import SshServer

from ddbench.errors import Broken
from ddbench.records import Arm, Cell
from experiments import outage as outages
from experiments.attempts import repeated
from experiments.cells import Rules, run_cells
from experiments.interrupt import Stop
from experiments.outage import HostAway, Outage
from experiments.plan import Planned
from experiments.progress import Progress, warn
from experiments.settings import FaultSettings
from experiments.starting import answered, started
from experiments.store import RunFolder
from experiments.turns import Todo
from runners.base import CellJob, CellOutcome
from runners.hosts import HostFailure, host_of

ARM = Arm("reference", "1", "autoregressive", None, None, None, False, None, "m", "t", None, None, None, "local", {})
CELLS = [Cell(ARM, "w", "h", 1, 1, 6, 0.0, 1.0, 0, 0, 1, block) for block in range(3)]
FAULTS = FaultSettings(retries=0, retry_wait_s=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    with SshServer(tmp_path / "sshd") as made:
        yield made


class Engine:
    """Asks the host for every cell; ``before`` is called with the number of the try, from 1."""

    def __init__(self, outage: Outage, before: Callable[[int], None]) -> None:
        self.outage, self.before, self.tries = outage, before, 0

    def start(self) -> dict[str, object]:
        return {}

    def stop(self) -> None:
        pass

    def run_cell(self, job: CellJob, _: object) -> CellOutcome:
        self.tries += 1
        self.before(self.tries)
        assert self.outage.host is not None
        host_of(self.outage.host).run(["true"])
        return CellOutcome("unsupported", "it has no tables")


def swept(folder: RunFolder, engine: Engine) -> None:
    folder.cells.mkdir(parents=True, exist_ok=True)
    rules = Rules(0, False, FAULTS, outage=engine.outage)
    todo = [Todo(Planned(cell, None), 1.0, folder.stamp(cell)) for cell in CELLS if folder.status(cell) is None]
    run_cells(todo, engine, folder, rules, Progress([1.0] * len(todo)))  # type: ignore[arg-type]


@pytest.fixture
def back_soon(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server comes back shortly after it has been missed."""

    def missed(text: str) -> None:
        warn(text)
        threading.Timer(0.2, server.start).start()

    monkeypatch.setattr(outages, "warn", missed)


@pytest.mark.usefixtures("back_soon")
def test_a_short_outage_pauses_the_sweep(server: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outage = Outage(server.config(), 30.0)

    def before(tries: int) -> None:
        if tries == 2:
            server.kill()

    folder = RunFolder(tmp_path / "run")
    engine = Engine(outage, before)
    swept(folder, engine)
    assert engine.tries == 4
    assert folder.counts() == {"ok": 0, "unsupported": 3, "failed": 0, "suspect": 0}
    said = capsys.readouterr().err
    assert said.count("waiting for the host, 30 s at most") == 1
    assert said.count("the host answers again") == 1


def test_a_long_one_ends_it_and_leaves_the_rest_unmeasured(server: SshServer, tmp_path: Path) -> None:
    outage = Outage(server.config(), 1.2)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(HostAway, match=r"did not come back in 1 s .*cannot be reached"):
        swept(folder, Engine(outage, lambda tries: server.kill() if tries == 2 else None))
    folder.close()
    assert folder.counts() == {"ok": 0, "unsupported": 1, "failed": 0, "suspect": 0}
    server.start()
    swept(RunFolder(folder.path), Engine(outage, lambda _: None))
    assert folder.counts()["unsupported"] == 3


def test_a_cell_that_is_lost_at_every_try_is_left_unmeasured(server: SshServer, tmp_path: Path) -> None:
    def before(tries: int) -> None:
        if tries in (2, 3):
            raise HostFailure("the ssh connection was lost")

    folder = RunFolder(tmp_path / "run")
    with pytest.raises(HostAway, match="1 cell lost with the host at every try"):
        swept(folder, Engine(Outage(server.config()), before))
    assert folder.counts() == {"ok": 0, "unsupported": 2, "failed": 0, "suspect": 0}


def test_whatever_fails_without_a_host_is_lost(server: SshServer, tmp_path: Path) -> None:
    outage = Outage(server.config(), 0.0)
    server.kill()
    with pytest.raises(HostAway):
        repeated(CELLS[0], RunFolder(tmp_path), lambda *_: CellOutcome("failed", "no answer"), FAULTS, Stop(), outage)


def test_a_pause_is_spoken_of_now_and_then(
    server: SshServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once a minute: here, a minute is 0.4 s, and the host is called every tenth of one."""
    assert (outages.SAID_S, outages.FIRST_POLL_S, outages.LONGEST_POLL_S) == (60.0, 1.0, 30.0)
    for name, seconds in (("SAID_S", 0.4), ("FIRST_POLL_S", 0.04), ("LONGEST_POLL_S", 0.04)):
        monkeypatch.setattr(outages, name, seconds)
    server.kill()
    began = time.monotonic()
    threading.Timer(1.6, server.start).start()
    assert Outage(server.config(), 30.0).wait(Stop())
    took = time.monotonic() - began
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("the host has been away for ")]
    assert 1 <= len(lines) <= took / 0.4
    assert all("cannot be reached" in line for line in lines)
    assert said.count("waiting for the host") == said.count("the host answers again") == 1


@pytest.mark.usefixtures("back_soon")
def test_an_outage_at_the_first_start_is_waited_for(server: SshServer, capsys: pytest.CaptureFixture[str]) -> None:
    outage = Outage(server.config(), 30.0)

    class Starting(Engine):
        def start(self) -> dict[str, object]:
            self.tries += 1
            self.before(self.tries)
            host_of(server.config()).run(["true"])
            return {"started": self.tries}

    def before(tries: int) -> None:
        if tries == 1:
            server.kill()

    facts = started(Starting(outage, before), FAULTS, outage)  # type: ignore[arg-type]
    assert facts == {"started": 2}
    said = capsys.readouterr().err
    assert said.count("the host answers again") == 1
    assert "try 2 of 2" in said
    with pytest.raises(HostAway, match="did not come back in 0 s"):
        started(Starting(outage, lambda _: server.kill()), FAULTS, Outage(server.config(), 0.0))  # type: ignore[arg-type]


@pytest.mark.usefixtures("back_soon")
def test_a_host_that_is_lost_while_it_is_looked_at_is_asked_again(server: SshServer) -> None:
    outage = Outage(server.config(), 30.0)
    asked = []

    def question() -> int:
        asked.append(1)
        if len(asked) == 1:
            server.kill()
        host_of(server.config()).run(["true"])
        return len(asked)

    assert answered(question, FAULTS, outage) == 2

    def always() -> None:
        raise HostFailure("the ssh connection was lost")

    with pytest.raises(Broken, match="the ssh connection was lost"):
        answered(always, FAULTS, outage)
