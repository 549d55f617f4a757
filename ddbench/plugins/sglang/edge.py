"""How far a sequence may grow: where the context ends, less what rounds under way reach beyond it.

With N the verify width, B the drafter's block and W the larger of both: a round that begins with L committed tokens
writes up to slot L + W and commits up to B. SGLang learns that a sequence has ended when it has launched one round
more. So prompt and answer of at most C - 2 W tokens keep every round's slots, and every row of the mask that SGLang
sized for C tokens, inside a context of C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddbench.plugins.sglang.refused import Refused


@dataclass(frozen=True)
class Edge:
    """Of a server: ``context`` C and ``window`` W. Raises Refused for a context without room."""

    context: int
    window: int

    def __post_init__(self) -> None:
        if self.most < 2:
            least = 2 * self.window + 2
            raise Refused(f"context_length={self.context}: DDTREE needs {least}, two windows and two tokens")

    @property
    def most(self) -> int:
        """Tokens of prompt and answer together."""
        return self.context - 2 * self.window

    def admit(self, request: Any) -> str | None:
        """Why SGLang's ``Req`` is too long, None if it is not; one that leaves its length open gets what remains."""
        asked, prompt = request.sampling_params, len(request.origin_input_ids)
        answer = 1 if asked.max_new_tokens is None else int(asked.max_new_tokens)
        if prompt + answer > self.most:
            return (
                f"ddbench: a prompt of {prompt} tokens and max_new_tokens={asked.max_new_tokens} are more than "
                f"the {self.most} tokens that DDTREE serves: context {self.context} less two windows of {self.window}"
            )
        if asked.max_new_tokens is None:
            asked.max_new_tokens = self.most - prompt
        return None
