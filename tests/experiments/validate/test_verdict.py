"""Lines and verdicts by hand: what passes, what fails, and what nobody looked at is never a pass."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from experiments.validate import measure
from experiments.validate.predictions import Prediction
from experiments.validate.verdict import Missing, Run, Value, judge, verdict

RUN = Run("vllm", 144, 128)


def line(one: Prediction, value: Value) -> tuple[str, str | None]:
    (found,) = judge([one], {one.key: value}, RUN)
    assert (found.measured is None) == (found.state == "not checked")
    assert (found.reason is None) == (found.state == "pass")
    return found.state, found.reason


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (1.0, "pass"),
        (2.0, "pass"),
        (1.5, "pass"),
        (0.999, "fail"),
        (2.001, "fail"),
        ("1.5", "fail"),
        (math.nan, "not checked"),
        (math.inf, "not checked"),
        (Missing("no GPU"), "not checked"),
    ],
)
def test_numbers(value: Value, state: str) -> None:
    assert line(Prediction("k", "o", 1.0, 2.0), value)[0] == state


def test_texts_and_reasons() -> None:
    one = Prediction("k", "o", text="TRITON_ATTN")
    assert line(one, "FLASH_ATTN, TRITON_ATTN") == ("pass", None)
    assert line(one, "FLASH_ATTN") == ("fail", "'FLASH_ATTN' has no 'TRITON_ATTN' in it")
    assert line(Prediction("k", "o", low=3.0), 2.0) == ("fail", "2 is below 3")
    assert line(Prediction("k", "o", high=3.0), Missing("no GPU")) == ("not checked", "no GPU")


def test_a_prediction_for_something_else_is_not_checked() -> None:
    assert line(Prediction("k", "o", low=0.0, engine="sglang"), 1.0) == (
        "not checked",
        "predicted for sglang, not for vllm",
    )
    assert line(Prediction("k", "o", low=0.0, prompts=8), 1.0)[1] == "predicted for 8 prompts, measured on 144"
    assert line(Prediction("k", "o", low=0.0, new_tokens=8), 1.0)[0] == "not checked"
    assert line(Prediction("k", "o", low=0.0, engine="vllm", prompts=144, new_tokens=128), 1.0)[0] == "pass"


def test_what_was_never_measured_is_not_checked() -> None:
    (found,) = judge([Prediction("k", "o", low=0.0)], {}, RUN)
    assert (found.state, found.reason) == ("not checked", "it was not measured")


def test_verdicts() -> None:
    good, bad = Prediction("good", "o", high=1.0), Prediction("bad", "o", high=0.5)
    absent = Prediction("absent", "o", high=0.5)
    values: dict[str, Value] = {"good": 1.0, "bad": 1.0}
    assert verdict(judge([good], values, RUN)) == "pass"
    assert verdict(judge([good, absent], values, RUN)) == "incomplete"
    assert verdict(judge([good, bad, absent], values, RUN)) == "fail"
    assert verdict([]) == "incomplete"


def test_what_server_logs_say() -> None:
    log = (
        "INFO Using AttentionBackendEnum.CUSTOM backend.\n"
        "INFO Using TRITON_ATTN attention backend out of potential backends: [...]\n"
        "INFO Using AttentionBackendEnum.CUSTOM backend.\n"
        "INFO Model loading took 17.22 GiB memory and 3.1 seconds\n"
        "INFO GPU KV cache size: 25,568 tokens\n"
    )
    assert measure.backends(log) == "CUSTOM, TRITON_ATTN"
    assert measure.backends("server_args=ServerArgs(attention_backend='triton', x=1)") == "triton"
    assert (measure.weights_gib(log), measure.kv_tokens(log)) == (17.22, 25568.0)
    start = (
        "server_args=ServerArgs(attention_backend='triton', max_total_tokens=27648)\n"
        "Load weight end. elapsed=0.12 s, type=Qwen3ForCausalLM, avail mem=32.95 GB, mem usage=15.28 GB.\n"
        "Load weight end. elapsed=0.01 s, type=DFlashDraftModel, avail mem=30.80 GB, mem usage=1.95 GB.\n"
        "ddbench: DDTREE plugin registered: N=16 B=16 K=15 backend=TritonAttnBackend attention=own mask=on rows=64\n"
        "max_total_num_tokens=27648, chunked_prefill_size=8192, context_len=1024, available_gpu_mem=24.15 GB\n"
    )
    assert measure.backends(start) == "triton, own"
    assert (measure.weights_gib(2 * start), measure.kv_tokens(2 * start)) == (17.23, 27648.0)
    assert (measure.backends(""), measure.weights_gib(""), measure.kv_tokens("")) == (None, None, None)


def test_the_widest_gap() -> None:
    def gaps(*rows: tuple[int | None, float | None]) -> Value:
        frame = pd.DataFrame({"divergence": [a for a, _ in rows], "gap": [b for _, b in rows]}, dtype="Float64")
        return measure._largest_gap(frame)

    assert gaps((None, None), (None, None)) == 0.0
    assert gaps((None, None), (3, 0.01), (5, 0.03)) == 0.03
    assert gaps((3, 0.01), (5, None)) == Missing("1 of 2 differences have no gap: the engine told none")
    assert gaps() == Missing("no outputs were compared")


def test_the_host() -> None:
    facts = {"gpus": [{"index": 1.0, "name": "NVIDIA H200", "power_limit_w": 700.0}]}
    assert measure.of_host(facts, 1) == {"host.gpu": "NVIDIA H200", "host.power_limit_w": 700.0}
    assert set(map(type, measure.of_host(facts, 0).values())) == {Missing}
