"""Traces as files: whole or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made import random_traces, trace

from ddbench.errors import ConfigError
from ddbench.replay import SCHEMA, TraceSet, load_trace, save_trace
from ddbench.replay.trace import setup_of


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    for number, each in enumerate(random_traces(7, requests=5).traces):
        path = tmp_path / f"{number}.safetensors"
        save_trace(path, each, "made")
        again = load_trace(path)
        assert (again.key, again.prompt_tokens, again.finish_reason) == (each.key, each.prompt_tokens, "length")
        assert again.log_probs.dtype == np.float32
        for name in ("log_probs", "ranks", "output", "tail"):
            assert np.array_equal(getattr(again, name), getattr(each, name))
        assert setup_of(path) == "made"
    assert len(list(tmp_path.iterdir())) == 5  # no drafts are left


def test_a_torn_file_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_trace(path, random_traces(1).traces[0], "made")
    path.write_bytes(path.read_bytes()[:-9])
    assert setup_of(path) is None
    with pytest.raises(ConfigError, match="a recorded trace, whole"):
        load_trace(path)
    assert setup_of(tmp_path / "none") is None


def test_another_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    monkeypatch.setattr("ddbench.replay.trace.SCHEMA", SCHEMA + 1)
    save_trace(path, random_traces(1).traces[0], "made")
    monkeypatch.undo()
    assert setup_of(path) is None
    with pytest.raises(ConfigError, match=f"schema {SCHEMA}"):
        load_trace(path)


def test_traces_of_one_kind_only() -> None:
    first, other = trace(np.zeros((2, 4, 6)), np.zeros((2, 4))), trace(np.zeros((2, 3, 6)), np.zeros((2, 3)))
    with pytest.raises(ConfigError, match="one depth and k"):
        TraceSet.of([first, other])
    with pytest.raises(ConfigError, match="at least one trace"):
        TraceSet.of([])


def test_where_anchors_stand() -> None:
    traces = TraceSet.of([trace(np.zeros((2, 3, 4)), np.zeros((2, 3))), trace(np.ones((1, 3, 4)), np.zeros((1, 3)))])
    assert traces.context.tolist() == [3, 4, 3]  # of a prompt of three tokens
    assert (traces.starts.tolist(), traces.ends.tolist()) == ([0, 2], [2, 3])
    assert traces.log_probs.max() == 0  # rounding above 0 counts as 0
