"""Claims: one owner a cell, whoever dies when; and two processes in one run folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import pytest
from sweeps import CELLS, ROOT, Sweeps, wait_for

from experiments.claims import Claims
from experiments.owners import Owner, process_start, this_process

TAKER = """
import sys, time
from pathlib import Path
from experiments.claims import Claims
claims = Claims(Path(sys.argv[1]), 0.05, 0.4)
taken = [cell for cell in map(str, range(40)) if claims.take(cell, "g")]
print(" ".join(taken), flush=True)
if sys.argv[2] == "stay":
    time.sleep(60)
"""


def taker(folder: Path, then: str = "go") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TAKER, str(folder), then]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def elsewhere(folder: Path, cell_id: str) -> Path:
    """A claim of a process that cannot be seen from here."""
    owner = replace(this_process(), host="another", place="0" * 12)
    path = folder / f"{cell_id}.0"
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps({"owner": asdict(owner), "group": "theirs"}))
    return path


def test_of_several_processes_one_has_a_cell(tmp_path: Path) -> None:
    processes = [taker(tmp_path / "claims", "stay") for _ in range(4)]
    lines = [process.stdout.readline().split() for process in processes if process.stdout is not None]
    assert sorted(chain(*lines)) == sorted(map(str, range(40)))
    ours = Claims(tmp_path / "claims")
    assert not ours.take("0", "g")
    assert len(ours.others()) == 40
    for process in processes:
        process.kill()
        process.communicate()
    assert ours.others() == {}
    assert all(ours.take(str(cell), "g") for cell in range(40))  # at once: that they are dead can be seen from here
    ours.close()
    assert not (tmp_path / "claims").exists()


def test_of_several_that_find_an_owner_dead_one_takes_over(tmp_path: Path) -> None:
    dead = taker(tmp_path / "claims", "stay")
    assert dead.stdout is not None
    assert len(dead.stdout.readline().split()) == 40
    dead.kill()
    dead.communicate()
    heirs = [taker(tmp_path / "claims", "stay") for _ in range(3)]
    lines = [heir.stdout.readline().split() for heir in heirs if heir.stdout is not None]
    for heir in heirs:
        heir.kill()
        heir.communicate()
    assert Counter(chain(*lines)) == Counter(map(str, range(40)))


def test_an_owner_elsewhere_is_dead_when_its_heart_stops(tmp_path: Path) -> None:
    claim = elsewhere(tmp_path / "claims", "cell")
    ours = Claims(tmp_path / "claims", 0.05, 0.4)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:  # it beats: with a clock of its own, which runs backwards
        then = claim.stat().st_mtime_ns - 3_600_000_000_000
        os.utime(claim, ns=(then, then))
        assert not ours.take("cell", "g")
        assert ours.others()["cell"].group == "theirs"
        time.sleep(0.1)
    began = time.monotonic()
    while not ours.take("cell", "g"):
        time.sleep(0.02)
    assert 0.2 < time.monotonic() - began < 3
    assert ours.holds("cell")
    ours.close()


def test_who_was_taken_for_dead_holds_no_more(tmp_path: Path) -> None:
    first, second = (Claims(tmp_path / "claims", 60, 0.2) for _ in range(2))
    assert first.take("cell", "g")
    (path,) = (tmp_path / "claims").iterdir()
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "owner": {**data["owner"], "place": "0" * 12}}))  # as seen from another host
    assert not second.take("cell", "g")
    time.sleep(0.3)
    assert second.take("cell", "g")
    assert second.holds("cell")
    assert not first.holds("cell")
    first.release("cell")
    assert second.holds("cell")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": {"host": "x"}, "group": "g"}'])
def test_a_claim_that_cannot_be_read_is_somebody_elses_until_it_is_old(tmp_path: Path, text: str) -> None:
    (tmp_path / "cell.0").write_text(text)
    ours = Claims(tmp_path, 0.05, 0.2)
    assert not ours.take("cell", "g")
    time.sleep(0.3)
    assert ours.take("cell", "g")


def test_without_hard_links_a_claim_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what vfat says

    monkeypatch.setattr(os, "link", refused)
    first, second = Claims(tmp_path / "claims"), Claims(tmp_path / "claims")
    assert first.take("cell", "g")
    assert not second.take("cell", "g")


def test_an_answer_of_nfs_that_got_lost_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server made the link, and the client hears of an error: the count of the draft's links tells the truth."""
    link = os.link

    def lost(source: Path, target: Path) -> None:
        link(source, target)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", lost)
    first = Claims(tmp_path / "claims")
    assert first.take("cell", "g")
    assert first.holds("cell")
    monkeypatch.setattr(os, "link", link)
    assert not Claims(tmp_path / "claims").take("cell", "g")


def test_an_owner_is_told_from_a_later_process_of_its_number() -> None:
    mine = this_process()
    assert Owner.from_name(mine.name) == mine
    assert Owner.from_name("backup-2026") is None
    assert not mine.seen_dead()
    assert replace(mine, start="1").seen_dead()
    assert not replace(mine, start="1", place="0" * 12).seen_dead()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    time.sleep(0.5)
    assert process_start(child.pid) is None  # it has ended, though nobody has asked for its status
    child.wait()


def test_two_processes_share_a_run_and_measure_each_cell_once(sweeps: Sweeps) -> None:
    processes = [sweeps.start("shared") for _ in range(2)]
    ends = [process.end() for process in processes]
    assert [code for code, _, _ in ends] == [0, 0], ends
    measured = [sum(": ok in" in line for line in err.splitlines()) for _, _, err in ends]
    assert sum(measured) == CELLS
    assert min(measured) > 0
    assert all(summary["cells"]["ok"] == CELLS for _, summary, _ in ends)
    assert sweeps.content("shared") == sweeps.content("whole")
    folder = sweeps.path("shared")
    assert not (folder / ".claims").exists()
    assert not (folder / ".running").exists()


def test_the_living_take_over_from_the_dead(sweeps: Sweeps) -> None:
    folder = sweeps.path("heirs")
    processes = [sweeps.start("heirs") for _ in range(2)]
    wait_for(lambda: any((folder / ".running").glob(f"*-{processes[0].pid}-*/*")))
    processes[0].kill()
    code, summary, err = processes[1].end()
    assert code == 0, err
    assert summary["cells"]["ok"] == CELLS
    assert sweeps.content("heirs") == sweeps.content("whole")
    assert not (folder / ".claims").exists()
    assert not (folder / ".running").exists()
