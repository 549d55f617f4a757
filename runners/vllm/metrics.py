"""vLLM's own counters of speculation, as ``/metrics`` shows them (Prometheus text format).

They run from the server's start, are counted in the scheduler before a text is cut at a stop token or the token limit,
and leave the bonus token out: acceptance length = 1 + accepted / drafts.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections import defaultdict

from runners.base import EngineFailure
from runners.counts import SpecCounters

PREFIX = "vllm:spec_decode_num_"
TIMEOUT_S = 10.0
SETTLE_S = 0.15  # the last step's counts may come after its last token
_LINE = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)")
_POSITION = re.compile(r'position="(\d+)"')


def parse(text: str) -> SpecCounters:
    """The counters in a page of metrics, summed over engines; all 0 for a server that does not speculate."""
    totals: dict[str, float] = defaultdict(float)
    positions: dict[int, float] = defaultdict(float)
    for line in text.splitlines():
        found = _LINE.match(line) if line.startswith(PREFIX) else None
        if found is None:
            continue
        name, value = found["name"].removeprefix(PREFIX).removesuffix("_total"), float(found["value"])
        place = _POSITION.search(found["labels"] or "")
        if name == "accepted_tokens_per_pos" and place:
            positions[int(place[1])] += value
        else:
            totals[name] += value
    by_position = tuple(int(positions[index]) for index in range(max(positions, default=-1) + 1))
    return SpecCounters(int(totals["drafts"]), int(totals["draft_tokens"]), int(totals["accepted_tokens"]), by_position)


def scrape(base_url: str) -> SpecCounters:
    """The counters of an idle server, read until two readings agree.

    Raises:
        EngineFailure: it does not answer.
    """
    before = _read(base_url)
    for _ in range(20):
        time.sleep(SETTLE_S)
        after = _read(base_url)
        if after == before:
            return after
        before = after
    raise EngineFailure("the counters of speculation go on rising while no request of ours runs")


def _read(base_url: str) -> SpecCounters:
    try:
        with urllib.request.urlopen(f"{base_url}/metrics", timeout=TIMEOUT_S) as answer:
            return parse(answer.read().decode())
    except (OSError, ValueError) as error:
        raise EngineFailure(f"the engine does not give its metrics ({error})") from None
