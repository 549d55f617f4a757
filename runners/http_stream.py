"""One HTTP POST on a connection of its own, whose answer is handed on byte by byte as it comes.

Parsing is ``httptools`` (the parser of Node.js), waiting is ``asyncio``; nothing is done for an event but what it
needs. With many streams of small events that is what a client costs: docs/telemetry.md has the figures.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

OnBody = Callable[[bytes, float], None]  # a part of the body and when it came (time.perf_counter, seconds)


@dataclass(frozen=True)
class Address:
    """Where a server listens, as the parts of ``http://host:port`` or ``https://host``, and a path's prefix if any."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        context = ssl.create_default_context() if secure else None
        return cls(parts.hostname or "", parts.port or (443 if secure else 80), context, parts.path.rstrip("/"))

    def post(self, path: str, body: bytes) -> bytes:
        """The bytes of a POST of JSON after which the connection is closed."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {name}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


_BUFFER = bytearray(65536)  # of all streams: a read is taken in before the next one begins
_VIEW = memoryview(_BUFFER)


class HttpStream(asyncio.BufferedProtocol):
    """The answer to one request. ``done`` is set to None at its end, or to the error that broke it off.

    ``on_body`` gets the parts of a body with status 200 and may raise: that ends the stream with its exception. The
    body of another status is kept in ``refusal``.
    """

    def __init__(self, request: bytes, on_body: OnBody, done: asyncio.Future[None]) -> None:
        self.status: int | None = None
        self.refusal = bytearray()
        self._request, self._take, self.done = request, on_body, done
        self._parser = httptools.HttpResponseParser(self)
        self._sized = False  # whether the answer tells where it ends
        self._now_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.done.done():  # broken off while the connection was made
            self._transport.abort()
            return
        self._transport.write(self._request)
        self._request = b""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Asked for before each read. A buffer a read, as ``asyncio.Protocol`` has it, costs four times the read."""
        return _VIEW

    def buffer_updated(self, nbytes: int) -> None:
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(_VIEW[:nbytes])
        except httptools.HttpParserError as error:
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and (self.status is None or self._sized):
            exc = ConnectionError("the server closed the connection")
        self.end(exc)

    def end(self, error: Exception | None) -> None:
        """Ends the stream, once; later calls change nothing."""
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    # what httptools calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._sized = self._sized or name.lower() in (b"transfer-encoding", b"content-length")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.status != 200:
            self.refusal += body
            return
        try:
            self._take(body, self._now_s)
        except Exception as error:  # noqa: BLE001  handed to whoever waits for the stream
            self.end(error)

    def on_message_complete(self) -> None:
        self.end(None)
