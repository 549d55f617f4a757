from __future__ import annotations

import pytest

from runners.counts import SpecCounters
from runners.vllm.metrics import parse

PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 2.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 36.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1.1e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0
vllm:generation_tokens_total{engine="0",model_name="m"} 99.0
"""


def test_a_page_of_metrics() -> None:
    assert parse(PAGE) == SpecCounters(12, 36, 11, (7, 3, 1))
    assert parse("vllm:generation_tokens_total 3.0\n") == SpecCounters()


def test_differences_and_histogram() -> None:
    delta = parse(PAGE).since(SpecCounters(2, 6, 1, (1,)))
    assert delta == SpecCounters(10, 30, 10, (6, 3, 1))
    assert delta.histogram == [4, 3, 2, 1]
    assert SpecCounters(3, 9, 0, (0, 0, 0)).histogram == [3]
    assert SpecCounters().histogram == []


def test_acceptance_length_is_that_of_the_definition() -> None:
    delta = parse(PAGE)
    histogram = delta.histogram
    assert sum(histogram) == delta.drafts
    assert sum(accepted * count for accepted, count in enumerate(histogram)) == delta.accepted
    assert 1 + delta.accepted / delta.drafts == pytest.approx(1.9167, abs=1e-4)
