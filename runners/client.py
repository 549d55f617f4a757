"""Streams token completions from an engine server and keeps the clock of every chunk."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httptools
import orjson

from runners import completions
from runners.completions import Speculation, TokenRequest, Wire
from runners.http_stream import Address, HttpStream

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

    def __init__(self, base_url: str, model: str, timeout_s: float, wire: Wire = completions) -> None:
        """``timeout_s`` bounds each request from its start to the end of its stream."""
        self._address = Address.of(base_url)
        self._wire = wire
        self._model = model
        self._timeout_s = timeout_s
        self._aborted: str | None = None
        self._open: set[HttpStream] = set()
        self._reading: set[_Stream] = set()
        self._read_chunks = 0  # of streams that have ended

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()

    async def complete(self, request: TokenRequest) -> Completion:
        """Sends one request and reads its stream to the end. Whatever goes wrong becomes ``error``.

        Cancelling the task closes the connection, at which the server aborts the request.
        """
        data = self._address.post(self._wire.PATH, orjson.dumps(self._wire.body(request, self._model)))
        stream = _Stream(request, time.perf_counter(), self._wire)
        self._reading.add(stream)
        refused = False
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._read(data, stream)
            error = stream.problem()
        except TimeoutError:
            error = f"no end within {self._timeout_s:g} s"
        except _NoConnection as problem:
            error, refused = f"no connection: {problem}", True
        except (OSError, httptools.HttpParserError) as problem:
            error = f"the stream broke: {type(problem).__name__}: {problem}"
        except (ValueError, KeyError, TypeError, IndexError) as problem:  # not the JSON that was expected
            error = f"the stream cannot be read: {type(problem).__name__}: {problem}"
        finally:
            self._reading.discard(stream)
            self._read_chunks += len(stream.times_s)
        return stream.result((error and self._aborted) or error, refused)

    def chunks(self) -> int:
        """Chunks with tokens that have come so far, of all streams: it grows while the server makes progress."""
        return self._read_chunks + sum(len(stream.times_s) for stream in self._reading)

    async def abort(self, why: str) -> None:
        """Breaks off all streams: each ends with ``why`` as its error, with what had come."""
        self._aborted = why
        self._end_all()

    def _end_all(self) -> None:
        for each in list(self._open):
            each.end(ConnectionAbortedError(self._aborted or "the client was closed"))

    async def _read(self, data: bytes, stream: _Stream) -> None:
        if self._aborted is not None:
            raise ConnectionAbortedError(self._aborted)
        loop, at = asyncio.get_running_loop(), self._address
        answer = HttpStream(data, stream.feed, loop.create_future())
        self._open.add(answer)
        try:
            await _connect(loop, at, answer)
            await answer.done
        finally:
            self._open.discard(answer)
            answer.end(None)
            if not answer.done.cancelled():
                answer.done.exception()  # asked for, so that asyncio does not warn of one that nobody waited for
        if answer.status != 200:
            stream.error = f"HTTP {answer.status}: {_plain(bytes(answer.refusal))}"


class _NoConnection(Exception):
    """The server could not be reached: the text says why."""


async def _connect(loop: asyncio.AbstractEventLoop, at: Address, answer: HttpStream) -> None:
    """Opens the connection, on which the request is then sent."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_connection(lambda: answer, at.host, at.port, ssl=at.tls)
    except TimeoutError:
        raise _NoConnection(f"none within {CONNECT_TIMEOUT_S:g} s") from None
    except OSError as problem:
        raise _NoConnection(problem.strerror or str(problem)) from None


@dataclass(eq=False)
class _Stream:
    """A stream being read: server-sent events, one JSON object a ``data:`` line, ``[DONE]`` at the end."""

    request: TokenRequest
    start_s: float
    wire: Wire = completions
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
        event = self.wire.read_event(orjson.loads(data), len(self.token_ids))
        if event.token_ids:
            self.token_ids += event.token_ids
            self.times_s.append(now_s)
            self.tokens.append(len(event.token_ids))
            self.gaps += event.gaps
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


def _plain(body: bytes) -> str:
    """The message in an error answer, on one line."""
    try:
        said: Any = completions.error_text(orjson.loads(body))
    except ValueError:
        said = body.decode(errors="replace")
    return " ".join(str(said).split())[:500] or "no message"
