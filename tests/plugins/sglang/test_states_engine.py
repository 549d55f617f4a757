"""SGLang's own kernels of gated delta nets over trees, interpreted, in an environment with SGLang; no GPU is used.

pytest -m "sglang and not gpu" tests/plugins/sglang
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_recurrent import PlaceDrafter, RecurrentTarget, after, said
from sgl_round import BLOCK, ROWS, made_up, settings
from test_round import POOL, batch_of

from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.recurrent import States

pytestmark = pytest.mark.sglang

TOP_K = 3
NEAR, WRONG = 1e-5, 0.05  # of outputs of size 1, in float32


@pytest.mark.parametrize("width", [9])
def test_every_node_follows_its_parent(width: int) -> None:
    program = Path(__file__).with_name("sgl_states.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, str(program), str(width)], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert max(found["nodes"]) < NEAR, "a node's output is its path's"
    assert max(found["committed"]) < NEAR, "state and window after a walk are the path's"
    assert all(found["rewritten"]), "the buffers of the captured graph hold this round's links"
    assert sum(found["branches"]) > len(found["branches"]), "paths that leave the first branch"
    assert all(found["padding"]), "no other sequence's state moved"
    assert found["star"] > WRONG, "siblings that share a state are seen"
    assert found["stale"] > WRONG, "links of the last round are seen"


def recurrent_worker(patch: pytest.MonkeyPatch, width: int, star: bool) -> Any:
    """The real worker with a made-up recurrent target; its backend keeps the links of a pass as SGLang's does."""
    from sglang.srt.speculative import spec_utils

    torch.manual_seed(0)
    arguments = settings(patch, speculative_num_draft_tokens=width, speculative_eagle_topk=TOP_K)
    sizes = Sizes(width, BLOCK, TOP_K)
    worker = made_up(patch, sizes, arguments)
    runner = worker.model_runner
    target = RecurrentTarget(runner, width)
    target.star = star
    linear = SimpleNamespace(forward_metadata=None)

    def init_forward_metadata(batch: Any) -> None:
        names = ("retrieve_next_token", "retrieve_next_sibling")
        given = {name: getattr(batch.spec_info, name) for name in names}
        linear.forward_metadata = SimpleNamespace(**given, retrieve_parent_token=torch.zeros(1))

    runner.attn_backend.init_forward_metadata = init_forward_metadata
    runner.attn_backend.linear_attn_backend = linear
    patch.setattr(spec_utils, "commit_mamba_states_after_verify", target.commit)
    worker._target_worker = target
    worker.draft_model_runner = PlaceDrafter(target, runner.model.lm_head.weight)
    worker.states = States(target, ROWS, sizes, "cpu")
    return worker


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("width", [16, 33])
def test_texts_of_a_recurrent_target(width: int, star: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole rounds say what the target says token by token, across commits; a star's states do not."""
    worker = recurrent_worker(monkeypatch, width, star)
    target, lens = worker._target_worker, torch.tensor([20, 35, 7])
    texts = [[said(0, int(begin))] for begin in lens]
    draft_input = worker._make_next_draft_input_decode(
        bonus_tokens=torch.tensor([text[0] for text in texts]), new_seq_lens=lens
    )
    begin, branched = lens.tolist(), 0
    for _ in range(8):
        found = worker.forward_batch_generation(batch_of(lens, draft_input, greedy=True))
        emitted, taken = found.next_token_ids.view(3, BLOCK), found.accept_lens.tolist()
        paths = worker.walks[worker._turn].path[:3].tolist()
        branched += sum(path[:t] != list(range(t)) for path, t in zip(paths, taken, strict=True))
        for row, text in enumerate(texts):
            text += emitted[row, : taken[row]].tolist()
        lens, draft_input = found.new_seq_lens.clone(), found.next_draft_input
    wrong = 0
    for row, text in enumerate(texts):
        state = 0
        for place, (token, following) in enumerate(pairwise(text)):
            state = after(state, token)
            wrong += following != said(state, begin[row] + place + 1)
        if not star:
            assert int(target.states[POOL[row]]) == state, "the state is the committed text's"
    assert (wrong > 0) is star
    assert star or branched > 6, "paths that leave the first branch"
