"""The words of an OpenAI-compatible ``/v1/completions`` with token ids: what is sent, and what a stream's events say.

The fields beyond OpenAI's own (``return_token_ids``, ``return_tokens_as_token_ids``, ``top_k``, ``ignore_eos``,
``stop_token_ids``, ``token_ids`` of a chunk, ``metrics.speculative_decoding`` of the usage chunk) are vLLM's, from the
documentation of its OpenAI-compatible server. The last one needs vLLM 0.32 with
``--per-request-spec-decode-metrics``, and ``cached_tokens`` needs ``--enable-prompt-tokens-details``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

PATH = "/v1/completions"


@dataclass(frozen=True)
class TokenRequest:
    """One prompt as token ids, with everything that decides what is generated. ``top_k`` 0: no limit."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()
    gaps: bool = False  # asks for the two best tokens of every step; slower, so never of a request that is measured
    name: str = ""  # what the engine is to call it, where its records of it are read; "": as it likes


@dataclass(frozen=True)
class Speculation:
    """What a server says about the verify rounds of one request, before any clipping at stop or max tokens.

    ``histogram[a]`` is the number of rounds that accepted a drafted tokens. ``accepted_by_round`` and
    ``drafted_by_round`` are in order of the rounds, None where the server does not list them.
    """

    rounds: int
    drafted: int
    accepted: int
    histogram: tuple[int, ...]
    accepted_by_round: tuple[int, ...] | None = None
    drafted_by_round: tuple[int, ...] | None = None


class Event(NamedTuple):
    """One event of a stream, as far as it says anything; ``token_ids`` are those new in it.

    ``gaps``: of each new token, the best log-probability less the second best; None where it is neither of the two.
    """

    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    speculation: Speculation | None = None
    error: str | None = None
    gaps: tuple[float | None, ...] = ()


class Wire(Protocol):
    """How requests are put to a server and what its streams say; this module is one."""

    PATH: str

    def body(self, request: TokenRequest, model: str) -> dict[str, Any]: ...

    def read_event(self, data: dict[str, Any], have: int = 0) -> Event: ...


def body(request: TokenRequest, model: str) -> dict[str, Any]:
    """The JSON of a request. All sampling settings are named, so that no default of a server or a model steps in."""
    return {
        "model": model,
        "prompt": list(request.prompt_ids),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed,
        "ignore_eos": request.ignore_eos,
        "stop": [],
        "stop_token_ids": list(request.stop_ids),
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **({"logprobs": 2, "return_tokens_as_token_ids": True} if request.gaps else {}),
    }


def read_event(data: dict[str, Any], have: int = 0) -> Event:
    """What one ``data:`` object of the stream says; ``have`` counts the tokens that came before it.

    Raises:
        ValueError: a choice without ``token_ids``: the server does not know ``return_token_ids``.
    """
    if "error" in data:
        return Event(error=error_text(data))
    token_ids, finish_reason, logprobs = (), None, None
    if choices := data.get("choices"):
        choice = choices[0]
        token_ids, finish_reason, logprobs = (
            choice.get("token_ids"),
            choice.get("finish_reason"),
            choice.get("logprobs"),
        )
        if token_ids is None:
            raise ValueError("the server sends no token ids: it does not know return_token_ids")
    usage, metrics = data.get("usage"), data.get("metrics")
    if not (usage or metrics or logprobs):  # nearly all events: what is made of one decides what a client can take
        return Event(tuple(token_ids), finish_reason)
    usage = usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return Event(
        tuple(token_ids),
        finish_reason,
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        details.get("cached_tokens"),
        _speculation((metrics or {}).get("speculative_decoding")),
        gaps=_gaps(logprobs),
    )


def _gaps(logprobs: dict[str, Any] | None) -> tuple[float | None, ...]:
    """From ``tokens`` and ``top_logprobs`` of a choice, one entry a token; tokens are named ``token_id:<id>``."""
    if not logprobs:
        return ()
    gaps = []
    for token, offered in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        first, *rest = sorted((offered or {}).items(), key=lambda item: -item[1]) or [("", 0.0)]
        known = bool(rest) and token in (first[0], rest[0][0])
        gaps.append(first[1] - rest[0][1] if known else None)
    return tuple(gaps)


def error_text(data: Any) -> str:
    """The message of an error object, in the shapes that servers give it: nested, flat, or FastAPI's ``detail``."""
    found = data
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return str(found)


def _speculation(data: dict[str, Any] | None) -> Speculation | None:
    if data is None:
        return None
    by_round = [data.get(key) for key in ("per_step_accepted", "per_step_drafted")]
    accepted_by_round, drafted_by_round = (None if each is None else tuple(each) for each in by_round)
    return Speculation(
        data["num_spec_steps"],
        data["num_draft_tokens"],
        data["num_accepted_draft_tokens"],
        tuple(data["acceptance_histogram"]),
        accepted_by_round,
        drafted_by_round,
    )
