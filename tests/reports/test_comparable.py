"""Which settings are the main ones of a scenario: those of most measured points, the baseline's first."""

from __future__ import annotations

import json

import pandas as pd

from reports.comparable import alike, main_fingerprints, peculiarities

Line = tuple[str, str, str, dict[str, object]]  # strategy, status, fingerprint, flags


def frame(*lines: Line, size: int = 1) -> pd.DataFrame:
    rows = [
        {
            "scenario": "s",
            "batch_size": size,
            "strategy": strategy,
            "status": status,
            "fingerprint": fingerprint,
            "flags": json.dumps(flags),
        }
        for strategy, status, fingerprint, flags in lines
    ]
    return pd.DataFrame(rows).convert_dtypes()


def test_the_baseline_s_settings_are_the_main_ones_however_few_share_them() -> None:
    found = frame(
        ("autoregressive", "ok", "a", {"threads": 2}),
        ("ddtree", "ok", "b", {"threads": 4}),
        ("dflash", "ok", "b", {"threads": 4}),
    )
    assert main_fingerprints(found) == {("s", 1): "a"}
    assert alike(found).tolist() == [True, False, False]
    assert peculiarities(found) == ["", " [threads=4]", " [threads=4]"]


def test_without_a_baseline_most_points_decide() -> None:
    found = frame(*[("ddtree", "ok", name, {"threads": n}) for name, n in (("a", 2), ("b", 4), ("b", 4))])
    assert alike(found).tolist() == [False, True, True]


def test_points_that_were_not_measured_know_no_machine_and_have_no_say() -> None:
    found = frame(
        ("autoregressive", "ok", "gpu", {}),
        *[("eagle", "unsupported", "no gpu", {})] * 3,
        ("dflash", "failed", "no gpu", {}),
    )
    assert main_fingerprints(found) == {("s", 1): "gpu"}
    assert alike(found).all()
    assert peculiarities(found) == [""] * 5


def test_another_machine_is_named_and_an_engine_s_defaults_have_words_of_their_own() -> None:
    found = frame(
        ("autoregressive", "ok", "a", {"model_runner": "V1"}),
        ("dflash", "ok", "b", {"model_runner": "V1"}),
        ("dflash", "ok", "c", {"model_runner": "default", "block_size": None}),
    )
    assert peculiarities(found) == ["", " [another machine or build]", ""]
    assert alike(found).tolist() == [True, False, False]


def test_each_batch_size_has_its_own() -> None:
    found = pd.concat([frame(("autoregressive", "ok", "a", {})), frame(("autoregressive", "ok", "b", {}), size=8)])
    assert main_fingerprints(found) == {("s", 1): "a", ("s", 8): "b"}
    assert alike(found).all()


def test_an_empty_frame_and_one_without_a_measured_point() -> None:
    assert alike(frame(("dflash", "failed", "x", {}))).tolist() == [True]
    assert alike(frame(("dflash", "failed", "x", {})).iloc[:0]).tolist() == []
