"""The ledger of first differences, with the gaps that vLLM's own prefill gives them."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.evidence.identity import Difference, forks
from experiments.vllm_evidence.fleet import Engine


def ledger(
    judge: Engine,
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    reference: Sequence[Sequence[int]],
) -> list[Difference]:
    """Both continuations of every first difference, rescored by one autoregressive prefill of ``judge``."""
    found = forks(tokens, reference)
    known = [fork for fork in found if fork.theirs is not None and fork.ours is not None]
    starts = [[*prompts[fork.prompt], *reference[fork.prompt][: fork.place]] for fork in known]
    asked = [[*start, fork.theirs] for start, fork in zip(starts, known, strict=True)]
    asked += [[*start, fork.ours] for start, fork in zip(starts, known, strict=True)]
    gaps = {}
    if asked:
        params = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 1}
        rows = judge.ask(prompts=asked, params=params, in_flight=8, logprobs=True)["logprobs"]
        for fork, theirs, ours in zip(known, rows[: len(known)], rows[len(known) :], strict=True):
            gaps[fork] = theirs[-1][str(fork.theirs)] - ours[-1][str(fork.ours)]
    return [Difference(fork.prompt, fork.place, gaps.get(fork)) for fork in found]
