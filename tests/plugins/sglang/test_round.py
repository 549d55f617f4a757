"""Whole rounds of the real worker on SGLang's own batch objects, in an environment with SGLang; no GPU is used.

pytest -m "sglang and not gpu" tests/plugins/sglang
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_round import BLOCK, CONTEXT, Lenient, made_up, settings

from ddbench.plugins.sglang import hooks
from ddbench.plugins.sglang.edge import Edge
from ddbench.plugins.sglang.options import Sizes

pytestmark = pytest.mark.sglang
ROUNDS = 6
POOL = torch.tensor([2, 0, 3])  # rows of the slot table that the three requests have


class Sampling:
    """As SGLang's SamplingBatchInfo, three requests."""

    has_custom_logit_processor, grammars, logit_bias = False, None, None
    need_top_p_sampling, need_top_k_sampling, need_min_p_sampling = True, True, False

    def __init__(self, greedy: bool) -> None:
        self.is_all_greedy = greedy
        self.temperatures, self.top_ps, self.min_ps = torch.full((3, 1), 0.8), torch.full((3,), 0.9), torch.zeros(3)
        self.top_ks = torch.full((3,), 50, dtype=torch.int32)

    def __len__(self) -> int:
        return 3


def batch_of(lens: torch.Tensor, draft_input: Any, greedy: bool) -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return Lenient(
        forward_mode=ForwardMode.DECODE,
        is_extend_in_batch=False,
        return_logprob=False,
        has_grammar=False,
        spec_info=draft_input,
        seq_lens=lens,
        seq_lens_cpu=lens.clone(),
        req_pool_indices=POOL,
        sampling_info=Sampling(greedy),
        reqs=[Lenient(rid=str(row)) for row in range(3)],
        return_hidden_states_mode=0,
    )


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("width", "top_k"), [(16, 4), (33, 8), (9, 8), (16, 1)])
def test_rounds(width: int, top_k: int, greedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy texts are the target's chain; after every round the path's cache entries, features, positions and slots of
    the drafter stand where a chain's would."""
    torch.manual_seed(0)
    arguments = settings(monkeypatch, speculative_num_draft_tokens=width, speculative_eagle_topk=top_k)
    worker = made_up(monkeypatch, Sizes(width, BLOCK, top_k), arguments)
    pool, table = worker.model_runner.token_to_kv_pool, worker.model_runner.req_to_token_pool.req_to_token
    lens, texts = torch.tensor([20, 35, 7]), [[3], [40], [66]]
    draft_input = worker._make_next_draft_input_decode(
        bonus_tokens=torch.tensor([text[0] for text in texts]), new_seq_lens=lens
    )
    published: list[torch.Tensor] = []
    for _ in range(ROUNDS):
        found = worker.forward_batch_generation(batch_of(lens, draft_input, greedy), on_publish=published.append)
        emitted, taken, kept = found.next_token_ids.view(3, BLOCK), found.accept_lens.tolist(), worker.got[-1]
        assert found.speculative_num_draft_tokens == BLOCK
        assert found.new_seq_lens.tolist() == published[-1].tolist() == (lens + torch.tensor(taken)).tolist()
        for row, text in enumerate(texts):
            new, begin = emitted[row, : taken[row]].tolist(), int(lens[row])
            path, places = [text[-1], *new[:-1]], list(range(begin, begin + taken[row]))
            slots = table[POOL[row], begin : begin + taken[row]].long()
            for keys, values in zip(pool.k_buffer, pool.v_buffer, strict=True):
                assert keys[slots][:, 0, 0].tolist() == path
                assert values[slots][:, 0, 0].tolist() == places
            assert kept["target_hidden"].view(3, BLOCK, -1)[row, : taken[row], 0].tolist() == path
            assert kept["cache_loc"].view(3, BLOCK)[row, : taken[row]].tolist() == slots.tolist()
            assert kept["positions"].view(3, BLOCK)[row, : taken[row]].tolist() == places
            for token in new if greedy else []:
                assert token == int(worker._target_worker.table[text[-1]].argmax())
                text.append(token)
            text += [] if greedy else new
        assert kept["commit_lens"].tolist() == taken
        lens, draft_input = found.new_seq_lens.clone(), found.next_draft_input
        assert draft_input.bonus_tokens.tolist() == [text[-1] for text in texts]
    assert int(lens.max()) < CONTEXT
    if greedy:
        assert sum(map(len, texts)) > 2 * 3 * ROUNDS, "paths of more than a token"


def one_row(lens: torch.Tensor, draft_input: Any) -> Any:
    batch = batch_of(lens, draft_input, greedy=True)
    batch.req_pool_indices, batch.reqs, batch.sampling_info = POOL[1:2], [Lenient(rid="0")], None
    return batch


@pytest.mark.parametrize(("width", "top_k"), [(33, 8), (9, 8)])
def test_a_sequence_that_runs_to_the_contexts_end(width: int, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch 1 in a server of one row: as long as a request may get, and the round that overlap launches after its last.

    The mask buffer is SGLang's own size, with guards behind it, and so is the row of the slot table.
    """
    torch.manual_seed(1)
    sizes = Sizes(width, BLOCK, top_k)
    arguments = settings(monkeypatch, speculative_num_draft_tokens=width, speculative_eagle_topk=top_k)
    worker = made_up(monkeypatch, sizes, arguments)
    around = torch.full((width * (CONTEXT + width) + 999,), 7, dtype=torch.uint8)
    buffer = around[: width * (CONTEXT + width)]
    worker.model_runner.attn_backend.verify_mask = SimpleNamespace(buffer=buffer, fits=lambda rows: rows <= 1)
    edge = Edge(CONTEXT, sizes.window)
    request = SimpleNamespace(origin_input_ids=[5] * 100, sampling_params=SimpleNamespace(max_new_tokens=None))
    assert edge.admit(request) is None
    prompt, most = 100, int(request.sampling_params.max_new_tokens)
    text, lens = [3], torch.tensor([prompt])
    draft_input = worker._make_next_draft_input_decode(bonus_tokens=torch.tensor(text), new_seq_lens=lens)
    rounds_left = 1
    while rounds_left >= 0:
        rounds_left -= len(text) >= most
        found = worker.forward_batch_generation(one_row(lens, draft_input))
        assert int(lens) + sizes.window <= CONTEXT
        assert int(worker.tables.slots[0].max()) <= CONTEXT, "row 0 of the slot table"
        for token in found.next_token_ids[: int(found.accept_lens)].tolist():
            assert token == int(worker._target_worker.table[text[-1]].argmax())
            text.append(token)
        lens, draft_input = found.new_seq_lens.clone(), found.next_draft_input
        assert (around[buffer.numel() :] == 7).all()
    assert len(text) > most


def test_both_versions_take_the_targets_choices_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's ``_choices`` is what a round follows: a change of it changes what is said."""
    arguments = settings(monkeypatch, speculative_num_draft_tokens=9, speculative_eagle_topk=4)
    worker = made_up(monkeypatch, Sizes(9, BLOCK, 4), arguments)
    stock = type(worker)._choices
    monkeypatch.setattr(type(worker), "_choices", lambda self, logits, sampling: stock(self, -logits, sampling))
    lens = torch.tensor([20])
    draft_input = worker._make_next_draft_input_decode(bonus_tokens=torch.tensor([3]), new_seq_lens=lens)
    found = worker.forward_batch_generation(one_row(lens, draft_input))
    assert int(found.next_token_ids[0]) == int(worker._target_worker.table[3].argmin())


@pytest.mark.parametrize(("width", "window"), [(9, BLOCK), (BLOCK, BLOCK), (33, 33)])
def test_slots_are_reserved_for_the_wider_of_tree_and_block(
    width: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

    arguments = settings(monkeypatch, speculative_num_draft_tokens=width, speculative_eagle_topk=4)
    worker = made_up(monkeypatch, Sizes(width, BLOCK, 4), arguments)
    seen: list[int] = []
    monkeypatch.setattr(
        DFlashDraftInputV2,
        "prepare_for_decode",
        lambda self, batch: seen.append(int(get_spec().speculative_num_draft_tokens)),
    )
    lens = torch.tensor([20])
    draft_input = worker._make_next_draft_input_decode(bonus_tokens=torch.tensor([3]), new_seq_lens=lens)
    draft_input.prepare_for_decode(one_row(lens, draft_input))
    assert seen == [window]
    assert get_spec().speculative_num_draft_tokens == width


def test_the_drafters_graphs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = settings(monkeypatch, speculative_num_draft_tokens=9, speculative_eagle_topk=4)
    worker = made_up(monkeypatch, Sizes(9, BLOCK, 4), arguments)
    monkeypatch.setattr(hooks, "captured", {1: True, 4: True})
    monkeypatch.setattr(hooks, "edge", Edge(CONTEXT, BLOCK))
    assert worker.describe()["draft_graphs"] == []
    assert "graphs=[1, 4] draft_graphs=off rows=4" in worker.registered()
    worker.draft_model_runner.decode_cuda_graph_runner = SimpleNamespace(capture_bs=[4, 1])
    assert worker.describe()["draft_graphs"] == [1, 4]
    assert worker.describe()["most_tokens"] == CONTEXT - 2 * BLOCK
    assert "graphs=[1, 4] draft_graphs=[1, 4] rows=4" in worker.registered()


def test_limits_through_the_servers_door(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    from ddbench.plugins.sglang.control import set_state

    arguments = settings(monkeypatch, speculative_num_draft_tokens=16, speculative_eagle_topk=4)
    worker = made_up(monkeypatch, Sizes(16, BLOCK, 4), arguments)
    scheduler = SimpleNamespace(draft_worker=worker)
    answer = set_state(lambda *a: None, scheduler, SetInternalStateReq(server_args={"ddtree_nodes": 5}))
    assert answer.updated is True
    assert worker.describe()["nodes"] == 5
    answer = set_state(lambda *a: None, scheduler, SetInternalStateReq(server_args={"ddtree_nodes": 500}))
    assert answer.updated is False
    assert worker.describe()["nodes"] == 5


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"page_size": 16}, "page_size=16"),
        ({"attention_backend": "fa3"}, "attention_backend='fa3'"),
        ({"enable_lora": True}, "enable_lora=True"),
        ({"speculative_num_steps": 3}, "speculative_num_steps=3"),
        ({"speculative_num_draft_tokens": 200}, "speculative_num_draft_tokens=200"),
    ],
)
def test_settings_are_refused_by_sglangs_own_path(
    asked: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=says):
        settings(monkeypatch, **asked)
