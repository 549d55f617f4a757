"""A DDTREE server's settings as they are completed or refused, and what the algorithm answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from sgl_standin import standin

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.refusals import SETTINGS
from ddbench.plugins.sglang.refused import Refused

ASSETS = Path(__file__).resolve().parents[3] / "ddbench" / "assets"


def asked(**more: Any) -> Any:
    """Arguments of a server before SGLang's algorithm completes them, but for ``more``."""
    known = {name: values[0] for name, values, _ in SETTINGS}
    known |= {
        "device": "cuda",
        "speculative_draft_model_path": str(ASSETS / "dflash"),
        "speculative_draft_model_revision": None,
        "trust_remote_code": False,
        "json_model_override_args": "{}",
        "speculative_num_draft_tokens": None,
        "speculative_dflash_block_size": None,
        "speculative_eagle_topk": None,
        "speculative_draft_attention_backend": None,
        "prefill_attention_backend": "triton",
        "decode_attention_backend": "triton",
        "max_running_requests": None,
        "enable_mixed_chunk": True,
    }
    return SimpleNamespace(**(known | more))


def resolved(tmp_path: Path, version: str = "0.5.17", **more: Any) -> Any:
    with standin(tmp_path, version):
        from ddbench.plugins.sglang.algo import check_first, resolve

        arguments = asked(**more)
        check_first(arguments)
        resolve(arguments)
    return arguments


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
def test_what_is_left_open_is_completed(version: str, tmp_path: Path) -> None:
    found = resolved(tmp_path, version)
    block = json.loads((ASSETS / "dflash" / "config.json").read_text())["block_size"]
    assert found.speculative_num_draft_tokens == 33
    assert found.speculative_dflash_block_size == block
    assert found.speculative_eagle_topk == 32
    assert found.speculative_num_steps == 1
    assert found.speculative_draft_attention_backend == "triton"
    assert found.max_running_requests == 48
    assert found.enable_mixed_chunk is False


def test_what_is_set_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = resolved(
        tmp_path,
        speculative_num_draft_tokens=64,
        speculative_dflash_block_size=8,
        speculative_eagle_topk=4,
        speculative_draft_attention_backend="fa3",
        max_running_requests=7,
    )
    assert (found.speculative_num_draft_tokens, found.speculative_dflash_block_size) == (64, 8)
    assert (found.speculative_eagle_topk, found.max_running_requests) == (4, 7)
    assert found.speculative_draft_attention_backend == "fa3"
    assert "DDTREE on SGLang 0.5.17: Sizes(verify_width=64, block=8, top_k=4)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"page_size": 16}, Refused, "page_size=16"),
        ({"decode_attention_backend": "fa3", "prefill_attention_backend": "fa3"}, Refused, "attention_backend='fa3'"),
        ({"speculative_draft_attention_backend": "flex_attention"}, Refused, "speculative_draft_attention_backend"),
        ({"speculative_num_draft_tokens": 200}, ConfigError, "speculative_num_draft_tokens=200"),
        ({"speculative_draft_model_path": str(ASSETS / "target")}, Refused, "architectures"),
    ],
)
def test_what_cannot_be_served_ends_the_start(more: Any, error: type[Exception], says: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=says):
        resolved(tmp_path, **more)


def test_a_drafter_without_a_block_size(tmp_path: Path) -> None:
    config = json.loads((ASSETS / "dflash" / "config.json").read_text())
    del config["block_size"]
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config))
    with pytest.raises(Refused, match="names no block_size"):
        resolved(tmp_path, speculative_draft_model_path=str(tmp_path / "drafter"))


def test_limits_of_the_environment_are_checked_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_NODES", "64")
    with pytest.raises(ConfigError, match="nodes=64"):
        resolved(tmp_path, speculative_num_draft_tokens=64)


def test_what_the_algorithm_answers(tmp_path: Path) -> None:
    with standin(tmp_path):
        from sglang.srt.runtime_context import SPEC

        from ddbench.plugins.sglang.algo import DDTreeAlgorithm, is_ddtree

        algorithm = DDTreeAlgorithm("DDTREE")
        assert is_ddtree(algorithm)
        assert not is_ddtree("DDTREE")
        assert algorithm.is_dflash()
        assert algorithm.is_dflash_family()
        assert algorithm.is_dspark() is False, "asked of DFLASH"
        with pytest.raises(AttributeError, match="is_unheard_of"):
            algorithm.is_unheard_of()
        assert algorithm.create_future_map("cuda", 1, 2, 3) == ("relay", algorithm, "cuda")
        SPEC.speculative_dflash_block_size = 16
        assert algorithm.get_num_tokens_per_req_for_target_verify(64, is_draft_worker=True) == 16
        assert algorithm.get_num_tokens_per_req_for_target_verify(64, is_draft_worker=False) == 64
