from __future__ import annotations

import itertools
import json
import statistics
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import streams

from runners.base import EngineFailure
from runners.client import Completion
from runners.load import ClosedLoop, LoadResult, OpenLoop, arrivals, run_load
from runners.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with streams.stream_server(tmp_path) as started:
        yield started


def peak(server: Server) -> int:
    with urllib.request.urlopen(f"{server.base_url}/peak") as answer:
        return int(json.load(answer)["peak"])


def most_at_once(result: LoadResult) -> int:
    """Of the client's own clocks: requests between their start and their end."""
    edges = [(each.start_s, 1) for each in result.completions] + [(each.finish_s, -1) for each in result.completions]
    level = most = 0
    for _, step in sorted(edges):
        level += step
        most = max(most, level)
    return most


@pytest.mark.parametrize("in_flight", [1, 3, 50])
def test_a_closed_loop_keeps_its_number_and_its_order(server: Server, in_flight: int) -> None:
    requests = [streams.request(streams.SLOW, 1 + index % 4) for index in range(20)]
    finished: dict[int, Completion] = {}
    result = run_load(
        server.base_url, "m", requests, ClosedLoop(in_flight), timeout_s=10, on_finish=finished.__setitem__
    )
    assert [each.request for each in result.completions] == requests
    assert [len(each.token_ids) for each in result.completions] == [2 + index % 4 for index in range(20)]
    assert result.peak_in_flight == most_at_once(result) == min(in_flight, 20)
    assert peak(server) <= in_flight
    assert dict(enumerate(result.completions)) == finished
    starts = [each.start_s for each in result.completions]
    assert starts == sorted(starts)
    assert result.start_s <= starts[0]
    assert max(each.finish_s for each in result.completions) <= result.finish_s
    assert result.ended is None
    assert set(result.waits_s) == {0.0}


def test_one_enters_as_one_ends(server: Server) -> None:
    requests = [streams.request(streams.SLOW, count) for count in (30, 1, 1, 1, 1)]
    result = run_load(server.base_url, "m", requests, ClosedLoop(2), timeout_s=10)
    long, *short = result.completions
    assert all(each.finish_s < long.finish_s for each in short)  # the long one held one place, not both


def test_an_open_loop_sends_at_its_arrivals(server: Server) -> None:
    requests = [streams.request(streams.SLOW, 10)] * 12
    load = OpenLoop(rate=40.0, seed=3)
    result = run_load(server.base_url, "m", requests, load, timeout_s=10)
    sent = [each.start_s - result.start_s for each in result.completions]
    for due, at, waited in zip(arrivals(load, 12), sent, result.waits_s, strict=True):
        assert due <= at <= due + waited + 0.25
    assert result.peak_in_flight > 2
    assert result.ended is None


def test_an_open_loop_with_few_places_makes_arrivals_wait(server: Server) -> None:
    requests = [streams.request(streams.SLOW, 5)] * 10
    result = run_load(server.base_url, "m", requests, OpenLoop(1000.0, 0, max_in_flight=2), timeout_s=10)
    assert peak(server) <= result.peak_in_flight == 2
    assert result.waits_s[0] < 0.1
    assert result.waits_s[-1] > 0.3


def test_arrivals_are_poisson_and_repeatable() -> None:
    times = arrivals(OpenLoop(rate=8.0, seed=11), 4001)
    gaps = [late - early for early, late in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert abs(statistics.mean(gaps) - 1 / 8) < 5 * (1 / 8) / 4000**0.5
    assert abs(statistics.stdev(gaps) - 1 / 8) < 0.01  # of an exponential law, the same as the mean
    assert times == arrivals(OpenLoop(8.0, 11), 4001)
    assert times != arrivals(OpenLoop(8.0, 12), 4001)
    assert arrivals(OpenLoop(8.0, 11), 0) == []


def test_a_dying_server_ends_the_run_with_what_there_is(server: Server) -> None:
    kinds = [streams.GOOD, streams.SLOW, streams.GOOD, streams.DEADLY] + [streams.GOOD] * 30
    requests = [streams.request(kind, 400) for kind in kinds]
    result = run_load(server.base_url, "m", requests, ClosedLoop(2), timeout_s=30, alive=server.alive)
    assert result.finish_s - result.start_s < 5
    assert result.ended is not None
    assert result.ended.startswith("the engine is gone")
    assert [each.error for each in result.completions[:1]] == [None]
    assert result.completions[1].error is not None
    assert result.completions[1].token_ids  # what had come is kept
    assert result.completions[-1].error == f"not sent: {result.ended}"
    with pytest.raises(EngineFailure, match=r"died \(exit code 1\)"):
        server.check(patience_s=5.0)


def test_a_run_is_broken_off_when_the_engine_is_said_to_be_dead(server: Server) -> None:
    requests = [streams.request(streams.SLOW, 400)] * 4
    answers = iter([True, True, True])
    result = run_load(server.base_url, "m", requests, ClosedLoop(3), timeout_s=30, alive=lambda: next(answers, False))
    assert result.finish_s - result.start_s < 3
    assert [each.error for each in result.completions] == ["the engine is gone"] * 3 + ["not sent: the engine is gone"]
    assert all(len(each.token_ids) > 5 for each in result.completions[:3])


def test_progress_is_tokens_not_time(server: Server) -> None:
    """Of two engines that are asked for longer than a stall may last: one gives tokens slowly, one only talks."""
    slow = run_load(server.base_url, "m", [streams.request(streams.SLOW, 90)], ClosedLoop(1), timeout_s=30, stall_s=1.0)
    assert (slow.ended, slow.stalled, slow.completions[0].error) == (None, False, None)
    assert slow.finish_s - slow.start_s > 1.5
    hung = run_load(server.base_url, "m", [streams.request(streams.CHATTY)], ClosedLoop(1), timeout_s=30, stall_s=1.0)
    assert hung.stalled
    assert hung.ended == "no token for 1 s with 1 requests in flight"
    assert 1.0 < hung.finish_s - hung.start_s < 10
    assert server.healthy()


def test_a_run_has_a_limit(server: Server) -> None:
    requests = [streams.request(streams.SLOW, 400), streams.request(streams.GOOD)]
    result = run_load(server.base_url, "m", requests, ClosedLoop(2), timeout_s=30, limit_s=0.5)
    assert result.ended == "not done within 0.5 s"
    assert [each.error for each in result.completions] == ["not done within 0.5 s", None]


def test_an_open_loop_does_not_sit_out_its_arrivals_when_the_run_is_over(server: Server) -> None:
    requests = [streams.request(streams.GOOD)] * 50
    result = run_load(server.base_url, "m", requests, OpenLoop(0.01, 0), timeout_s=30, limit_s=0.5)
    assert result.finish_s - result.start_s < 3
    assert result.completions[0].error is None
    assert result.completions[-1].error == "not sent: not done within 0.5 s"


def test_no_requests(server: Server) -> None:
    assert run_load(server.base_url, "m", [], ClosedLoop(2), timeout_s=1).completions == ()
    assert run_load(server.base_url, "m", [], OpenLoop(1.0, 0), timeout_s=1).completions == ()
