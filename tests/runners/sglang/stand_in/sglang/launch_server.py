"""``python -m sglang.launch_server`` of the stand-in: its command line and its HTTP doors; see the package."""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sglang.core import Core

STEP_S = 0.02  # a busy machine must not join two steps
SWITCHES = (
    "skip_tokenizer_init",
    "incremental_streaming_output",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "disable_decode_cuda_graph",
    "disable_prefill_cuda_graph",
)
NUMBERS = (
    "port",
    "stream_interval",
    "context_length",
    "max_running_requests",
    "max_total_tokens",
    "chunked_prefill_size",
    "page_size",
    "tp_size",
    "min_free_slots_delay",
    "random_seed",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_dflash_block_size",
)
WORDS = (
    "host",
    "model_path",
    "revision",
    "sampling_defaults",
    "load_format",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "sampling_backend",
    "grammar_backend",
    "log_level_http",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_attention_backend",
)


def settings(argv: list[str]) -> dict[str, Any]:
    """A flag that SGLang 0.5.17 does not have ends the start, as it does there."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in SWITCHES:
        parser.add_argument(_flag(name), action="store_true")
    for name in NUMBERS:
        parser.add_argument(_flag(name), type=int)
    for name in WORDS:
        parser.add_argument(_flag(name))
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--cuda-graph-bs-decode", type=int, nargs="+")
    return vars(parser.parse_args(argv))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class Handler(BaseHTTPRequestHandler):
    core: Core
    args: dict[str, Any]

    def log_message(self, *_: object) -> None:
        """Requests are printed below."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._send(200, b"")
        elif path == "/server_info":
            self._send(200, json.dumps(self.core.info()).encode())
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        path = self.path.partition("?")[0]
        print("POST", path, flush=True)
        if path == "/flush_cache":
            self._send(200, b"Cache flushed.\n")
        elif path == "/generate":
            self._stream(body)
        elif path == "/set_internal_state":
            self._send(200, json.dumps(self.core.set_state(body["server_args"])).encode())
        else:
            self._send(404, b"")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        asked = {name: body[name] for name in ("return_logprob", "top_logprobs_num") if name in body}
        try:
            for chunk in self.core.chunks(
                body.get("rid") or uuid.uuid4().hex, body["input_ids"], body["sampling_params"], **asked
            ):
                time.sleep(STEP_S)
                self._event(chunk)
        except ValueError as error:
            said = {"message": str(error), "type": "invalid_request_error", "code": 400, "retryable": False}
            self._event({"error": said})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()


if __name__ == "__main__":
    Handler.args = settings(sys.argv[1:])
    Handler.core = Core(Handler.args)
    for line in Handler.core.says:
        print(line, flush=True)
    ThreadingHTTPServer(("127.0.0.1", Handler.args["port"]), Handler).serve_forever()
