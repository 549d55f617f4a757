"""What a generation records: counters that add up, clocks in order, one round record a verify pass."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from ddbench.decoding import Generation, ModelPair, Strategy, decode


def test_counters_add_up(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    for generation in decode(pair, strategy, toys.requests(10, 23), 4):
        rounds = generation.rounds
        assert 1 + sum(each.emitted for each in rounds) == len(generation.output_token_ids) == 23
        for each in rounds[:-1]:
            assert each.emitted == each.accepted + 1 == each.accepted_raw + 1
        last = rounds[-1]
        assert last.accepted == min(last.accepted_raw, last.emitted)
        assert 1 <= last.emitted <= last.accepted_raw + 1
        for each in rounds:
            assert 0 <= each.accepted_raw <= each.tree_depth <= each.drafted
            assert 1 <= each.in_flight <= 4
            assert min(each.draft_s, each.build_s, each.verify_s, each.commit_s) >= 0
            assert each.verify_s > 0


def test_shapes_are_kept(pair: ModelPair, toys: SimpleNamespace) -> None:
    def rounds(strategy: Strategy) -> list[tuple[int, int]]:
        out = decode(pair, strategy, toys.requests(4, 12), 4)
        return [(each.drafted, each.tree_depth) for generation in out for each in generation.rounds]

    assert set(rounds(Strategy("dflash"))) == {(7, 7)}
    assert set(rounds(Strategy("dflash", depth=3))) == {(3, 3)}
    assert set(rounds(Strategy("eagle", depth=4))) == {(4, 4)}
    assert {drafted for drafted, _ in rounds(Strategy("eagle", width=3, depth=4, nodes=12))} == {12}
    assert {drafted for drafted, _ in rounds(Strategy("ddtree", nodes=40))} == {40}
    assert {drafted for drafted, _ in rounds(Strategy("ddtree"))} == {7}
    assert max(depth for _, depth in rounds(Strategy("ddtree", nodes=40, depth=2))) == 2
    spined = rounds(Strategy("ddtree", nodes=9, depth=5, force_spine=True))
    assert {depth for _, depth in spined} == {5}
    sparse = rounds(Strategy("ddtree", nodes=40, min_log_prob=-1.0))
    assert max(drafted for drafted, _ in sparse) < 40
    assert rounds(Strategy("ddtree", nodes=40, min_log_prob=-1e-9))  # often no node passes: a plain step of the target


def test_autoregressive_has_no_rounds(pair: ModelPair, toys: SimpleNamespace) -> None:
    for generation in decode(pair, Strategy("autoregressive"), toys.requests(5, 9), 2):
        assert generation.rounds == ()
        assert len(generation.output_token_ids) == 9


@pytest.mark.parametrize("name", ["autoregressive", "dflash", "ddtree"])
def test_clocks_and_order(pair: ModelPair, toys: SimpleNamespace, name: str) -> None:
    """Closed loop: at most ``batch_size`` in flight, a waiting request starts when another ends."""
    seen: list[Generation] = []
    requests = toys.requests(10, [1, 20, 3, 17, 2, 29, 1, 8, 33, 12])
    out = decode(pair, Strategy(name), requests, 3, on_finish=seen.append)
    assert [each.request for each in out] == requests
    assert sorted(map(id, seen)) == sorted(map(id, out))
    assert [each.finish_s for each in seen] == sorted(each.finish_s for each in seen)
    for each in out:
        assert 0 <= each.start_s <= each.first_token_s <= each.finish_s
        assert each.prompt_tokens == len(each.request.token_ids)
        assert each.error is None
    events = sorted([(each.start_s, 1) for each in out] + [(each.finish_s, -1) for each in out])
    flying = [0]
    for _, change in events:
        flying.append(flying[-1] + change)
    assert max(flying) == 3
    starts = sorted(each.start_s for each in out)
    assert all(later >= earlier for earlier, later in pairwise(starts))


def test_a_clock_of_ones_own(pair: ModelPair, toys: SimpleNamespace) -> None:
    """Clocks are differences to the clock's value when decoding began."""
    now = iter(range(1000, 100000))
    out = decode(pair, Strategy("dflash"), toys.requests(2, 5), 2, clock=lambda: float(next(now)))
    assert all(0 < each.start_s < each.first_token_s < each.finish_s < 1000 for each in out)
    assert all(float(each.rounds[0].verify_s).is_integer() for each in out)


def test_no_request(pair: ModelPair) -> None:
    assert decode(pair, Strategy("ddtree", nodes=8), [], 4) == []
