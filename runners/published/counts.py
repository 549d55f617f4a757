"""The counts of one answer of the published implementation, in the words of :mod:`ddbench.decoding.api`."""

from __future__ import annotations

from collections.abc import Sequence

from ddbench.decoding import Request, Round

UNMEASURED = ("tree_depth", "draft_s", "build_s", "verify_s", "commit_s")  # of a round: it sums stages over an answer


def rounds_of(
    lengths: Sequence[int], output_tokens: int, drafted: int, depth: int | None, verify_width: int
) -> tuple[tuple[Round, ...], int]:
    """The rounds of an answer, and how many more it ran that could add nothing.

    ``lengths``: of each round, the tokens that it emitted before any cut, the accepted ones and the bonus token.
    ``output_tokens``: of the answer after the cut, prefill's token included. The published loop asks whether the answer
    is over after a round, by the tokens before the bonus token: it may run one more round than an answer has room for,
    which no other engine runs. That one is left out of the counts, but its time is in the clocks.

    Stage seconds, and ``tree_depth`` where ``depth`` is None, are zeros that stand for :data:`UNMEASURED`.
    """
    left, rounds = output_tokens - 1, []
    for length in lengths:
        if left <= 0:
            break
        emitted = min(length, left)
        left -= emitted
        accepted = length - 1
        rounds.append(
            Round(drafted, depth or 0, min(accepted, emitted), accepted, emitted, 1, 0.0, 0.0, 0.0, 0.0, verify_width)
        )
    return tuple(rounds), len(lengths) - len(rounds)


def trouble(request: Request, output: Sequence[int], lengths: Sequence[int]) -> str | None:
    """What is wrong with an answer; None if nothing is.

    The published code drops every output token that equals the drafter's mask token, so that an answer can be shorter
    than its rounds say.
    """
    most = min(1 + sum(lengths), request.max_new_tokens)
    if not output:
        return "the answer is empty"
    if output[-1] in request.stop_ids:
        return None if len(output) <= most else f"{len(output)} tokens, and its rounds emitted {most}"
    if len(output) != most:
        return f"{len(output)} tokens, and its rounds emitted {most}: it drops tokens that equal the mask token"
    return None
