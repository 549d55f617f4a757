"""The plug-in inside SGLang on this GPU: the waves of `engine_checks` as tests, three to five minutes a wave.

    pytest -m "gpu and sglang" tests/plugins/sglang/test_engine.py

In an environment with SGLang. Engines are in bfloat16, so that greedy texts part at ties; whether each difference is
one is asked by `experiment=sglang_evidence`, and the shares here only tell a wrong mask, which leaves nothing alike.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from engine_checks import WAVES, acceptance, run_wave, same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="this environment has no SGLang"),
]
GREEDY = ("greedy1", "greedy8", "greedy32")
TIES = 0.25  # share of texts that may part at a tie: the stock chain's own on an H200 was 0.22 at batch 32


class Engines:
    """Answers of all waves that were run, the first of them before any other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found, self.ran = folder, dict[str, Any](), set[str]()

    def of(self, wave: str) -> dict[str, Any]:
        for name in dict.fromkeys(("first", wave)):
            if name not in self.ran:
                self.ran.add(name)
                self.found |= run_wave(self.folder, WAVES[name])
        return self.found


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


def tau(found: dict[str, Any], name: str, job: str) -> float:
    value = acceptance(found[name]["jobs"][job])
    assert value is not None, f"{name} drafted nothing"
    return value


@pytest.mark.parametrize("wave", WAVES)
def test_every_engine_runs_and_passes_its_checks(engines: Engines, wave: str) -> None:
    """Limits are taken, hold, and are refused where they are none; bad requests are refused, and serving goes on."""
    found = engines.of(wave)
    assert set(WAVES[wave]) <= set(found), "the logs are in the folder of this test"
    for name in WAVES[wave]:
        checks = found[name]["checks"]
        assert all(passed is True for passed in checks.values()), (name, checks)
        assert bool(checks) == name.startswith("tree")


def test_a_tree_of_width_one_is_the_stock_chain(engines: Engines) -> None:
    found = engines.of("first")
    for job in GREEDY:
        assert same(found["chain"]["jobs"][job], found["tree_k1"]["jobs"][job]) == 1.0
        assert found["chain"]["jobs"][job]["counts"] == found["tree_k1"]["jobs"][job]["counts"]


def test_trees_say_what_the_target_says(engines: Engines) -> None:
    """Against autoregressive decoding, not much less often alike than the stock chain, and in fewer rounds."""
    found = engines.of("first")
    plain, chain, tree = (found[name]["jobs"] for name in ("plain", "chain", "tree64"))
    for job in GREEDY:
        ours, theirs = same(plain[job], tree[job]), same(plain[job], chain[job])
        assert ours is not None
        assert theirs is not None
        assert ours >= theirs - 0.125, (job, ours, theirs)
        assert tau(found, "tree64", job) > tau(found, "chain", job)


@pytest.mark.parametrize("mode", WAVES["modes"])
def test_modes_change_nothing(engines: Engines, mode: str) -> None:
    """Without graphs, without overlap, with a radix cache and chunked prefill, beyond the captured batches."""
    found = engines.of("modes")
    for job in GREEDY:
        share = same(found["tree64"]["jobs"][job], found[mode]["jobs"][job])
        assert share is not None
        assert share >= 1 - TIES, (job, share)
        assert tau(found, mode, job) == pytest.approx(tau(found, "tree64", job), rel=0.1)


def test_wider_trees_accept_more(engines: Engines) -> None:
    found = engines.of("widths")
    accepted = [tau(found, name, "greedy32") for name in ("tree9", "tree16", "tree33", "tree64", "tree128")]
    assert accepted == sorted(accepted), accepted
