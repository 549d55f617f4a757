"""Streams token completions from an engine server and keeps the clock of every chunk."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

from runners import completions
from runners.completions import Speculation, TokenRequest

CONNECT_TIMEOUT_S = 10.0
MAX_EVENT_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Completion:
    """One request and what came of it. Times are of ``time.perf_counter``, in seconds.

    A chunk is an event of the stream that brought tokens: ``chunk_times_s[i]`` is when it came and ``chunk_tokens[i]``
    how many it brought, the prefill's token in the first. A server sends one an engine step, but joins
    steps when its own sending falls behind: check the counts against its metrics before taking chunks for rounds.
    ``token_ids`` includes a stop token that ended the text. ``error`` is None for a request that ran to its end; what
    came before an error is kept. ``refused``: the server could not be reached at all.
    """

    request: TokenRequest
    token_ids: tuple[int, ...]
    chunk_times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    start_s: float
    first_token_s: float | None
    finish_s: float  # last chunk with tokens; of a failed request, when it failed
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    speculation: Speculation | None
    error: str | None
    refused: bool = False
    gaps: tuple[float | None, ...] = ()  # see Event; of requests that asked for them


def not_sent(request: TokenRequest, why: str, now_s: float) -> Completion:
    """The record of a request that never left, since the engine was gone."""
    return Completion(request, (), (), (), now_s, None, now_s, None, None, None, None, f"not sent: {why}")


class Client:
    """One HTTP client for many streams at once; an asynchronous context manager.

    Every request has a connection of its own, so that none meets one that the server is just closing.
    """

    def __init__(self, base_url: str, model: str, timeout_s: float) -> None:
        """``timeout_s`` bounds each request from its start to the end of its stream."""
        self._url = base_url + completions.PATH
        self._model = model
        self._timeout_s = timeout_s
        self._aborted: str | None = None

    async def __aenter__(self) -> Client:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def complete(self, request: TokenRequest) -> Completion:
        """Sends one request and reads its stream to the end. Whatever goes wrong becomes ``error``.

        Cancelling the task closes the connection, at which the server aborts the request.
        """
        data = json.dumps(completions.body(request, self._model)).encode()
        stream = _Stream(request, time.perf_counter())
        refused = False
        try:
            await self._read(data, stream)
            error = stream.problem()
        except TimeoutError:
            error = f"no end within {self._timeout_s:g} s"
        except aiohttp.ClientConnectorError as problem:
            error, refused = f"no connection: {problem.os_error.strerror or problem}", True
        except aiohttp.ClientError as problem:
            error = f"the stream broke: {type(problem).__name__}: {problem}"
        except (ValueError, KeyError, TypeError, IndexError) as problem:  # not the JSON that was expected
            error = f"the stream cannot be read: {type(problem).__name__}: {problem}"
        except RuntimeError:  # of a session that was closed before this request could use it
            if self._aborted is None:
                raise
            error = self._aborted
        return stream.result((error and self._aborted) or error, refused)

    async def abort(self, why: str) -> None:
        """Breaks off all streams: each ends with ``why`` as its error, with what had come."""
        self._aborted = why
        await self._session.close()

    async def _read(self, data: bytes, stream: _Stream) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=data, headers=headers) as response:
            if response.status != 200:
                stream.error = f"HTTP {response.status}: {_plain(await response.text())}"
                return
            async for part in response.content.iter_any():
                stream.feed(part, time.perf_counter())


@dataclass
class _Stream:
    """A stream being read: server-sent events, one JSON object a ``data:`` line, ``[DONE]`` at the end."""

    request: TokenRequest
    start_s: float
    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    speculation: Speculation | None = None
    error: str | None = None
    gaps: list[float | None] = field(default_factory=list)
    done: bool = False
    _rest: bytes = b""

    def feed(self, part: bytes, now_s: float) -> None:
        """Takes bytes as they came, at ``now_s``; an event may be spread over several calls."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now_s)

    def _take(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        event = completions.read_event(json.loads(data))
        if event.token_ids:
            self.token_ids.extend(event.token_ids)
            self.times_s.append(now_s)
            self.tokens.append(len(event.token_ids))
            self.gaps.extend(event.gaps)
        self.finish_reason = event.finish_reason or self.finish_reason
        if event.prompt_tokens is not None:
            self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
            self.completion_tokens = event.completion_tokens
        self.speculation = event.speculation or self.speculation
        self.error = self.error or event.error

    def problem(self) -> str | None:
        """Why a stream that has ended is not whole; None if it is."""
        if self.error:
            return self.error
        if not self.done or self.finish_reason is None:
            return f"the stream ended early, after {len(self.token_ids)} tokens"
        if self.finish_reason not in ("stop", "length"):
            return f"the server ended the request: {self.finish_reason}"
        if self.completion_tokens not in (None, len(self.token_ids)):
            return f"{len(self.token_ids)} token ids came, the server counts {self.completion_tokens}"
        return None

    def result(self, error: str | None, refused: bool) -> Completion:
        whole = error is None and self.times_s
        return Completion(
            self.request,
            tuple(self.token_ids),
            tuple(self.times_s),
            tuple(self.tokens),
            self.start_s,
            self.times_s[0] if self.times_s else None,
            self.times_s[-1] if whole else time.perf_counter(),
            self.finish_reason,
            self.prompt_tokens,
            self.cached_tokens,
            self.speculation,
            error,
            refused,
            tuple(self.gaps),
        )


def _plain(text: str) -> str:
    """The message in an error answer, on one line."""
    try:
        said: Any = completions.error_text(json.loads(text))
    except ValueError:
        said = text
    return " ".join(str(said).split())[:500] or "no message"
