"""Replayed passes: the same text and rounds. A CPU runs the shapes of the graphs, without the graphs."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from ddbench.decoding import Generation, KeptGraphs, ModelPair, Strategy, decode, graphs
from ddbench.decoding.graphs import WARM, Graphs, no_collection, stepped
from ddbench.decoding.kv import Slots
from ddbench.decoding.masks import chain_ancestors, tree_mask
from ddbench.decoding.target import Prompts, Target


def told(generations: list[Generation]) -> list[tuple[tuple[int, ...], list[tuple[int, int]]]]:
    return [(each.output_token_ids, [(one.accepted_raw, one.drafted) for one in each.rounds]) for each in generations]


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small steps, so that short texts need several lengths of view."""
    monkeypatch.setattr(graphs, "STEP", 32)


def test_lengths_step_up_to_the_cache() -> None:
    assert [stepped(length, 80) for length in (1, 32, 33, 65, 80)] == [32, 32, 64, 80, 80]


def test_a_shape_is_captured_once_it_has_come_often_enough() -> None:
    kept, seen = Graphs(torch.device("cpu")), []

    def double(values: torch.Tensor) -> torch.Tensor:
        seen.append(values)
        return values * 2

    for call in range(WARM + 2):
        given = torch.full((2,), float(call))
        assert kept.run("double", double, given).tolist() == [2.0 * call] * 2
        assert (seen[-1] is given) == (call < WARM)
        assert len(kept) == (call >= WARM)
    assert (kept.replayed, kept.direct) == (2, WARM)
    assert seen[-1] is seen[-2], "the inputs of a graph stay where they are"


def test_lossless_with_the_same_rounds(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    requests = toys.requests(3, [14, 24, 40])
    plain = decode(pair, strategy, requests, 2)
    assert told(decode(pair, strategy, requests, 2, graphs=True)) == told(plain)
    assert any(one.accepted for each in plain for one in each.rounds)


def test_autoregressive(pair: ModelPair, toys: SimpleNamespace) -> None:
    requests, plain = toys.requests(3, [14, 24, 40]), Strategy("autoregressive")
    assert told(decode(pair, plain, requests, 2, graphs=True)) == told(decode(pair, plain, requests, 2))


def test_graphs_end_with_their_decode(pair: ModelPair, toys: SimpleNamespace) -> None:
    """However it ends: what is left to the garbage collector may be destroyed in the middle of another's capture."""
    made: list[Graphs] = []

    def stop(_: Generation) -> None:
        raise KeyboardInterrupt

    asked = {"graphs": True, "on_start": made.append}
    decode(pair, Strategy("ddtree", nodes=8), toys.requests(1, 24), 1, **asked)
    with pytest.raises(KeyboardInterrupt):
        decode(pair, Strategy("ddtree", nodes=8), toys.requests(1, 24), 1, on_finish=stop, **asked)
    assert [len(each) for each in made] == [0, 0]
    assert all(each.captured > 0 for each in made)
    assert hooks_of(pair) == 0


def test_a_collection_waits_for_the_end_of_a_capture() -> None:
    seen = [gc.isenabled()]

    def failing() -> None:
        with no_collection():
            seen.append(gc.isenabled())
            with no_collection():
                pass
            seen.append(gc.isenabled())
            raise ValueError("in it")

    with pytest.raises(ValueError, match="in it"):
        failing()
    assert [*seen, gc.isenabled()] == [True, False, False, True]


def test_graphs_are_kept_for_a_decode_of_the_same_sizes(pair: ModelPair, toys: SimpleNamespace) -> None:
    requests, tree, eagle = toys.requests(3, [14, 20, 9]), Strategy("ddtree", nodes=8), Strategy("eagle", depth=3)
    made: list[Graphs] = []
    kept = KeptGraphs(room=64)
    plain = {each: told(decode(pair, each, requests, 2)) for each in (tree, eagle, Strategy("autoregressive"))}

    def again(strategy: Strategy, some: int) -> None:
        out = decode(pair, strategy, requests[:some], 2, graphs=kept, on_start=made.append)
        assert told(out) == plain[strategy][:some]
        assert hooks_of(pair) == 0

    again(tree, 3)
    first = made[0].captured, made[0].replayed, made[0].direct
    again(tree, 3)
    again(tree, 2)
    assert made[0] is made[1] is made[2]
    assert made[0].captured == len(made[0]) > 0, "no shape was captured twice"
    more = made[0].captured - first[0], made[0].replayed - first[1], made[0].direct - first[2]
    assert more[0] < first[0]
    assert more[1] > 1.5 * first[1]
    assert more[2] < first[2]
    again(Strategy("autoregressive"), 3)
    assert made[3] is not made[0]
    assert len(made[0]) == 0, "what is not needed is let go"
    for _ in range(2):
        again(eagle, 3)
    assert made[4] is made[5]
    kept.release()
    assert len(made[5]) == 0


def test_a_decode_that_fails_leaves_nothing_kept(pair: ModelPair, toys: SimpleNamespace) -> None:
    requests, tree, kept = toys.requests(1, 16), Strategy("ddtree", nodes=8), KeptGraphs()
    made: list[Graphs] = []

    def stop(_: Generation) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        decode(pair, tree, requests, 1, graphs=kept, on_finish=stop, on_start=made.append)
    assert (len(made[0]), hooks_of(pair)) == (0, 0)
    assert told(decode(pair, tree, requests, 1, graphs=kept)) == told(decode(pair, tree, requests, 1))


def hooks_of(pair: ModelPair) -> int:
    """Hooks of targets in the model; the library may have others of its own."""
    found = [
        one
        for each in pair.target.modules()
        for one in (*each._forward_pre_hooks.values(), *each._forward_hooks.values())
    ]
    return sum("Target._install" in getattr(each, "__qualname__", "") for each in found)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_replayed_pass_gives_what_an_eager_one_gives(toys: SimpleNamespace, device: str) -> None:
    """Logits and taps of two engines in a row, each pass beside one without graphs over a cache of its own."""
    pair, taps = toys.pair(device=device), (1, 3)
    for _ in range(2):
        both = [Target(pair.target, taps, 2, 96, graphs=graphs) for graphs in (True, False)]
        prompts = Prompts.of([[1, 2, 3], [4, 5, 6, 7, 8]], 0, pair.dtype, pair.device)
        with torch.inference_mode(), both[0], both[1]:
            for target in both:
                target.prefill(prompts)
            for step in range(2 * WARM):
                host = [3 + 4 * step, 5 + 4 * step]
                lengths = torch.tensor(host, device=device)
                ids = (torch.arange(8, device=device).view(2, 4) + step) % 20
                mask = tree_mask(chain_ancestors(4, pair.device), lengths, 48, pair.dtype)
                slots = Slots.following(host, lengths, 4)
                positions = lengths[:, None] + torch.arange(4, device=device)
                found = [target.forward(ids, positions, mask, slots, 48) for target in both]
                index = torch.tensor([[0, 3], [1, 2]], device=device)
                torch.testing.assert_close(found[0], found[1], atol=2e-4, rtol=2e-4)
                tapped = [target.features(index) for target in both]
                torch.testing.assert_close(tapped[0], tapped[1], atol=2e-4, rtol=2e-4)
            graphs = both[0].graphs
            assert graphs is not None
            assert (graphs.captured, graphs.replayed, graphs.direct) == (1, WARM, WARM)


@pytest.mark.gpu
def test_a_capture_on_cuda_holds_the_collector() -> None:
    """And graphs that others left behind as garbage do not end it."""
    seen: list[bool] = []

    def double(values: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        return values * 2

    for _ in range(2):
        made = Graphs(torch.device("cuda", torch.cuda.current_device()))
        for call in range(WARM + 3):
            assert made.run("double", double, torch.full((4,), float(call), device="cuda")).tolist() == [2.0 * call] * 4
        cycle: list[object] = [made]
        cycle.append(cycle)  # only the collector can end these
    assert seen == 2 * ([True] * WARM + [False])
    made.release()
    assert len(made) == 0


@pytest.mark.gpu
def test_engines_in_a_row_on_cuda(toys: SimpleNamespace) -> None:
    """What failed once: the graphs of a decode before were destroyed while the next one captured."""
    kept, requests = KeptGraphs(), toys.requests(2, 40)
    thresholds = gc.get_threshold()
    gc.set_threshold(50, 1, 1)
    try:
        for seed in (0, 1):
            pair = toys.pair(seed=seed, device="cuda")
            expected = [toys.reference(pair.target, request) for request in requests]
            for graphs in (True, kept, True, kept):
                for strategy in (Strategy("autoregressive"), Strategy("dflash"), Strategy("ddtree", nodes=16)):
                    out = decode(pair, strategy, requests, 2, graphs=graphs)
                    assert [each.output_token_ids for each in out] == expected
    finally:
        gc.set_threshold(*thresholds)
        kept.release()


@pytest.mark.gpu
@pytest.mark.parametrize("batch_size", [1, 3])
def test_on_cuda(toys: SimpleNamespace, strategy: Strategy, batch_size: int) -> None:
    pair, requests = toys.pair(device="cuda"), toys.requests(8, 40)
    expected = [toys.reference(pair.target, request) for request in requests]
    for chosen in (Strategy("autoregressive"), strategy):
        out = decode(pair, chosen, requests, batch_size, graphs=True)
        assert [each.output_token_ids for each in out] == expected
