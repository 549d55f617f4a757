"""Prompts that change while a server runs: how conversations of several turns are recorded, and then measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from arms import CPU, arm
from stand_in import TOKENS, cell, spec, write_stand_in

from ddbench.errors import ConfigError
from runners.base import CellJob, Prompt
from runners.rows import request_seed
from runners.vllm.runner import VllmRunner

TALK = Prompt("p", "data", "code", ("first", "second"))


def test_another_turn_on_the_same_server(tmp_path: Path) -> None:
    runner = VllmRunner(replace(spec(write_stand_in(tmp_path)), prompts=(replace(TALK, turns=("first",)),)))
    try:
        facts = runner.start()
        measured = replace(cell(arm("autoregressive", demands=CPU)), prompts=1, repeats=1)
        rows = []
        for name in ("before", "after"):
            (tmp_path / name).mkdir()
            outcome = runner.run_cell(CellJob(measured, tmp_path / name, 2), lambda done, total: None)
            assert outcome.status != "failed", outcome.reason
            rows += pq.read_table(tmp_path / name / "requests.parquet").to_pylist()
            if name == "before":
                assert runner._serving is not None
                server = runner._serving._server
                answer = runner.texts([rows[0]["output_token_ids"]])[0]
                longer = runner.ask((replace(TALK, answers=(answer,)),))
        assert runner._serving is not None
        assert runner._serving._server is server
        assert [row["turn"] for row in rows] == [0, 1]
        assert [row["prompt_tokens"] for row in rows] == [facts["prompt_tokens"]["sum"], longer["prompt_tokens"]["sum"]]
        assert rows[1]["prompt_tokens"] > rows[0]["prompt_tokens"]
        assert len(answer) > 0
        assert len(rows[0]["output_token_ids"]) == TOKENS
        with pytest.raises(ConfigError, match="workload='p turn 1'"):
            runner.ask((replace(TALK, answers=("word " * 2000,)),))
    finally:
        runner.stop()


def test_every_turn_draws_for_itself() -> None:
    seeds = {request_seed(seed, name, turn) for seed in range(3) for name in "ab" for turn in range(3)}
    assert len(seeds) == 18
