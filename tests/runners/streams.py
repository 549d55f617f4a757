"""A small server of token streams in a real process; the first token of a prompt says how it behaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.completions import TokenRequest
from runners.server import Server, ServerCommand

# Chunks of GOOD: 1, 2 and 3 tokens, then usage. Bytes of its events are cut in the middle on their way.
GOOD, REFUSED, BROKEN, SILENT, SPOILED, GARBLED, WITHOUT_IDS, ABORTED, DEADLY, SHORT, SLOW, CHATTY = range(12)

SCRIPT = """
import http.server, json, os, sys, threading, time

lock, now, peak, seen = threading.Lock(), 0, 0, []

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        answer = json.dumps({"peak": peak, "seen": seen}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_POST(self):
        global now, peak
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            now += 1
            peak = max(peak, now)
            seen.append(body)
        try:
            self.answer(body["prompt"][0], body)
        except OSError:
            pass
        with lock:
            now -= 1

    def answer(self, kind, body):
        if kind == 1:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "too\\\\nlong", "type": "BadRequestError"}}')
            return
        self.send_response(200)
        self.end_headers()
        first, last = self.chunk([7]), self.chunk([10, 11, 12], "length")
        if kind == 10:
            for _ in range(body["max_tokens"]):
                self.send(self.chunk([5]))
                time.sleep(0.02)
            self.send(self.chunk([5], "length") + b"data: [DONE]\\n\\n")
            return
        self.send(first)
        if kind == 3:
            time.sleep(600)
        while kind == 11:
            self.send(b": a comment\\n\\n" + self.chunk([]))
            time.sleep(0.02)
        if kind == 4:
            self.send(b'data: {"error": {"message": "engine died", "code": 500}}\\n\\ndata: [DONE]\\n\\n')
            return
        if kind == 5:
            self.send(b"data: {not json\\n\\n")
            return
        if kind == 6:
            self.send(b'data: {"choices": [{"text": "x", "finish_reason": null}]}\\n\\n')
            return
        if kind == 7:
            self.send(self.chunk([], "abort") + b"data: [DONE]\\n\\n")
            return
        if kind == 8:
            os._exit(1)
        middle = self.chunk([8, 9])
        self.send(middle[:20])
        time.sleep(0.03)
        self.send(middle[20:])
        if kind == 2:
            return
        time.sleep(0.03)
        self.send(last)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 7 if kind == 9 else 6,
                 "prompt_tokens_details": {"cached_tokens": 2}}
        spec = {"mean_acceptance_length": 3.5, "acceptance_histogram": [0, 1, 1, 0], "num_spec_steps": 2,
                "num_accepted_draft_tokens": 3, "num_draft_tokens": 6, "per_step_accepted": [1, 2],
                "per_step_drafted": [3, 3]}
        self.send(b": a comment\\n\\ndata: " + json.dumps({"choices": [], "usage": usage,
                  "metrics": {"speculative_decoding": spec}}).encode() + b"\\n\\ndata: [DONE]\\n\\n")

    def chunk(self, ids, finish=None):
        data = {"choices": [{"text": "x", "token_ids": ids, "finish_reason": finish}]}
        return b"data: " + json.dumps(data).encode() + b"\\n\\n"

    def send(self, data):
        self.wfile.write(data)
        self.wfile.flush()

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@contextmanager
def stream_server(folder: Path) -> Iterator[Server]:
    script = folder / "stream_server.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = ServerCommand([sys.executable, str(script), "{port}"], start_timeout_s=20.0, grace_s=1.0)
    with Server.start(command, folder / "stream_server.log") as server:
        yield server


def request(kind: int, tokens: int = 6) -> TokenRequest:
    return TokenRequest((kind, 1, 2), tokens)
