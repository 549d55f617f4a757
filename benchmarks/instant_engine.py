"""An HTTP engine that computes nothing: token streams as vLLM and SGLang send them, at once or on the beat of a clock.

A process of its own on loopback, without threads and with every event written out beforehand, so that it is faster than
any client. It knows when it sent each event, which is what a client's clocks are held against.

    python benchmarks/instant_engine.py PORT --round-ms 20 --tokens 4

``POST /v1/completions`` streams as vLLM does, ``POST /generate`` as SGLang does. The request says how many tokens,
and its seed names it. A round sends one event to every open stream. With
``--round-ms 0`` the next round begins as soon as the one before it is sent. ``GET /clocks`` returns ``requests``, by
name when each had come and when each of its events was sent, and ``beats``, when each round began and how many streams
were open; all in seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
READ_BYTES = 1 << 20


@dataclass
class Stream:
    """A connection: what it has asked, and what is still to be sent to it."""

    sock: socket.socket
    asked: bytearray = field(default_factory=bytearray)
    name: str | None = None
    events: list[bytes] = field(default_factory=list)
    next_event: int = 0
    rest: bytes = b""  # of an event that the socket did not take whole
    received_s: float = 0.0
    sent_s: list[float] = field(default_factory=list)


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body (RFC 9112, section 7.1)."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(data: Any) -> bytes:
    return chunk(b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")


def vllm_events(prompt_tokens: int, tokens: int, per_event: int) -> list[bytes]:
    """One event a round, the last with the reason of its end, then usage; the fields are those of vLLM 0.32."""
    head = {"id": f"cmpl-{'0' * 32}", "object": "text_completion", "created": 1_796_000_000, "model": "ddbench"}
    events = []
    for start in range(0, tokens, per_event):
        count = min(per_event, tokens - start)
        last = start + count >= tokens
        choice = {
            "index": 0,
            "text": " word" * count,
            "logprobs": None,
            "finish_reason": "length" if last else None,
            "stop_reason": None,
            "token_ids": [20_000 + 7 * (start + k) % 100_000 for k in range(count)],
            "prompt_token_ids": None,
        }
        events.append(event({**head, "choices": [choice], "usage": None}))
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + tokens, "completion_tokens": tokens}
    events[-1] += event({**head, "choices": [], "usage": usage}) + chunk(b"data: [DONE]\n\n") + END
    return events


def sglang_events(prompt_tokens: int, tokens: int, per_event: int) -> list[bytes]:
    """The native stream of SGLang with ``--incremental-streaming-output``: new ids and what is known so far."""
    events = []
    for start in range(0, tokens, per_event):
        done = min(start + per_event, tokens)
        meta = {
            "id": "0" * 32,
            "finish_reason": {"type": "length", "length": tokens} if done == tokens else None,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": done,
            "cached_tokens": 0,
            "weight_version": "default",
        }
        ids = [20_000 + 7 * k % 100_000 for k in range(start, done)]
        events.append(event({"text": " word" * (done - start), "output_ids": ids, "meta_info": meta}))
    events[-1] += chunk(b"data: [DONE]\n\n") + END
    return events


class Engine:
    """The server: one thread, one selector."""

    def __init__(self, port: int, round_s: float, per_event: int) -> None:
        self._round_s, self._per_event = round_s, per_event
        self._made: dict[tuple[str, int, int], list[bytes]] = {}
        self._open: dict[int, Stream] = {}
        self._clocks: dict[str, tuple[float, list[float]]] = {}
        self._beats: list[tuple[float, int]] = []
        self._next_s = time.perf_counter()
        self._selector = selectors.DefaultSelector()
        self._door = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._door.setblocking(False)
        self._selector.register(self._door, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            wait_s = max(self._next_s - time.perf_counter(), 0.0) if self._open else None
            for key, _ in self._selector.select(wait_s):
                self._accept() if key.fileobj is self._door else self._read(key.data)
            if self._open and time.perf_counter() >= self._next_s:
                self._round()
                self._next_s = max(self._next_s + self._round_s, time.perf_counter() if not self._round_s else 0.0)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._door.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(sock, selectors.EVENT_READ, Stream(sock))

    def _read(self, stream: Stream) -> None:
        try:
            data = stream.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(stream.sock)
            self._open.pop(stream.sock.fileno(), None)
            stream.sock.close()
            return
        stream.asked += data
        head, found, body = bytes(stream.asked).partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if len(body) < length:
            return
        stream.asked.clear()
        path = head.split(b" ", 2)[1].decode()
        if length:
            self._begin(stream, path, json.loads(body))
        else:
            known = {"requests": self._clocks, "beats": self._beats} if path == "/clocks" else {}
            answer = json.dumps(known).encode()
            stream.sock.setblocking(True)  # of a caller that waits for nothing else
            stream.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
            stream.sock.setblocking(False)

    def _begin(self, stream: Stream, path: str, body: dict[str, Any]) -> None:
        stream.received_s = time.perf_counter()
        native = path == "/generate"
        sampling = body["sampling_params"] if native else body
        tokens = sampling["max_new_tokens" if native else "max_tokens"]
        prompt = len(body["input_ids" if native else "prompt"])
        stream.name = str(sampling["sampling_seed" if native else "seed"])
        key = (path, prompt, tokens)
        if key not in self._made:
            self._made[key] = (sglang_events if native else vllm_events)(prompt, tokens, self._per_event)
        stream.events, stream.next_event, stream.rest, stream.sent_s = self._made[key], 0, HEAD, []
        if not self._open:  # the beat begins with the first request
            self._next_s = stream.received_s + self._round_s
        self._open[stream.sock.fileno()] = stream

    def _round(self) -> None:
        """One event to every open stream; a stream whose socket is full waits for a later round."""
        self._beats.append((time.perf_counter(), len(self._open)))
        for number, stream in list(self._open.items()):
            if stream.next_event < len(stream.events) and len(stream.rest) <= len(HEAD):
                stream.rest += stream.events[stream.next_event]
                stream.next_event += 1
                stream.sent_s.append(time.perf_counter())
            try:
                stream.rest = stream.rest[stream.sock.send(stream.rest) :]
            except BlockingIOError:
                continue
            except OSError:
                del self._open[number]
                continue
            if stream.next_event == len(stream.events) and not stream.rest:
                assert stream.name is not None
                self._clocks[stream.name] = (stream.received_s, stream.sent_s)
                del self._open[number]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--round-ms", type=float, default=20.0)
    parser.add_argument("--tokens", type=int, default=1, help="tokens of an event")
    arguments = parser.parse_args()
    Engine(arguments.port, arguments.round_ms / 1000, arguments.tokens).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
