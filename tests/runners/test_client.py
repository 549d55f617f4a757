from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import streams

from runners.client import Completion
from runners.completions import Speculation, TokenRequest, body, error_text
from runners.load import ClosedLoop, run_load
from runners.ports import free_port
from runners.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with streams.stream_server(tmp_path_factory.mktemp("streams")) as started:
        yield started


def ask(server: Server, *kinds: int, timeout_s: float = 10.0) -> list[Completion]:
    requests = [streams.request(kind) for kind in kinds]
    return list(run_load(server.base_url, "m", requests, ClosedLoop(8), timeout_s=timeout_s).completions)


def test_a_whole_stream(server: Server) -> None:
    (found,) = ask(server, streams.GOOD)
    assert found.error is None
    assert found.token_ids == (7, 8, 9, 10, 11, 12)
    assert found.chunk_tokens == (1, 2, 3)
    assert found.first_token_s == found.chunk_times_s[0]
    assert found.finish_s == found.chunk_times_s[-1]
    assert found.start_s < found.chunk_times_s[0]
    assert found.chunk_times_s[1] - found.chunk_times_s[0] > 0.02  # when its last byte came, not its first
    assert found.chunk_times_s[2] - found.chunk_times_s[1] > 0.02
    assert (found.finish_reason, found.prompt_tokens, found.cached_tokens) == ("length", 3, 2)
    assert found.speculation == Speculation(2, 6, 3, (0, 1, 1, 0), (1, 2), (3, 3))


@pytest.mark.parametrize(
    ("kind", "error", "tokens"),
    [
        (streams.REFUSED, "HTTP 400: too long", 0),
        (streams.BROKEN, "the stream ended early, after 3 tokens", 3),
        (streams.SPOILED, "engine died", 1),
        (streams.GARBLED, "the stream cannot be read: JSONDecodeError", 1),
        (streams.WITHOUT_IDS, "it does not know return_token_ids", 1),
        (streams.ABORTED, "the server ended the request: abort", 1),
        (streams.SHORT, "6 token ids came, the server counts 7", 6),
    ],
)
def test_a_failure_is_of_one_request_alone(server: Server, kind: int, error: str, tokens: int) -> None:
    failed, good = ask(server, kind, streams.GOOD)
    assert error in (failed.error or "")
    assert not failed.refused
    assert len(failed.token_ids) == sum(failed.chunk_tokens) == tokens
    assert failed.finish_s >= failed.start_s
    assert good.error is None


def test_a_silent_server_is_waited_for_so_long(server: Server) -> None:
    silent, good = ask(server, streams.SILENT, streams.GOOD, timeout_s=0.7)
    assert silent.error == "no end within 0.7 s"
    assert 0.6 < silent.finish_s - silent.start_s < 2.0
    assert silent.token_ids == (7,)
    assert good.error is None


def test_nobody_there() -> None:
    requests = [streams.request(streams.GOOD)] * 5
    result = run_load(f"http://127.0.0.1:{free_port()}", "m", requests, ClosedLoop(2), timeout_s=5.0)
    assert result.completions[0].refused
    assert "no connection: " in (result.completions[0].error or "")
    assert result.ended is not None
    assert all("engine is gone" in (each.error or "") for each in result.completions[2:])


def test_every_sampling_setting_is_sent(server: Server) -> None:
    request = TokenRequest((streams.GOOD, 5), 9, 0.6, 0.9, 20, 7, True, (3, 4))
    run_load(server.base_url, "name", [request], ClosedLoop(1), timeout_s=5.0)
    with urllib.request.urlopen(f"{server.base_url}/seen") as answer:
        sent: dict[str, Any] = json.load(answer)["seen"][-1]
    assert sent == body(request, "name")
    assert sent == {
        "model": "name",
        "prompt": [streams.GOOD, 5],
        "max_tokens": 9,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 7,
        "ignore_eos": True,
        "stop": [],
        "stop_token_ids": [3, 4],
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def test_messages_in_the_shapes_that_servers_use() -> None:
    assert error_text({"error": {"message": "a", "code": 400}}) == "a"
    assert error_text({"object": "error", "message": "b"}) == "b"
    assert error_text({"detail": "c"}) == "c"
    assert error_text({"error": "d"}) == "d"
    assert error_text([1]) == "[1]"
