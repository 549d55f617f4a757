"""Recording on SGLang: a server of our plug-in whose rounds are of the root alone, and what it wrote of them.

The text is the server's own autoregressive one: each round emits the target's next token. What the target says behind
an answer is asked for as its continuation. Temperature 0 alone: SGLang's draws are not keyed by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddbench.decoding import Generation
from ddbench.plugins.kernels.limits import MOST_NODES
from ddbench.plugins.sglang.dumps import ROOTS
from ddbench.records import Arm
from ddbench.replay.engine import Incomplete, Spoken, trace_of
from ddbench.replay.record import Recorded
from ddbench.replay.trace import Key
from runners import environments
from runners.base import EngineFailure, ServerSpec
from runners.completions import TokenRequest
from runners.prompts import lengths
from runners.sglang.recording import RecordingRunner, Told

if TYPE_CHECKING:
    from ddbench.decoding import Request


class SglangRecorder:
    """See :class:`experiments.record.recorders.Recorder`. The server is started with the first request."""

    def __init__(self, spec: ServerSpec, arm: Arm, nodes: int) -> None:
        """``arm``: a DDTREE arm, as narrow as can be. Raises ConfigError."""
        assert spec.server is not None
        assert spec.model.block_size is not None
        self._runner = RecordingRunner(spec, arm, min(nodes, MOST_NODES))
        self._facts = self._runner.start()
        self.prompts, self.stop_ids, self.gpu = self._runner.prompts, self._runner.stop_ids, self._runner.gpu
        self.build = str(environments.our_hash())
        self.most_candidates, self.depth = MOST_NODES, spec.model.block_size - 1
        self.most_tokens = spec.context_length - spec.server.reserved

    def facts(self) -> dict[str, Any]:
        return {**self._facts, "prompt_tokens": lengths(self.prompts)}

    def stop(self) -> None:
        self._runner.stop()

    def record(self, requests: Sequence[Request], nodes: int, batch_size: int, by: str) -> Iterator[Recorded]:
        runner = self._runner
        runner.open()
        runner.set(record=ROOTS)
        said = runner.told([_asked(each, each.max_new_tokens) for each in requests], batch_size)
        tails = self._tails(requests, said, batch_size)
        for request, told, tail in zip(requests, said, tails, strict=True):
            yield _recorded(request, told, tail, nodes)

    def _tails(self, requests: Sequence[Request], said: Sequence[Told], batch_size: int) -> list[tuple[int, ...]]:
        """What comes behind every answer: as far as a last round can look."""
        if self.depth == 1:
            return [()] * len(requests)
        behind = [
            TokenRequest((*request.token_ids, *told.completion.token_ids), self.depth - 1, ignore_eos=True)
            for request, told in zip(requests, said, strict=True)
        ]
        return [each.completion.token_ids for each in self._runner.told(behind, batch_size)]


def _asked(request: Request, tokens: int) -> TokenRequest:
    stops = tuple(sorted(request.stop_ids))
    return TokenRequest(request.token_ids, tokens, ignore_eos=not stops, stop_ids=stops)


def _recorded(request: Request, told: Told, tail: tuple[int, ...], nodes: int) -> Recorded:
    """Raises EngineFailure where the rounds are not those of the answer."""
    done = told.completion
    assert done.finish_reason in ("stop", "length")
    key = Key(request.prompt_id, request.turn, "", "", 0, 0, 0.0)
    spoken = Spoken(key, len(request.token_ids), done.finish_reason, done.token_ids, tail)
    try:
        trace = trace_of(spoken, told.rounds)
    except Incomplete as error:
        raise EngineFailure(f"the recording is not whole: {error}") from None
    generation = Generation(
        request,
        done.token_ids,
        (),
        done.start_s,
        done.first_token_s or done.start_s,
        done.finish_s,
        done.finish_reason,  # type: ignore[arg-type]
        len(request.token_ids),
    )
    return Recorded(generation, tail, None, trace.log_probs[:, :, :nodes], _within(trace.ranks, nodes))


def _within(ranks: Any, nodes: int) -> Any:
    """Ranks among the first ``nodes`` candidates, -1 beyond."""
    found = ranks.copy()
    found[found >= nodes] = -1
    return found
