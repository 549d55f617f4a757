"""After a round the caches hold what a prefill of the same tokens would put there; without compaction they do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ddbench.decoding import ModelPair, Strategy, decode
from ddbench.decoding.kv import KVBuffer
from ddbench.decoding.proposal import Proposer
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.decoding.target import Prompts, Target

TREES = [
    Strategy("ddtree", nodes=16),
    Strategy("ddtree", nodes=40, width=3, depth=5),
    Strategy("eagle", width=3, depth=4, nodes=12),
]


class WithoutCompaction(SpeculativeLoop):
    """The planted fault: the accepted path stays where the verify pass wrote it."""

    def compact(self, length: Tensor, path: Tensor) -> None:
        return None


class Watching(SpeculativeLoop):
    """After every step, compares each row of the caches with a prefill of its tokens into caches of one row."""

    compactions = 0
    compared = 0

    def compact(self, length: Tensor, path: Tensor) -> None:
        Watching.compactions += 1
        super().compact(length, path)

    def step(self) -> None:
        super().step()
        if all(row.finish_reason is not None for row in self.batch.active):
            return  # the drafter's caches are not kept up for rows that are about to go
        own = self.proposer.cache  # type: ignore[attr-defined]
        for index, row in enumerate(self.batch.active):
            tokens = [*row.request.token_ids, *row.output][: row.length]
            if len(tokens) < row.length:
                continue  # finished, and cut before the end of its path
            prompts = Prompts.of([tokens], 0, self.target.dtype, self.target.device)
            with Target(self.target.model, self.target.taps, 1, row.length) as fresh:
                _, features = fresh.prefill(prompts)
            assert features is not None
            check(self.target.cache, index, fresh.cache, row.length)
            if row.finish_reason is None:
                drafter_cache = prefilled(self.proposer, prompts, features, row.output[-1])
                check(own, index, drafter_cache, row.length)
            Watching.compared += 1


def prefilled(proposer: Proposer, prompts: Prompts, features: Tensor, bonus: int) -> KVBuffer:
    """The drafter's cache after admission of ``prompts`` into a proposer of one row."""
    twin = object.__new__(type(proposer))
    twin.__dict__.update(proposer.__dict__)
    twin.bind(proposer.target, 1, proposer.cache.length)  # type: ignore[attr-defined]
    twin.admit(prompts, features, torch.tensor([bonus]))
    cache: KVBuffer = twin.cache  # type: ignore[attr-defined]
    return cache


def check(cache: KVBuffer, row: int, fresh: KVBuffer, length: int) -> None:
    torch.testing.assert_close(cache.data[:, :, row, :, :length], fresh.data[:, :, 0, :, :length], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "strategy", [*TREES, Strategy("dflash"), Strategy("eagle", depth=4)], ids=lambda each: each.name
)
def test_caches_equal_a_fresh_prefill(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    Watching.compactions = Watching.compared = 0
    toys.run_loop(pair, strategy, toys.requests(6, [20, 9, 14, 20, 3, 11]), 3, Watching)
    assert Watching.compared > 20
    chain = strategy.name == "dflash" or (strategy.name == "eagle" and strategy.width is None)
    assert (Watching.compactions == 0) == chain, "a chain's path is in place; a tree's was never out of place"


@pytest.mark.parametrize("strategy", TREES, ids=["ddtree", "ddtree-wide", "eagle"])
def test_text_is_wrong_without_compaction(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    requests = toys.requests(8, 32)
    expected = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), requests, 8)]
    right = toys.run_loop(pair, strategy, requests, 8)
    wrong = toys.run_loop(pair, strategy, requests, 8, WithoutCompaction)
    assert [each.output_token_ids for each in right] == expected
    assert [each.output_token_ids for each in wrong] != expected


def test_compact_moves_paths_of_different_lengths() -> None:
    torch.manual_seed(0)
    buffer = KVBuffer(2, 3, 2, 20, 4, torch.float32, torch.device("cpu"))
    buffer.data.normal_()
    before = buffer.data.clone()
    lengths = torch.tensor([3, 7, 5])
    path = torch.tensor([[0, 2, 5, 9], [0, 1, 4, -1], [0, -1, -1, -1]])
    buffer.compact(lengths, path)
    for row, (length, steps) in enumerate(zip(lengths.tolist(), path.tolist(), strict=True)):
        kept = [length + step for step in steps if step >= 0]
        for slot, source in enumerate(kept, start=length):
            assert torch.equal(buffer.data[:, :, row, :, slot], before[:, :, row, :, source])
        assert torch.equal(buffer.data[:, :, row, :, :length], before[:, :, row, :, :length])
        end = length + len(kept)
        untouched = list(range(end, buffer.length))
        assert torch.equal(buffer.data[:, :, row, :, untouched], before[:, :, row, :, untouched])


def test_move_row() -> None:
    buffer = KVBuffer(2, 3, 2, 20, 4, torch.float32, torch.device("cpu"))
    buffer.data.normal_()
    before = buffer.data.clone()
    buffer.move_row(2, 0, 9)
    assert torch.equal(buffer.data[:, :, 0, :, :9], before[:, :, 2, :, :9])
    assert torch.equal(buffer.data[:, :, 0, :, 9:], before[:, :, 0, :, 9:])
    assert torch.equal(buffer.data[:, :, 1:], before[:, :, 1:])
