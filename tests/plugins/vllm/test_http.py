"""The OpenAI-compatible server: DDTree under concurrency, beside a stock server that has it installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm_jobs import ASSETS, ENVIRONMENT, prompt_tokens

pytestmark = pytest.mark.vllm

START_S = 240
PLUGIN = "ddbench.plugins.vllm"
TREE = (
    "--worker-cls",
    f"{PLUGIN}.worker.DDTreeWorker",
    "--scheduler-cls",
    f"{PLUGIN}.scheduler.DDTreeScheduler",
    "--no-async-scheduling",
    "--additional-config",
    json.dumps({"ddbench": {}}),
    "--speculative-config",
    json.dumps({"method": "dflash", "model": str(ASSETS / "dflash"), "num_speculative_tokens": 16}),
)


@contextmanager
def server(log: Path, *flags: str) -> Iterator[str]:
    """A vLLM server on a free port; its whole process group ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(ASSETS / "target"), "--served-model-name", "m", "--dtype", "float32"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager", "--generation-config", "vllm"]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, *flags], stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=20)
        finally:
            if alive(process.pid):
                os.killpg(process.pid, signal.SIGKILL)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def ready(base: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError(f"no server after {START_S} s: {log.read_text(errors='replace')[-3000:]}")


def ask(base: str, **body: Any) -> tuple[int, dict[str, Any]]:
    data = json.dumps({"model": "m", "temperature": 0, "max_tokens": 32, **body}).encode()
    request = urllib.request.Request(f"{base}/v1/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Base addresses of a stock server and of a DDTree server, started side by side."""
    folder = tmp_path_factory.mktemp("servers")
    with server(folder / "stock.log") as stock, server(folder / "tree.log", *TREE) as tree:
        ready(stock, folder / "stock.log")
        ready(tree, folder / "tree.log")
        yield stock, tree


def test_eight_at_once_with_stop_strings(servers: tuple[str, str]) -> None:
    stock, tree = servers
    prompts = [list(prompt) for prompt in prompt_tokens()[:8]]
    whole = [ask(stock, prompt=prompt)[1]["choices"][0]["text"] for prompt in prompts]
    stops = [None if index % 4 == 0 else text[12 + index : 15 + index] for index, text in enumerate(whole)]
    expected = [ask(stock, prompt=prompt, stop=stop)[1] for prompt, stop in zip(prompts, stops, strict=True)]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda pair: ask(tree, prompt=pair[0], stop=pair[1])[1], zip(prompts, stops, strict=True))
        )
    assert [one["choices"] for one in found] == [one["choices"] for one in expected]
    reasons = [one["choices"][0]["finish_reason"] for one in found]
    assert reasons.count("stop") >= 5
    with urllib.request.urlopen(f"{tree}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    accepted = [line for line in lines if line.startswith("vllm:spec_decode_num_accepted_tokens_total")]
    assert sum(float(line.rpartition(" ")[2]) for line in accepted) > 20


@pytest.mark.parametrize(
    ("name", "value"), [("presence_penalty", 0.5), ("logprobs", 2), ("min_tokens", 4), ("bad_words", ["the"])]
)
def test_unserved_requests_get_400_and_the_reason(servers: tuple[str, str], name: str, value: Any) -> None:
    stock, tree = servers
    status, answer = ask(tree, prompt=list(prompt_tokens()[0]), **{name: value})
    assert status == 400
    assert f"DDTree does not serve requests with {name}" in answer["error"]["message"]
    assert ask(stock, prompt=list(prompt_tokens()[0]), **{name: value})[0] == 200
    assert ask(tree, prompt=list(prompt_tokens()[0]))[0] == 200
