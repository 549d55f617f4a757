"""Rounds of several verify widths in one real worker, in an environment with SGLang; no GPU, see `test_round`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_round import BLOCK, ROWS, Lenient, made_up, settings
from test_round import POOL, batch_of

from ddbench.adaptive.policy import Choice
from ddbench.errors import ConfigError
from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.gate import check_engine
from ddbench.plugins.sglang.offers import Offers, Sightings
from ddbench.plugins.sglang.options import WIDTHS_VERSION, Sizes
from ddbench.plugins.sglang.pilot import Pilot, Plan
from ddbench.plugins.sglang.refused import Refused
from ddbench.plugins.sglang.setup import check_adaptive
from ddbench.plugins.sglang.stages import Stage

pytestmark = pytest.mark.sglang
SIZES, WIDTHS = Sizes(33, BLOCK, 8), (1, 4, 9, 33)


class Costs:
    """Milliseconds that grow with the width; autoregressive steps cost ``plain``."""

    def __init__(self, slope: float, plain: float) -> None:
        self.slope, self.plain = slope, plain

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return 1.0 + self.slope * verify_width

    chain_ms = round_ms

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return self.plain


def adaptive(patch: pytest.MonkeyPatch, costs: Costs) -> Any:
    if check_engine() != WIDTHS_VERSION:
        pytest.skip("refused by name on this version, see below")
    arguments = settings(patch, speculative_num_draft_tokens=33, speculative_eagle_topk=8)
    worker = made_up(patch, SIZES, arguments)
    plan = Plan("cost_optimal", Path("costs.json"), WIDTHS)
    worker.stages |= {width: Stage.narrow(width, ROWS, BLOCK, "cpu") for width in WIDTHS[:-1]}
    worker.sampler.offers = Offers(torch_ops, ROWS, SIZES, plan.candidates.trees, "cpu")
    worker.pilot = Pilot(plan, Sightings(worker.sampler.offers, BLOCK), costs, BLOCK - 1)
    widths = worker._target_worker

    def verified(stock: Any = widths.forward_batch_generation, **told: Any) -> Any:
        widths.width = told["forward_batch"].spec_info.draft_token_num
        return stock(**told)

    widths.forward_batch_generation = verified
    return worker


def run(worker: Any, rounds: int) -> tuple[list[list[int]], list[int]]:
    """Texts of three rows after some rounds, each checked against the bigram target; and the widths that were taken."""
    pool, table = worker.model_runner.token_to_kv_pool, worker.model_runner.req_to_token_pool.req_to_token
    lens, texts, taken = torch.tensor([20, 35, 7]), [[3], [40], [66]], []
    draft_input = worker._make_next_draft_input_decode(
        bonus_tokens=torch.tensor([text[0] for text in texts]), new_seq_lens=lens
    )
    for _ in range(rounds):
        found = worker.forward_batch_generation(batch_of(lens, draft_input, greedy=True))
        taken.append(worker._stage.width)
        for row, text in enumerate(texts):
            new = found.next_token_ids.view(3, BLOCK)[row, : int(found.accept_lens[row])].tolist()
            path, begin = [text[-1], *new[:-1]], int(lens[row])
            slots = table[POOL[row], begin : begin + len(new)].long()
            assert pool.k_buffer[0][slots][:, 0, 0].tolist() == path
            assert pool.v_buffer[-1][slots][:, 0, 0].tolist() == list(range(begin, begin + len(new)))
            kept, reach = worker.got[-1], BLOCK if worker._stage.drafts else 1  # a plain step's features are its own
            assert kept["target_hidden"].view(3, reach, -1)[row, : len(new), 0].tolist() == path
            assert kept["cache_loc_2d"][row, : len(new)].tolist() == slots.tolist()
            assert kept["cache_loc"].tolist() == kept["cache_loc_2d"].flatten().tolist()
            assert kept["positions"].view(3, reach)[row, : len(new)].tolist() == list(range(begin, begin + len(new)))
            for token in new:
                assert token == int(worker._target_worker.table[text[-1]].argmax())
                text.append(token)
        lens, draft_input = found.new_seq_lens.clone(), found.next_draft_input
    return texts, taken


def test_any_width_in_any_round_gives_the_targets_text(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    worker = adaptive(monkeypatch, Costs(0.1, 1.0))
    order = [33, 4, 1, 9, 1, 1, 33, 9, 4, 33]
    monkeypatch.setattr(worker.pilot, "next", lambda rows, context: order[len(worker.got)])
    texts, taken = run(worker, len(order))
    assert taken == order
    assert min(map(len, texts)) > len(order) + 5, "paths of more than a token"


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        (Costs(0.0, 1e9), 33),  # width is free: the widest
        (Costs(1e3, 1e9), 4),  # nothing costs but width: the narrowest
        (Costs(1e3, 1e-3), 1),  # nor does the drafter pay
    ],
)
def test_the_policy_takes_what_its_costs_say(costs: Costs, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    worker = adaptive(monkeypatch, costs)
    _, taken = run(worker, 12)
    assert taken[0] == 33  # nothing has been seen yet
    assert taken[1] == (4 if expected == 1 else expected)  # one round behind
    assert taken[-1] == expected
    told = worker.describe()["adaptive"]
    assert sum(told["rounds_of_policy"].values()) == 12
    assert told["widths"] == list(WIDTHS)


def test_what_is_learned_is_what_the_choice_would_have_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a narrower choice the counts are those of its own tree; a wider one's unseen nodes teach nothing."""
    worker = adaptive(monkeypatch, Costs(0.1, 1e9))
    seen: list[Any] = []
    pilot = worker.pilot
    stock = pilot._learn
    monkeypatch.setattr(pilot, "_learn", lambda sighting: (seen.append(sighting), stock(sighting)))
    run(worker, 4)
    sighting = seen[-1]
    mass = sighting.mass.astype(float).sum(axis=0)
    narrow = pilot._kept(sighting, mass, Choice("tree", 3))
    inside = [[node for node in path if 0 < node < 4] for path in sighting.path.tolist()]
    assert narrow.sum() == sum(map(len, inside))
    own = pilot._kept(sighting, mass, Choice("tree", sighting.width - 1))
    assert own.sum() == sum(sum(node > 0 for node in path) for path in sighting.path.tolist())
    if sighting.width < 33:
        wide = pilot._kept(sighting, mass, Choice("tree", 32))
        unseen = mass[-1] - mass[pilot.plan.candidates.trees.index(sighting.width - 1)]
        assert wide == pytest.approx(own + pilot.control.factors * unseen)
    assert (mass[0] <= mass[-1] + 1e-6).all()


def test_the_door_pins_and_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    from ddbench.plugins.sglang.control import set_state

    worker = adaptive(monkeypatch, Costs(0.1, 1e9))
    monkeypatch.setattr(worker, "_costs", lambda plan: Costs(1e3, 1e9))
    scheduler = SimpleNamespace(draft_worker=worker)

    def ask(**values: int) -> bool:
        request = SetInternalStateReq(server_args={f"ddtree_{name}": value for name, value in values.items()})
        return bool(set_state(lambda *a: None, scheduler, request).updated)

    assert ask(verify=9)
    assert run(worker, 3)[1] == [9, 9, 9]
    assert ask(policy=1)
    assert run(worker, 3)[1][-1] == 4
    assert not ask(verify=10)
    with pytest.raises(ConfigError, match="ddtree_verify=10: 0 or one of 1, 4, 9, 33"):
        worker.pilot.pin(10)
    worker.pilot = None
    assert not ask(verify=9)
    assert worker.describe()["adaptive"] is None


def test_where_the_width_cannot_change_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = settings(monkeypatch, speculative_num_draft_tokens=33, speculative_eagle_topk=8)
    worker = made_up(monkeypatch, SIZES, arguments)
    if check_engine() != WIDTHS_VERSION:
        with pytest.raises(Refused, match=f"DDTREE_POLICY with SGLang {check_engine()}"):
            check_adaptive(worker)
        return
    check_adaptive(worker)
    for name, says in (("states", "recurrent layers"), ("recorder", "recording")):
        monkeypatch.setattr(worker, name, object())
        with pytest.raises(Refused, match=says):
            check_adaptive(worker)
        monkeypatch.setattr(worker, name, None)
    monkeypatch.setattr(worker.sampler, "group", object())
    with pytest.raises(Refused, match="tensor parallelism"):
        check_adaptive(worker)


def test_a_runners_graphs_are_bound_for_one_pass() -> None:
    stage, runner = Stage.narrow(4, 2, BLOCK, "cpu"), Lenient(decode_cuda_graph_runner="own")
    stage.graphs = "narrow"

    def breaks() -> None:
        with stage.bound(runner):
            assert runner.decode_cuda_graph_runner == "narrow"
            raise ValueError("broke")

    with pytest.raises(ValueError, match="broke"):
        breaks()
    assert runner.decode_cuda_graph_runner == "own"
