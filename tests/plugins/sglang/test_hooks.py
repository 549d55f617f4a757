"""The hooks change a DDTREE server, and leave every other server's answers alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_standin import standin

from ddbench.plugins.sglang import hooks
from ddbench.plugins.sglang.edge import Edge
from ddbench.plugins.sglang.refused import Refused

TREE = SimpleNamespace(
    speculative_algorithm="DDTREE",
    speculative_num_draft_tokens=9,
    speculative_dflash_block_size=16,
    speculative_eagle_topk=4,
)
CHAIN = SimpleNamespace(speculative_algorithm="DFLASH")


def answer(value: Any) -> Any:
    def original(*args: Any, **kwargs: Any) -> Any:
        return value

    return original


def test_slots_of_a_round() -> None:
    assert hooks.alloc_len(answer(9), TREE) == 16
    assert hooks.alloc_len(answer(9), server_args=TREE) == 16
    assert hooks.alloc_len(answer(40), TREE) == 40
    assert hooks.alloc_len(answer(9), CHAIN) == 9


def test_room_in_the_slot_table() -> None:
    assert hooks.row_headroom(answer(4 + 9), TREE) == 4 + 2 * 16
    assert hooks.row_headroom(answer(100), TREE) == 100
    assert hooks.row_headroom(answer(4 + 9), CHAIN) == 4 + 9


def test_hidden_states_are_not_relayed() -> None:
    assert hooks.need_hidden_states(answer(True), TREE) is False
    assert hooks.need_hidden_states(answer(True), CHAIN) is True


def test_settings_are_the_published_ones_where_none_are_given(tmp_path: Path) -> None:
    """As SGLang 0.5.23 calls the same functions: without arguments."""
    with standin(tmp_path, "0.5.23"):
        from sglang.srt.runtime_context import SPEC

        vars(SPEC).update(vars(TREE))
        assert hooks.alloc_len(answer(9)) == 16
        vars(SPEC).update(speculative_algorithm="EAGLE3")
        assert hooks.alloc_len(answer(9)) == 9


def request_of(prompt: int, most: int | None) -> Any:
    """As SGLang's Req, of ``prompt`` tokens that asks for ``most``."""
    sampling = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
    grammar = dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"))
    return SimpleNamespace(
        origin_input_ids=[5] * prompt,
        return_logprob=False,
        return_hidden_states=False,
        lora_id=None,
        custom_logit_processor=None,
        sampling_params=SimpleNamespace(max_new_tokens=most, **sampling, **grammar),
    )


def test_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "edge", Edge(100, 16))
    request = request_of(20, 30)
    request.sampling_params.frequency_penalty = 0.5
    with standin(tmp_path):
        from sglang.srt.runtime_context import SPEC

        vars(SPEC).update(vars(TREE))
        assert "does not serve frequency_penalty" in str(hooks.validate_request(answer("stock"), request, True))
        request.sampling_params.frequency_penalty = 0.0
        assert hooks.validate_request(answer("stock"), req=request) == "stock"
        vars(SPEC).update(vars(CHAIN))
        request.sampling_params.frequency_penalty = 0.5
        assert hooks.validate_request(answer(None), request, True) is None


def test_requests_end_before_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "edge", Edge(100, 16))
    with standin(tmp_path):
        from sglang.srt.runtime_context import SPEC

        vars(SPEC).update(vars(CHAIN))
        assert hooks.validate_request(answer(None), request_of(90, 900), True) is None, "another server's request"
        vars(SPEC).update(vars(TREE))
        assert hooks.validate_request(answer(None), request_of(20, 48), True) is None
        reason = hooks.validate_request(answer(None), request_of(20, 49), True)
        assert reason is not None
        for part in ("a prompt of 20", "max_new_tokens=49", "the 68 tokens", "context 100", "two windows of 16"):
            assert part in reason
        open_ended = request_of(20, None)
        assert hooks.validate_request(answer(None), open_ended, True) is None
        assert open_ended.sampling_params.max_new_tokens == 48
        assert hooks.validate_request(answer(None), request_of(68, 0), True) is None
        assert "a prompt of 68" in str(hooks.validate_request(answer(None), request_of(68, None), True))
        monkeypatch.setattr(hooks, "edge", None)
        with pytest.raises(RuntimeError, match="before the DDTREE worker was ready"):
            hooks.validate_request(answer(None), request_of(20, 48), True)


def test_a_context_without_room_ends_the_start() -> None:
    assert Edge(34, 16).most == 2
    with pytest.raises(Refused, match="context_length=33: DDTREE needs 34"):
        Edge(33, 16)


def test_warm_up_passes_of_others(tmp_path: Path) -> None:
    """The stock function takes other parameters in each version; ours reads them by name."""
    for version, arguments in (("0.5.17", ("EAGLE", None, None, 9, False)), ("0.5.23", ("EAGLE", None, 9, False))):
        folder = tmp_path / version
        folder.mkdir()
        with standin(folder, version):
            from sglang.srt.speculative.spec_info import create_dummy_verify_input

            assert hooks.dummy_verify_input(create_dummy_verify_input, *arguments) == ("stock", "EAGLE")


def backend(used: Any) -> Any:
    buffer = torch.zeros(4 * 9 * (100 + 9), dtype=torch.bool)
    owned = SimpleNamespace(buffer=buffer, fits=lambda rows: rows <= 4)
    mask = {"ours": buffer, "none": None, "other": buffer.clone()}[used]
    return SimpleNamespace(verify_mask=owned, forward_metadata=SimpleNamespace(custom_mask=mask))


def runner_of(algorithm: Any, used: str, draft: bool = False) -> Any:
    """A runner of graphs, as `capture_shape` sees it."""
    model = SimpleNamespace(spec_algorithm=algorithm, is_draft_worker=draft)
    return SimpleNamespace(model_runner=model, attn_backend=backend(used))


def test_a_graph_without_the_mask_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "captured", {})
    with standin(tmp_path):
        from ddbench.plugins.sglang.algo import DDTreeAlgorithm

        ours = DDTreeAlgorithm("DDTREE")
        assert hooks.capture_shape(answer("graph"), runner_of(ours, "ours"), 8, None) == "graph"
        assert hooks.captured == {8: True}
        with pytest.raises(RuntimeError, match="batch size 4 was captured without the tree mask"):
            hooks.capture_shape(answer("graph"), runner_of(ours, "none"), size=4)
        hooks.capture_shape(answer("graph"), runner_of(ours, "none", draft=True), 2)
        hooks.capture_shape(answer("graph"), runner_of("DFLASH", "none"), 2)
        assert 2 not in hooks.captured
