"""The server's life cycle and the client against a real vLLM; DDBENCH_VLLM_PYTHON names the interpreter that has it."""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from processes import wait_for

from runners.base import EngineFailure
from runners.client import Completion
from runners.completions import TokenRequest
from runners.load import ClosedLoop, LoadResult, run_load
from runners.server import Server, ServerCommand
from runners.telemetry import Telemetry
from runners.warmup import warm_up

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PYTHON = os.environ.get("DDBENCH_VLLM_PYTHON")
ASSETS = Path(__file__).parents[2] / "ddbench" / "assets"
NODES = 15
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "OMP_NUM_THREADS": "1",
}
PROMPTS = [tuple(range(40 + index, 90 + index)) for index in range(12)]


def command(*more: str) -> ServerCommand:
    assert PYTHON is not None
    speculation = {"method": "dflash", "model": str(ASSETS / "dflash"), "num_speculative_tokens": NODES}
    argv = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "{port}"]
    argv += ["--model", str(ASSETS / "target"), "--served-model-name", "m", "--dtype", "float32", "--enforce-eager"]
    argv += ["--max-model-len", "1024", "--max-num-seqs", "4", "--enable-prompt-tokens-details"]
    argv += ["--speculative-config", json.dumps(speculation), "--per-request-spec-decode-metrics", "detailed", *more]
    return ServerCommand(argv, ENVIRONMENT, start_timeout_s=180.0, name="vLLM")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if PYTHON is None:
        pytest.skip("DDBENCH_VLLM_PYTHON does not name the interpreter of an environment with vLLM")
    with Server.start(command(), tmp_path_factory.mktemp("vllm") / "server.log") as started:
        yield started


def run(server: Server, in_flight: int, tokens: int = 48, timeout_s: float = 120.0) -> LoadResult:
    requests = [TokenRequest(prompt, tokens, ignore_eos=True) for prompt in PROMPTS]
    return run_load(server.base_url, "m", requests, ClosedLoop(in_flight), timeout_s=timeout_s, alive=server.alive)


def metric(server: Server, name: str) -> int:
    with urllib.request.urlopen(f"{server.base_url}/metrics") as answer:
        found = re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", answer.read().decode(), re.MULTILINE)
    return int(sum(float(value) for value in found))


def totals(server: Server) -> list[int]:
    return [metric(server, f"spec_decode_num_{name}_total") for name in ("drafts", "draft_tokens", "accepted_tokens")]


def test_greedy_tokens_are_the_same_again_and_at_another_concurrency(server: Server) -> None:
    first, second, alone = run(server, 4), run(server, 4), run(server, 1)
    assert [each.error for each in first.completions] == [None] * len(PROMPTS)
    assert all(len(each.token_ids) == 48 and each.finish_reason == "length" for each in first.completions)
    assert all(each.prompt_tokens == 50 for each in first.completions)
    tokens = [[each.token_ids for each in result.completions] for result in (first, second, alone)]
    assert tokens[0] == tokens[1] == tokens[2]


def test_chunks_are_rounds_and_agree_with_the_servers_own_counts(server: Server) -> None:
    before = totals(server)
    found = run(server, 4).completions
    drafts, drafted, accepted = (now - then for now, then in zip(totals(server), before, strict=True))
    told = [each.speculation for each in found if each.speculation]
    assert len(told) == len(PROMPTS)
    assert sum(len(each.chunk_tokens) - 1 for each in found) == drafts == sum(each.rounds for each in told)
    assert sum(each.drafted for each in told) == drafted == NODES * drafts
    assert sum(each.accepted for each in told) == accepted
    assert accepted > drafts / 2  # the drafter is a real one
    for each in found:
        _chunks_fit_the_rounds(each)


def _chunks_fit_the_rounds(found: Completion) -> None:
    """A round brings the accepted tokens and one more; the last may be cut at max_tokens."""
    assert found.speculation is not None
    assert found.speculation.accepted_by_round is not None
    rounds = [accepted + 1 for accepted in found.speculation.accepted_by_round]
    assert found.chunk_tokens[0] == 1
    assert list(found.chunk_tokens[1:-1]) == rounds[:-1]
    assert found.chunk_tokens[-1] <= rounds[-1]
    histogram = found.speculation.histogram
    assert sum(histogram) == found.speculation.rounds == len(rounds)
    assert sum(accepted * count for accepted, count in enumerate(histogram)) == found.speculation.accepted


def test_the_server_never_has_more_than_the_loop_allows(server: Server) -> None:
    levels: list[int] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            levels.append(metric(server, "num_requests_running") + metric(server, "num_requests_waiting"))

    sampler = threading.Thread(target=sample)
    sampler.start()
    result = run(server, 3)
    over.set()
    sampler.join()
    assert result.peak_in_flight == 3
    assert 2 <= max(levels) <= 3


def test_a_request_that_is_given_up_is_aborted_in_the_server(server: Server) -> None:
    found = run(server, 4, tokens=900, timeout_s=0.5).completions
    assert {each.error for each in found} == {"no end within 0.5 s"}
    assert wait_for(lambda: metric(server, "num_requests_running") == 0, 10)
    assert [each.error for each in run(server, 4, tokens=4).completions] == [None] * len(PROMPTS)


def test_refused_requests_leave_the_others_alone(server: Server) -> None:
    requests = [TokenRequest((5,), 5000), TokenRequest((5, 99999), 4), TokenRequest(PROMPTS[0], 4, ignore_eos=True)]
    too_long, unknown, good = run_load(server.base_url, "m", requests, ClosedLoop(3), timeout_s=60).completions
    assert "max_tokens=5000" in (too_long.error or "")
    assert "99999" in (unknown.error or "")
    assert good.error is None


def test_a_stop_token_ends_the_text_and_is_part_of_it(server: Server) -> None:
    free = TokenRequest(PROMPTS[0], 24, ignore_eos=True)
    (whole,) = run_load(server.base_url, "m", [free], ClosedLoop(1), timeout_s=60).completions
    stop = whole.token_ids[12]
    (cut,) = run_load(server.base_url, "m", [replace(free, stop_ids=(stop,))], ClosedLoop(1), timeout_s=60).completions
    assert cut.error is None
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert cut.finish_reason == "stop"


def test_warm_up_and_telemetry_of_a_real_server(server: Server) -> None:
    with Telemetry(interval_s=0.2, pid=server.pid) as telemetry:
        done = warm_up(lambda: run(server, 4), tolerance=0.5, max_passes=6)
    assert done.problem is None
    assert all(0 < step < 1 for step in done.step_s)
    assert telemetry.peak_rss_gib > 1.0


def test_the_death_of_the_engine_ends_the_run_and_is_explained(server: Server) -> None:
    """Last of the tests on this server: its engine process is killed while it works."""
    server.check()
    worker = max(psutil.Process(server.pid).children(recursive=True), key=lambda child: child.memory_info().rss)
    before = metric(server, "generation_tokens_total")

    def kill_at_work() -> None:
        wait_for(lambda: metric(server, "generation_tokens_total") > before + 20, 30)
        worker.kill()

    threading.Thread(target=kill_at_work).start()
    requests = [TokenRequest(prompt, 900, ignore_eos=True) for prompt in PROMPTS * 4]
    result = run_load(server.base_url, "m", requests, ClosedLoop(4), timeout_s=60, alive=server.alive)
    assert result.finish_s - result.start_s < 30
    assert result.completions[-1].error is not None
    assert any(each.token_ids and each.error for each in result.completions)  # what had come is kept
    # The engine's process does not always live long enough to write of its worker's death.
    said = r"(VllmWorker-0 died unexpectedly \(exit code: -9\)|EngineDeadError)"
    with pytest.raises(EngineFailure, match=rf"vLLM died .*{said}.*see .*server\.log"):
        server.check(patience_s=30.0)
    assert server.stop().problem is None


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    if PYTHON is None:
        pytest.skip("DDBENCH_VLLM_PYTHON does not name the interpreter of an environment with vLLM")
    with pytest.raises(EngineFailure) as failure:
        Server.start(command("--block-size", "7"), tmp_path / "server.log")
    assert "ValueError: No common block size for 7" in str(failure.value)
