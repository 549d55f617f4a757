"""What is refused by name: settings, drafters, targets, requests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from sgl_standin import standin

from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.refusals import SETTINGS, check_drafter, check_request, check_settings, check_target
from ddbench.plugins.sglang.refused import Refused

SIZES = Sizes(16, 16, 4)
ASSETS = Path(__file__).resolve().parents[3] / "ddbench" / "assets"
OTHER: dict[str, Any] = {
    "disaggregation_mode": "decode",
    "speculative_num_steps": 3,
    "speculative_draft_window_size": 64,
    "dllm_algorithm": "LowConfidence",
    "page_size": 16,
    "pp_size": 2,
    "dp_size": 2,
    "dcp_size": 2,
    "attn_cp_size": 2,
}


def settings(**other: Any) -> Any:
    """What a server may have, but for ``other``."""
    allowed = {name: values[0] for name, values, _ in SETTINGS}
    return SimpleNamespace(**(allowed | {"device": "cuda", "speculative_draft_model_path": "drafter"} | other))


@pytest.mark.parametrize(("name", "allowed", "why"), SETTINGS, ids=[name for name, _, _ in SETTINGS])
def test_every_setting_is_refused_by_name(name: str, allowed: tuple[Any, ...], why: str) -> None:
    for value in allowed:
        check_settings(settings(**{name: value}))
    other = OTHER.get(name, True)
    with pytest.raises(Refused) as caught:
        check_settings(settings(**{name: other}))
    assert str(caught.value).startswith(f"{name}={other!r}: DDTREE needs ")
    assert str(caught.value).endswith(why)


def test_a_setting_that_a_version_lacks_is_passed_over() -> None:
    known = settings()
    del known.enable_hisparse
    check_settings(known)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"device": "cpu"}, "device='cpu'"),
        ({"speculative_draft_model_path": None}, "needs a DFlash drafter"),
        ({"lora_paths": ["adapter"]}, "serves no adapters"),
    ],
)
def test_what_a_server_must_have(other: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says):
        check_settings(settings(**other))


def drafter(**more: Any) -> Any:
    config = json.loads((ASSETS / "dflash" / "config.json").read_text())
    return SimpleNamespace(**(config | more))


def test_our_own_drafter_is_taken() -> None:
    check_drafter(drafter())
    check_drafter(drafter(markov_order=0, use_domino=False))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (drafter(architectures=["LlamaForCausalLMEagle3"]), "LlamaForCausalLMEagle3"),
        (drafter(architectures=None), r"architectures=\(\)"),
        (drafter(markov_rank=16), "markov_rank"),
        (drafter(dflash_config={"domino_layers": 2}), "domino_layers"),
        (drafter(LiLiCorr_head=True), "lilicorr_head"),
    ],
)
def test_other_drafters_are_refused(config: Any, says: str) -> None:
    with pytest.raises(Refused, match=says):
        check_drafter(config)


def runner(pool: Any = None, window: Any = None, hybrid: bool = False, **config: Any) -> Any:
    from sglang.srt.configs.model_config import AttentionArch

    known = {"attention_arch": AttentionArch.MHA, "is_encoder_decoder": False, "model_is_mrope": False}
    model = SimpleNamespace(**(known | config))
    return SimpleNamespace(model_config=model, sliding_window_size=window, is_hybrid_swa=hybrid, token_to_kv_pool=pool)


def test_targets(tmp_path: Path) -> None:
    with standin(tmp_path):
        from sglang.srt.configs.model_config import AttentionArch
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        dense = MHATokenToKVPool()
        dense.kv_cache_layout = "nhd"
        check_target(runner(), SIZES)
        check_target(runner(pool=dense), SIZES)

        class Quantized(MHATokenToKVPool):  # type: ignore[misc]
            kv_cache_layout = "nhd"

        transposed = MHATokenToKVPool()
        transposed.kv_cache_layout = "hnd"
        refused = {
            "latent attention": runner(attention_arch=AttentionArch.MLA),
            "sliding-window": runner(window=4096),
            "a target with sliding-window": runner(hybrid=True),
            "encoder-decoder": runner(is_encoder_decoder=True),
            "multimodal": runner(model_is_mrope=True),
            "a Quantized of layout 'nhd'": runner(pool=Quantized()),
            "layout 'hnd'": runner(pool=transposed),
        }
        for says, each in refused.items():
            with pytest.raises(Refused, match=says):
                check_target(each, SIZES)


def request(**other: Any) -> Any:
    """As SGLang's Req, of a request that is served, but for ``other``."""
    own: dict[str, Any] = {
        "return_logprob": False,
        "return_hidden_states": False,
        "lora_id": None,
        "custom_logit_processor": None,
        "multimodal_inputs": None,
    }
    sampling: dict[str, Any] = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "json_schema": None,
        "regex": None,
        "ebnf": None,
        "structural_tag": None,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
    }
    own |= {name: value for name, value in other.items() if name in own}
    sampling |= {name: value for name, value in other.items() if name in sampling}
    return SimpleNamespace(**own, sampling_params=SimpleNamespace(**sampling))


def test_a_sampled_request_is_served() -> None:
    assert check_request(request()) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return_logprob", True),
        ("return_hidden_states", True),
        ("lora_id", "adapter"),
        ("custom_logit_processor", "code"),
        ("multimodal_inputs", "an image"),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -0.5),
        ("repetition_penalty", 1.1),
        ("min_new_tokens", 3),
        ("json_schema", "{}"),
        ("regex", "a+"),
        ("ebnf", 'root ::= "a"'),
        ("structural_tag", "{}"),
    ],
)
def test_requests_that_read_history_are_refused(name: str, value: Any) -> None:
    reason = check_request(request(**{name: value}))
    assert reason is not None
    assert name.split("_")[0] in reason.replace("LoRA", "lora").replace("a custom", "custom")
