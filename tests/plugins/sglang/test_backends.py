"""The table of backends: what it refuses, what it calls untested, and that docs/backends.md says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddbench.plugins.sglang.backends import (
    ARCHITECTURES,
    TABLE,
    WHY,
    check_backends,
    state_of,
    usable,
    why_not,
)
from ddbench.plugins.sglang.refused import Refused

PAGE = Path(__file__).resolve().parents[3] / "docs" / "backends.md"
CASES = [(version, backend, gpu) for version in TABLE for backend in WHY | {"triton": ""} for gpu in ARCHITECTURES]


def test_the_page_has_the_same_table() -> None:
    text = PAGE.read_text()
    head = re.search(r"^\| SGLang \| backend \| (.+) \|$", text, re.MULTILINE)
    assert head is not None
    assert tuple(head[1].split(" | ")) == ARCHITECTURES
    rows = re.findall(r"^\| (0\.\d+\.\d+) \| (\w+) \| ([\w-]+) \| ([\w-]+) \|$", text, re.MULTILINE)
    written = {
        (version, backend, gpu): state
        for version, backend, *states in rows
        for gpu, state in zip(ARCHITECTURES, states, strict=True)
    }
    assert written == {case: state_of(*case) for case in CASES}


@pytest.mark.parametrize(("version", "backend", "gpu"), CASES)
def test_the_code_refuses_by_the_table(version: str, backend: str, gpu: str, capfd: pytest.CaptureFixture[str]) -> None:
    state = state_of(version, backend, gpu)
    if state == "refused":
        known = ", ".join(TABLE[version])
        with pytest.raises(Refused, match=rf"^attention_backend='{backend}': {re.escape(WHY[backend])}; .*: {known}$"):
            check_backends(version, backend, backend, "triton", gpu)
        assert why_not(version, backend, gpu) == WHY[backend]
        assert backend not in usable(version, gpu)
    else:
        check_backends(version, backend, backend, "triton", gpu)
        assert why_not(version, backend, gpu) is None
        assert backend in usable(version, gpu)
    said = capfd.readouterr().err
    assert (f"untested: {backend} on {gpu} with SGLang {version}" in said) == (state == "untested")


@pytest.mark.parametrize("gpu", ["sm_80", "sm_100", None])
def test_another_gpu_is_at_best_untested(gpu: str | None) -> None:
    assert state_of("0.5.17", "triton", gpu) == "untested"
    assert state_of("0.5.17", "flashinfer", gpu) == "untested"
    assert state_of("0.5.23", "flashinfer", gpu) == "refused"
    assert state_of("0.5.17", "aiter", gpu) == state_of("0.5.17", None, gpu) == "refused"


@pytest.mark.parametrize(
    ("backends", "says"),
    [
        (("fa3", "triton", "triton"), "prefill_attention_backend='fa3': must be decode_attention_backend's, 'triton'"),
        ((None, None, "triton"), "attention_backend=None: unknown to the plug-in"),
        (("aiter", "aiter", "triton"), "attention_backend='aiter': unknown to the plug-in"),
        (("triton", "triton", "trtllm_mha"), "speculative_draft_attention_backend='trtllm_mha'"),
        (("triton", "triton", None), "speculative_draft_attention_backend=None"),
    ],
)
def test_combinations_that_are_refused(backends: tuple[str | None, str | None, str | None], says: str) -> None:
    with pytest.raises(Refused, match=re.escape(says)):
        check_backends("0.5.17", *backends, "sm_90")
