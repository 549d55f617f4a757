"""The host's profile: which steps are in it, and what is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.sglang_evidence.host import ROUNDS, SKIPPED, Watch


def batch(decodes: bool) -> Any:
    return SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: decodes))


def work() -> int:
    return sum(range(10))


def idle() -> int:
    return sum(range(1000))


def prefill() -> int:
    return sum(range(100))


def test_a_profile_holds_steps_alone(tmp_path: Path) -> None:
    """Answers of seven steps, a prefill before each and idle turns after it, which the scheduler's loop has too."""
    dump = tmp_path / "profile.json"
    queue: list[Any] = []
    following = Watch(dump).around(lambda scheduler: SimpleNamespace(batch_to_run=queue.pop(0)))
    steps = 0
    while not dump.exists():
        queue.extend([batch(False), *[batch(True)] * 7, None, None])
        while queue:
            found = following(None).batch_to_run
            if found is None:
                idle()
            elif found.forward_mode.is_decode():
                steps += 1
                work()
            else:
                prefill()
        assert steps <= SKIPPED + ROUNDS + 7
    told = json.loads(dump.read_text())
    names = {row["name"].rpartition(" ")[2]: row for row in told["functions"]}
    assert names["work"]["calls"] == 1.0
    assert 0 < names["work"]["own_us"] <= names["work"]["all_us"]
    assert not {"idle", "prefill"} & set(names)
    assert told["ms_a_step"] > 0
