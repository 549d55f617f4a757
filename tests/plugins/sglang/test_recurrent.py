"""Targets with recurrent layers: which are served, and what SGLang must have set up for a state of every node."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_standin import standin

from ddbench.plugins.sglang import backends, recurrent
from ddbench.plugins.sglang import torch_ops as ops
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.masks import graph_reads_mask, place_for
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.recurrent import States, check_states, check_tracking
from ddbench.plugins.sglang.refusals import check_target
from ddbench.plugins.sglang.refused import Refused

PAGE = Path(__file__).resolve().parents[3] / "docs" / "hybrid.md"
SIZES = Sizes(5, 4, 2)
LAYERS, SLOTS, ROWS = 3, 4, 2


def named(name: str, **attributes: Any) -> Any:
    made: Any = type(name, (), {})()
    made.__dict__ |= attributes
    return made


def windows(overlap: bool) -> torch.Tensor:
    held = torch.zeros(LAYERS, ROWS + 1, 6, 8)
    if not overlap:
        return torch.zeros(LAYERS, ROWS + 1, 5, 6, 3)
    return held.as_strided((LAYERS, ROWS + 1, 5, 6, 3), (*held.stride()[:2], 1, *held.stride()[2:]))


def pool(nodes: int = 5, overlap: bool = False, states: bool = True) -> Any:
    cache = SimpleNamespace(
        temporal=torch.zeros(LAYERS, SLOTS, 2, 4, 4),
        conv=[torch.zeros(LAYERS, SLOTS, 6, 3)],
        intermediate_ssm=torch.zeros(LAYERS, ROWS + 1, nodes, 2, 4, 4) if states else None,
        intermediate_conv_window=[windows(overlap)],
    )
    return SimpleNamespace(mamba_cache=cache)


def backend(topk: int = 2, linear: str = recurrent.LINEAR, full: str = recurrent.FULL) -> Any:
    mask = SimpleNamespace(buffer=torch.zeros(9, dtype=torch.uint8), fits=lambda rows: True)
    attention = named(full, verify_mask=mask, forward_metadata=SimpleNamespace(custom_mask=mask.buffer))
    return named(recurrent.STATES, linear_attn_backend=named(linear, topk=topk), full_attn_backend=attention)


def runner(attention: Any = None, states: Any = None, kind: str = "Qwen3_5TextConfig", **args: Any) -> Any:
    text = named(kind)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            recurrent=kind,
            hf_config=SimpleNamespace(get_text_config=lambda: text),
            attention_arch=None,
            is_encoder_decoder=False,
            model_is_mrope=True,
        ),
        server_args=SimpleNamespace(**{"disable_radix_cache": True, "mamba_radix_cache_strategy": "auto"} | args),
        sliding_window_size=None,
        is_hybrid_swa=False,
        attn_backend=attention or backend(),
        token_to_kv_pool=None,
        req_to_token_pool=SimpleNamespace(mamba_pool=states or pool()),
    )


def test_delta_nets_are_served_and_said_to_be_untested_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with standin(tmp_path):
        for gpu, warned in (("sm_90", False), ("sm_120", True), (None, True)):
            monkeypatch.setattr(recurrent, "architecture_of_gpu", lambda gpu=gpu: gpu)
            for kind in recurrent.GATED_DELTA:
                check_target(runner(kind=kind), SIZES)
                assert ("untested: trees over recurrent states" in capfd.readouterr().err) is warned


@pytest.mark.parametrize(
    "kind", ["KimiLinearConfig", "BailingHybridConfig", "NemotronHConfig", "JetNemotronConfig", "InternS2PreviewConfig"]
)
def test_other_recurrent_layers_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    with standin(tmp_path), pytest.raises(Refused, match=f"recurrent layers of {kind}: .*KDA, Lightning, Mamba2"):
        check_target(runner(kind=kind), SIZES)


def test_the_table_of_hybrids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(backends.HYBRID) == set(backends.TABLE)
    monkeypatch.setitem(backends.HYBRID, "0.5.17", {"sm_90": "correct"})
    assert backends.hybrid_state("0.5.17", "sm_90") == "correct"
    for gpu in ("sm_120", "sm_100", None):
        assert backends.hybrid_state("0.5.17", gpu) == "untested"


def test_the_page_has_the_table_of_hybrids() -> None:
    rows = re.findall(r"^\| (sm_\d+) \| ([\w-]+) \| ([\w-]+) \|$", PAGE.read_text(), re.MULTILINE)
    written = {version: {gpu: states[at] for gpu, *states in rows} for at, version in enumerate(backends.HYBRID)}
    assert written == backends.HYBRID


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_copies_of_growing_states_are_refused(strategy: str) -> None:
    args = SimpleNamespace(disable_radix_cache=False, mamba_radix_cache_strategy=strategy)
    with pytest.raises(Refused, match=f"mamba_radix_cache_strategy='{strategy}'.*--disable-radix-cache"):
        check_tracking(args)
    args.disable_radix_cache = True
    check_tracking(args)
    check_tracking(SimpleNamespace(disable_radix_cache=False, mamba_radix_cache_strategy="no_buffer"))


@pytest.mark.parametrize(
    ("attention", "states", "says"),
    [
        (backend(topk=1), pool(), "set up for topk=1, the trees have 2"),
        (backend(linear="KDAAttnBackend"), pool(), "KDAAttnBackend"),
        (backend(full="FlashInferAttnBackend"), pool(), "FlashInferAttnBackend"),
        (backend(), pool(nodes=4), "states of 4 nodes, a window has 5"),
        (backend(), pool(states=False), "no state of every node"),
        (backend(), pool(overlap=True), "windows that overlap, as only a chain's may"),
    ],
)
def test_what_would_let_siblings_share_a_state(attention: Any, states: Any, says: str) -> None:
    with pytest.raises(Refused, match=says):
        check_states(runner(attention, states), SIZES)


def test_a_chains_windows_may_overlap() -> None:
    check_states(runner(backend(topk=1), pool(overlap=True)), Sizes(5, 4, 1))


def test_the_mask_is_the_full_attentions() -> None:
    attention = backend()
    assert graph_reads_mask(attention)
    mask = attention.full_attn_backend.verify_mask.buffer
    place = place_for(SimpleNamespace(attn_backend=attention), 1, 5, 9, mask.device)
    assert place.mask.data_ptr() == mask.data_ptr()
    attention.full_attn_backend.forward_metadata.custom_mask = None
    assert not graph_reads_mask(attention)


def trees() -> Trees:
    """The same tree in two rows: the root, its children 1 and 2, a child 3 of 2, and padding."""
    made = Trees(ROWS, 5, 4, "cpu")
    made.parents.copy_(torch.tensor([-1, 0, 0, 2, -1]).expand(ROWS, 5))
    ops.lay_out(made, torch.tensor([3, 7]), torch.zeros(ROWS, 5, dtype=torch.int64))
    return made


def states_of(told: Any = None) -> States:
    made = runner()
    made.attn_backend.linear_attn_backend.forward_metadata = told
    return States(SimpleNamespace(model_runner=made), ROWS, SIZES, "cpu")


def told_of(made: Trees, padded: int = 1) -> Any:
    """As a graph for one row more holds them, in 32 bits, with whatever the last round left in that row."""
    held = [
        torch.cat([each.to(torch.int32), torch.full((padded, 5), 4, dtype=torch.int32)])
        for each in (made.first_child, made.next_sibling)
    ]
    parents = torch.zeros_like(held[0])
    return SimpleNamespace(retrieve_next_token=held[0], retrieve_next_sibling=held[1], retrieve_parent_token=parents)


def test_links_that_the_pass_reads_are_compared() -> None:
    made = trees()
    assert made.first_child[0].tolist() == [1, -1, 3, -1, -1]
    assert made.next_sibling[0].tolist() == [-1, 2, -1, -1, -1]
    told = told_of(made)
    states_of(told).check_links(made, ROWS)
    for name in ("retrieve_next_token", "retrieve_next_sibling"):
        stale = told_of(made)
        getattr(stale, name)[1, 2] = 0
        with pytest.raises(Refused, match="does not read its trees' links"):
            states_of(stale).check_links(made, ROWS)
        missing = told_of(made)
        setattr(missing, name, None)
        with pytest.raises(Refused, match="does not read its trees' links"):
            states_of(missing).check_links(made, ROWS)
    chain = States(states_of(told_of(made)).target, ROWS, Sizes(5, 4, 1), "cpu")
    chain.check_links(made, ROWS)


def test_the_last_accepted_node_is_committed(tmp_path: Path) -> None:
    walk = Walk(ROWS, 4, "cpu")
    walk.path.copy_(torch.tensor([[0, 2, 3, -1], [0, -1, -1, -1]], dtype=torch.int32))
    walk.commit_lens.copy_(torch.tensor([3, 1]))
    got: dict[str, Any] = {}
    with standin(tmp_path):
        from sglang.srt.speculative import spec_utils

        spec_utils.commit_mamba_states_after_verify = lambda **told: got.update(told)
        states_of().commit("batch", walk, ROWS)
    last = [int(got["accept_index"][row, length - 1]) for row, length in enumerate(got["accept_lens"].tolist())]
    assert [index - row * got["draft_token_num"] for row, index in enumerate(last)] == [3, 0]
    assert got["draft_token_num"] == 5
    assert got["batch"] == "batch"


def test_what_the_server_says_of_its_states() -> None:
    states = states_of()
    told = states.describe()
    assert (told["layers"], told["slots"], told["nodes"], told["dtype"]) == (LAYERS, SLOTS, 5, "float32")
    sequences = LAYERS * SLOTS * (2 * 4 * 4 + 6 * 3) * 4
    nodes, columns = LAYERS * (ROWS + 1) * 5 * 2 * 4 * 4 * 4, LAYERS * (ROWS + 1) * 5 * 6 * 3 * 4
    assert told["bytes"] == {"states": sequences, "node_states": nodes, "node_windows": columns}
    assert "3 layers of float32, 5 nodes by links, states=0.000 GiB" in states.line()
