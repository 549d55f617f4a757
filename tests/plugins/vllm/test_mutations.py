"""Each step that makes a tree right is needed: without it, the comparison of `test_lossless` fails.

The rows of features that the drafter reads cannot change a token, only what is accepted: there the trained
drafter tells.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm_cases import BASELINE, MIXED_4
from vllm_jobs import EngineHost, Job

pytestmark = pytest.mark.vllm

PLANTS = ("no mask", "no depth positions", "no compaction", "no gather")
JOB = Job("tree", (*(replace(MIXED_4, name=plant, plant=plant) for plant in PLANTS), MIXED_4), nodes=16)


def test_without_a_plant_the_same_engine_is_right(engines: EngineHost) -> None:
    assert engines.run(JOB)[MIXED_4.name].outputs == engines.run(BASELINE)[MIXED_4.name].outputs


@pytest.mark.parametrize("plant", PLANTS[:3])
def test_a_missing_step_changes_the_text(engines: EngineHost, plant: str) -> None:
    assert engines.run(JOB)[plant].outputs != engines.run(BASELINE)[MIXED_4.name].outputs


def test_rows_of_features_that_are_not_gathered_cost_acceptance(engines: EngineHost) -> None:
    outcomes = engines.run(JOB)
    fair, faulty = (
        outcomes[name].counters["vllm:spec_decode_num_accepted_tokens"]
        / outcomes[name].counters["vllm:spec_decode_num_drafts"]
        for name in (MIXED_4.name, "no gather")
    )
    assert outcomes["no gather"].outputs == outcomes[MIXED_4.name].outputs
    assert faulty < 0.8 * fair
