"""A recording of the real worker, its replay, and live rounds of the same worker, in an environment with SGLang.

No GPU is used; see `test_round`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_round import BLOCK, ROWS, Lenient, made_up, settings
from test_round import batch_of

from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.plugins.sglang.dumps import ROOTS, ROUNDS, rounds_of
from ddbench.plugins.sglang.options import RECORD, RECORD_NODES, Sizes
from ddbench.plugins.sglang.recorder import Recorder
from ddbench.replay.engine import Live, Spoken, compare, trace_of
from ddbench.replay.shapes import replay
from ddbench.replay.trace import Key, TraceSet

pytestmark = pytest.mark.sglang
SIZES, TOKENS, PROMPTS, FIRST = Sizes(33, BLOCK, 8), 40, (20, 35, 7), (3, 40, 66)
SHAPES = (
    Strategy("ddtree", width=8, nodes=32),
    Strategy("ddtree", width=8, nodes=5),
    Strategy("ddtree", width=2, depth=3, nodes=9),
    Strategy("ddtree", width=1, depth=15, nodes=15),
)


def decoded(worker: Any, name: str, tokens: int) -> list[list[int]]:
    """Rounds until every row has so many tokens, and one beyond, as overlap has it."""
    lens, texts = torch.tensor(PROMPTS), [[first] for first in FIRST]
    draft_input = worker._make_next_draft_input_decode(bonus_tokens=torch.tensor(FIRST), new_seq_lens=lens)
    beyond = 2
    while beyond:
        beyond -= min(map(len, texts)) >= tokens
        batch = batch_of(lens, draft_input, greedy=True)
        batch.reqs = [Lenient(rid=f"{name}{row}") for row in range(3)]
        found = worker.forward_batch_generation(batch)
        for row, text in enumerate(texts):
            text += found.next_token_ids.view(3, BLOCK)[row, : int(found.accept_lens[row])].tolist()
        lens, draft_input = found.new_seq_lens.clone(), found.next_draft_input
    return texts


def test_live_rounds_are_those_of_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    from ddbench.plugins.sglang.control import set_state

    torch.manual_seed(0)
    arguments = settings(monkeypatch, speculative_num_draft_tokens=33, speculative_eagle_topk=8)
    worker = made_up(monkeypatch, SIZES, arguments)
    recorder = Recorder.of({RECORD: str(tmp_path), RECORD_NODES: "40"}, ROWS, SIZES, "cpu")
    assert recorder is not None
    worker.recorder = worker.sampler.recorder = recorder
    worker.sampler.candidates = recorder.candidates
    assert worker.describe()["recording"] == ROOTS
    assert f"RECORDING into {tmp_path}" in worker.registered()

    texts = decoded(worker, "anchor", TOKENS + BLOCK)
    spoken = [
        Spoken(
            Key(f"p{row}", 0, "made", "a", 0, 0, 0.0),
            PROMPTS[row],
            "length",
            tuple(text[:TOKENS]),
            tuple(text[TOKENS : TOKENS + BLOCK - 2]),
        )
        for row, text in enumerate(texts)
    ]
    traces = TraceSet.of(trace_of(each, rounds_of(tmp_path, f"anchor{row}")) for row, each in enumerate(spoken))
    assert (traces.anchors, traces.depth, traces.k) == (3 * (TOKENS - 1), BLOCK - 1, 40)
    for number, (shape, outcome) in enumerate(zip(SHAPES, replay(traces, SHAPES), strict=True)):
        asked = {"ddtree_record": ROUNDS, "ddtree_nodes": shape.nodes, "ddtree_depth": shape.depth or 0}
        request = SetInternalStateReq(server_args=asked | {"ddtree_width": shape.width})
        assert set_state(lambda *a: None, Lenient(draft_worker=worker), request).updated is True
        live = decoded(worker, f"live{number}-", TOKENS)
        lives = [
            Live(tuple(text[:TOKENS]), rounds_of(tmp_path, f"live{number}-{row}")) for row, text in enumerate(live)
        ]
        found = compare(shape, traces, outcome, lives)
        assert found["equal"] is True
        assert found["other_text"] == 0
        assert found["rounds"] == found["rounds_by_own_scores"] == int(outcome.rounds.sum())
    assert int(outcome.rounds.sum()) < 3 * TOKENS / 2, "paths of more than a token"


def test_a_server_that_does_not_record_refuses_to(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = settings(monkeypatch, speculative_num_draft_tokens=33, speculative_eagle_topk=8)
    worker = made_up(monkeypatch, SIZES, arguments)
    assert worker.describe()["recording"] is None
    with pytest.raises(ConfigError, match="without DDTREE_RECORD"):
        worker.record(1)
