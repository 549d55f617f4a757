"""The ledger of first differences, with the gaps that SGLang's own autoregressive prefill gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.evidence.identity import Difference, forks, identity_share, summary
from experiments.sglang_evidence.fleet import Engine

Texts = Sequence[Sequence[int]]


class Judge:
    """Rescores by one autoregressive engine, and remembers: many arms part from the baseline at the same places."""

    def __init__(self, engine: Engine, dtype: str) -> None:
        self._engine, self._dtype = engine, dtype
        self._known: dict[tuple[tuple[int, ...], int, int], float] = {}

    def ledger(self, prompts: Texts, tokens: Texts, reference: Texts) -> list[Difference]:
        """Each first difference with the baseline's log-probability of its token less that of the other, after the same
        prefix. Raises EngineFailure when the engine is gone."""
        found = forks(tokens, reference)
        keys = {
            fork: ((*prompts[fork.prompt], *reference[fork.prompt][: fork.place]), fork.theirs, fork.ours)
            for fork in found
            if fork.theirs is not None and fork.ours is not None
        }
        new = [key for key in dict.fromkeys(keys.values()) if key not in self._known]
        if new:
            prefixes, pairs = [list(key[0]) for key in new], [[key[1], key[2]] for key in new]
            told = self._engine.ask(verb="gaps", prefixes=prefixes, pairs=pairs)["logprobs"]
            self._known |= {key: theirs - ours for key, (theirs, ours) in zip(new, told, strict=True)}
        gaps = {fork: self._known[key] for fork, key in keys.items()}
        return [Difference(fork.prompt, fork.place, gaps.get(fork)) for fork in found]

    def compare(self, prompts: Texts, tokens: Texts, reference: Texts) -> dict[str, Any]:
        """Share of identical outputs, and what the differences are."""
        share = round(identity_share(tokens, reference), 4)
        return {"share": share, **summary(self.ledger(prompts, tokens, reference), self._dtype)}
