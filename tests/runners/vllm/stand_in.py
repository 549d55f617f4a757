"""A program in the place of an engine's interpreter: it answers the probe, and serves like vLLM, without a model."""

from __future__ import annotations

import sys
from pathlib import Path

import ddbench
from ddbench.records import Arm, Cell
from runners.base import ModelFiles, Prompt, ServerOptions, ServerSpec
from runners.probe_script import plugin_hash

ROOT = Path(ddbench.__file__).parent
TOKENS = 6

# A step gives one token. It writes each POST into its log, and knows /reset_prefix_cache in its development mode alone.
SCRIPT = """#!{python}
import http.server, json, os, sys, time

FACTS = {{"python": "3.11", "version": "0.32.0", "torch": "2.13.0", "per_request_metrics": True,
          "plugin": {{"entry_point": True, "hash": {plugin!r}}}}}
if sys.argv[1] == "-c":
    sys.exit()
if sys.argv[1] == "-" or sys.argv[1].endswith("probe_script.py"):  # the script itself comes over standard input
    print(json.dumps(FACTS))
    sys.exit()

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200 if self.path in ("/health", "/metrics") else 404)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        print("POST", self.path, flush=True)
        reset = self.path == "/reset_prefix_cache"
        self.send_response(404 if reset and os.environ.get("VLLM_SERVER_DEV_MODE") != "1" else 200)
        self.end_headers()
        if reset:
            return
        left = body["max_tokens"]
        while left:
            time.sleep(0.01)
            count = min({event_tokens}, left)
            left -= count
            choice = {{"text": "", "token_ids": [5] * count, "finish_reason": None if left else "length"}}
            if body.get("logprobs") and {mortal}:
                os._exit(1)
            if body.get("logprobs"):
                two = {{"token_id:5": -0.25, "token_id:6": -0.25 - left}}
                choice["logprobs"] = {{"tokens": ["token_id:5"] * count, "top_logprobs": [two] * count}}
            self.wfile.write(b"data: " + json.dumps({{"choices": [choice]}}).encode() + b"\\n\\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\\n\\n")

print({says!r}, flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def write_stand_in(folder: Path, says: str = "starting", event_tokens: int = 1, mortal: bool = False) -> str:
    """The path of the program. ``says``: in its log at the start. ``event_tokens``: steps that an event joins.

    ``mortal``: it dies when it is asked for its best two tokens.
    """
    path = folder / "python"
    plugin = plugin_hash(ROOT)
    text = SCRIPT.format(python=sys.executable, plugin=plugin, says=says, event_tokens=event_tokens, mortal=mortal)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def spec(python: str, strategy: str = "autoregressive", port: int | None = None, url: str | None = None) -> ServerSpec:
    prompts = tuple(Prompt(f"p{index}", "data", "code", (f"text {index}",)) for index in range(3))
    return ServerSpec(
        model=ModelFiles(str(ROOT / "assets" / "target"), dflash=str(ROOT / "assets" / "dflash"), block_size=16),
        device="cpu",
        dtype="float32",
        threads=1,
        template="raw",
        thinking=None,
        context_length=1024,
        ignore_eos=True,
        prompts=prompts,
        warmup=(Prompt("w", "data", "code", ("warm",)),),
        max_new_tokens=TOKENS,
        timeout_s=60.0,
        server=ServerOptions(python, url, port, 30.0, (1,), (strategy,), None, 0),
    )


def cell(arm: Arm, block: int = 0) -> Cell:
    return Cell(arm, "w", "h", 3, 1, TOKENS, 0.0, 1.0, 0, 0, 2, block)
