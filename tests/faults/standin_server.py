"""A small engine server: ``python standin_server.py PORT [SECONDS [stubborn]]``.

It sleeps so many seconds before it listens; a stubborn one is not ended by SIGTERM.

What it answers depends on the request alone.

The answer to a prompt of n ids is tokens that follow from them, in chunks of one to ``depth + 1``, a few milliseconds
apart; ``depth`` is the request's ``top_k``, which this engine has no other use for.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import time
from collections.abc import Iterator

GAP_S = 0.006
HUNGRY = 5  # a depth that takes more memory than there is


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        if body["top_k"] == HUNGRY:
            sys.stderr.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
            sys.stderr.flush()
            os._exit(1)
        tokens = 0
        for ids in chunks(body["prompt"], body["max_tokens"], body["top_k"]):
            tokens += len(ids)
            self.say(
                {"choices": [{"token_ids": ids, "finish_reason": None if tokens < body["max_tokens"] else "length"}]}
            )
            time.sleep(GAP_S)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}
        self.say({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def say(self, data: object) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()


def chunks(prompt: list[int], count: int, depth: int) -> Iterator[list[int]]:
    """``count`` tokens, the first alone, as it comes from the prefill."""
    state = sum(prompt) * 7919 + len(prompt)
    size, left = 1, count
    while left > 0:
        ids = []
        for _ in range(min(size, left)):
            state = (state * 1103515245 + 12345) % 2**31
            ids.append(state % 300)
        left -= len(ids)
        size = 1 + state % (depth + 1)
        yield ids


if __name__ == "__main__":
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stderr.write("loading\n")
    sys.stderr.flush()
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
    sys.stderr.write("listening\n")
    sys.stderr.flush()
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
