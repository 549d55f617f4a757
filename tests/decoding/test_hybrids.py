"""Hybrid targets through `decode`: strategies, drafters' features, temperature, memory, and what is refused."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from ddbench.adaptive import Adaptive
from ddbench.decoding import ModelPair, Request, Sampling, Strategy, decode, load_pair
from ddbench.decoding.kv import Slots
from ddbench.decoding.masks import tree_mask
from ddbench.decoding.states import Links
from ddbench.decoding.target import Prompts, Target, delta_layers
from ddbench.replay.record import record as record_traces
from ddbench.tree import ancestor_mask
from tests.decoding.conftest import make_dflash, make_eagle, sample_text, train_dflash
from tests.decoding.hybrids import CONFIGS, HIDDEN, VOCAB, greedy, make_hybrid, make_prompts
from tests.decoding.test_adaptive import CANDIDATES, TREE, Coin, Costs
from tests.decoding.test_parity import record, slow_dflash

STRATEGIES = [
    Strategy("autoregressive"),
    Strategy("dflash"),
    Strategy("ddtree", nodes=16),
    Strategy("ddtree", nodes=30, width=3, depth=5),
    Strategy("eagle", width=3, depth=3, nodes=12),
]


@pytest.fixture(scope="module")
def hybrid() -> ModelPair:
    """A Qwen3.5 with a DFlash drafter trained on its text: its features come from layers of both kinds."""
    model, drafter = make_hybrid(), make_dflash(7)
    assert {model.config.layer_types[layer] for layer in drafter.config.target_layer_ids} == {
        "linear_attention",
        "full_attention",
    }
    train_dflash(drafter, model, sample_text(model, 16, 48), steps=90)
    return ModelPair(model, None, drafter.requires_grad_(False), None, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_strategy_is_lossless(kind: str) -> None:
    """With untrained drafters, which are wrong nearly always: rejections and refills, at mixed lengths."""
    other = ModelPair(make_hybrid(kind), None, make_dflash(), make_eagle(), torch.device("cpu"), torch.float32)
    requests = make_prompts([1, 5, 67, 11], [9, 3, 7, 9])
    expected = [greedy(other.target, request) for request in requests]
    for strategy in STRATEGIES:
        assert [each.output_token_ids for each in decode(other, strategy, requests, 3)] == expected, strategy


def test_a_drafter_of_its_own(hybrid: ModelPair) -> None:
    """Its drafts are accepted, several at once, and the text is the target's own."""
    requests = make_prompts([1, 5, 40, 11, 2, 17], [24, 9, 16, 30, 5, 12])
    expected = [greedy(hybrid.target, request) for request in requests]
    for strategy in STRATEGIES[1:4]:
        out = decode(hybrid, strategy, requests, 4)
        assert [each.output_token_ids for each in out] == expected
        assert max(each.accepted for generation in out for each in generation.rounds) >= 2


def test_drafts_come_from_the_stock_models_features(hybrid: ModelPair, toys: SimpleNamespace) -> None:
    """Each chain equals that of a direct drafter over the hidden states that Hugging Face's own layers give."""
    assert hybrid.dflash is not None
    anchors = record(toys, hybrid, Strategy("dflash"), make_prompts([1, 9, 23], 10))
    assert len(anchors) > 8
    with torch.inference_mode():
        for anchor in anchors:
            chain = slow_dflash(hybrid, hybrid.dflash, anchor.tokens).argmax(-1).tolist()
            assert anchor.paths[-1] == tuple(chain)


def test_sampled_text_is_the_autoregressive_arms(hybrid: ModelPair) -> None:
    samplings = [Sampling(1.0, seed=3), Sampling(0.7, top_p=0.9, seed=4), Sampling(), Sampling(1.3, top_k=5, seed=5)]
    requests = [
        replace(request, sampling=sampling)
        for request, sampling in zip(make_prompts([3, 20, 1, 8], [14, 9, 14, 11]), samplings, strict=True)
    ]
    expected = [each.output_token_ids for each in decode(hybrid, Strategy("autoregressive"), requests, 1)]
    assert expected[2] == greedy(hybrid.target, requests[2])
    for strategy in STRATEGIES[1:4]:
        out = decode(hybrid, strategy, requests, 3)
        assert [each.output_token_ids for each in out] == expected
        assert any(each.accepted for generation in out for each in generation.rounds)


def test_sampled_tokens_have_the_targets_law(hybrid: ModelPair) -> None:
    """The second token over 600 seeds: total variation to the stock model's law, expected below 0.08, is below 0.16."""
    prompt = make_prompts([9], 1)[0].token_ids
    requests = [Request("law", prompt, 2, Sampling(1.0, seed=seed), frozenset()) for seed in range(600)]
    out = decode(hybrid, Strategy("ddtree", nodes=12), requests, 100)
    with torch.inference_mode():
        first = hybrid.target(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        after = hybrid.target(torch.tensor([[*prompt, token] for token in range(VOCAB)])).logits[:, -1].softmax(-1)
    law = (first[:, None] * after).sum(0)
    counts = Counter(each.output_token_ids[1] for each in out)
    observed = torch.tensor([counts[token] / len(out) for token in range(VOCAB)])
    assert 0.5 * (observed - law).abs().sum() < 0.16
    assert law.max() < 0.7, "a law so peaked that the test could not fail"


def test_trees_chains_and_plain_steps_in_one_text(hybrid: ModelPair) -> None:
    """A policy that tosses a coin at every step: states go from one kind of pass to the next."""
    requests = make_prompts([1, 5, 40, 11], [24, 9, 16, 12])
    out = decode(hybrid, TREE, requests, 3, adaptive=Adaptive(Coin(), CANDIDATES, Costs()))
    assert [each.output_token_ids for each in out] == [greedy(hybrid.target, request) for request in requests]
    assert {each.choice for generation in out for each in generation.rounds} == {"tree", "chain", "autoregressive"}


def test_recording(hybrid: ModelPair) -> None:
    """A pass over a whole text chooses what decoding emitted, and its offers hold what a live chain drafts."""
    requests = make_prompts([1, 9, 23], [10, 14, 6])
    recorded = list(record_traces(hybrid, requests, 8, 2))
    assert [each.generation.output_token_ids for each in recorded] == [greedy(hybrid.target, each) for each in requests]
    assert [each.disagreements for each in recorded] == [0, 0, 0]
    live = decode(hybrid, Strategy("dflash"), requests, 2)
    first = [int((each.ranks[0] == 0).cumprod(axis=-1).sum()) for each in recorded]
    assert [each.rounds[0].accepted_raw for each in live] == first


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bfloat16(hybrid: ModelPair, device: str) -> None:
    """Rounding may change tokens, not the bookkeeping; most texts begin as the autoregressive arm's do."""
    pair = on(hybrid, device, torch.bfloat16)
    requests = make_prompts([1, 5, 40, 11, 2, 17], 12)
    plain = decode(pair, Strategy("autoregressive"), requests, 3)
    for strategy in STRATEGIES[1:3]:
        out = decode(pair, strategy, requests, 3)
        assert all(1 + sum(one.emitted for one in each.rounds) == 12 for each in out)
        assert any(one.accepted for each in out for one in each.rounds)
        same = [a.output_token_ids[:4] == b.output_token_ids[:4] for a, b in zip(plain, out, strict=True)]
        assert sum(same) >= 4


@pytest.mark.gpu
def test_lossless_on_cuda(hybrid: ModelPair) -> None:
    pair = on(hybrid, "cuda", torch.float32)
    requests = make_prompts([1, 5, 67, 11, 2, 17], [24, 9, 16, 30, 5, 12])
    expected = [greedy(pair.target, request) for request in requests]
    for strategy in STRATEGIES[:4]:
        assert [each.output_token_ids for each in decode(pair, strategy, requests, 4)] == expected, strategy


def on(pair: ModelPair, device: str, dtype: torch.dtype) -> ModelPair:
    where = torch.device(device)
    target, dflash = (deepcopy(model).to(where, dtype) for model in (pair.target, pair.dflash))
    return replace(pair, target=target, dflash=dflash, eagle=None, device=where, dtype=dtype)


# ------------------------------------------------------------------------------------------- what a state weighs


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_what_the_formula_says(kind: str, dtype: torch.dtype) -> None:
    """Bytes of the tensors that a verify pass of 3 rows leaves, by node; of the states, by sequence."""
    name, settings = CONFIGS[kind]
    config = getattr(transformers, name)(**settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).eval()
    rows, nodes = 3, 6
    parents = torch.tensor([[-1, 0, -1, 1, 1, 2]]).expand(rows, -1)
    with torch.inference_mode(), Target(model, (), rows, 64) as target:
        target.prefill(Prompts.of([[1, 2], [3], [4, 5, 6]], 0, dtype, target.device))
        lengths = torch.tensor([2, 1, 3])
        ancestors = ancestor_mask(parents)
        mask = tree_mask(ancestors, lengths, 16, dtype)
        ids = torch.randint(VOCAB, (rows, nodes + 1))
        slots = Slots.following([2, 1, 3], lengths, nodes + 1)
        target.forward(ids, ids * 0 + 4, mask, slots, 16, links=Links.of(parents, ancestors))
        states = target.states
        assert states is not None
        kept = [tensor for layer in states.layers.values() if layer.kept for tensor in layer.kept.tensors]
        assert sum(each.nbytes for each in kept) == rows * (nodes + 1) * states.node_bytes
        held = [tensor for layer in states.layers.values() for tensor in (layer.conv, layer.matrix)]
        assert sum(each.nbytes for each in held) == rows * states.sequence_bytes
        assert all(each.is_contiguous() or each.numel() == each.untyped_storage().nbytes() for each in held)
        target.commit(torch.tensor([0, 3, 6]))
        assert not states.pending
    heads, key, value = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    matrix = 4 * heads * key * value
    channels = 2 * config.linear_num_key_heads * key + heads * value
    convolution = channels * (config.linear_conv_kernel_dim - 1) * dtype.itemsize
    assert states.sequence_bytes == config.layer_types.count("linear_attention") * (matrix + convolution)


def test_keys_and_values_of_attending_layers_alone() -> None:
    model = make_hybrid()
    with Target(model, (), 1, 32) as target:
        assert target.cache.layers == model.config.layer_types.count("full_attention") == 1


def test_a_pass_over_a_tree_must_be_committed() -> None:
    model = make_hybrid()
    with torch.inference_mode(), Target(model, (), 1, 32) as target:
        target.prefill(Prompts.of([[1, 2]], 0, target.dtype, target.device))
        ancestors = torch.ones(1, 2, 2, dtype=torch.bool).tril()
        links = Links.of(torch.tensor([[-1]]), ancestors)
        step: dict[str, Any] = {
            "ids": torch.tensor([[3, 4]]),
            "positions": torch.tensor([[2, 3]]),
            "mask": tree_mask(ancestors, torch.tensor([2]), 16, target.dtype),
            "slots": Slots.following([2], torch.tensor([2]), 2),
            "kv_len": 16,
        }
        target.forward(**step, links=links)
        with pytest.raises(AssertionError, match="not committed"):
            target.forward(**step)


# ------------------------------------------------------------------------------------------- loading and refusals


def test_layers_are_their_own_again(hybrid: ModelPair) -> None:
    """After a run, and for plain passes over the model while a target holds it."""
    model, ids = hybrid.target, torch.tensor([[1, 2, 3, 4]])
    own = model(ids, use_cache=False).logits
    modules = list(delta_layers(model).values())
    with Target(model, (), 1, 32) as outer:
        assert torch.equal(model(ids, use_cache=False).logits, own)
        with Target(model, (), 1, 32) as inner, torch.inference_mode():
            prompts = Prompts.of([[1, 2, 3, 4]], 0, inner.dtype, inner.device)
            for target in (inner, outer):
                torch.testing.assert_close(target.prefill(prompts)[0], own[:, -1], rtol=0, atol=1e-3)
                assert target.states is not None
                assert all(bool(layer.matrix.any()) for layer in target.states.layers.values())
    assert all("forward" not in module.__dict__ for module in modules)


def test_load_pair_takes_a_hybrid(tmp_path: Path, toys: SimpleNamespace) -> None:
    """From a folder, in bfloat16: tried against its own layers, and run."""
    from runners.random_models import write_random_pair

    made = write_random_pair(tmp_path, seed=3, context_length=256)
    name, settings = CONFIGS["qwen3_5"]
    config = getattr(transformers, name)(**{**settings, "vocab_size": 400})
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "hybrid")
    for file in made.target.glob("tokenizer*"):
        (tmp_path / "hybrid" / file.name).write_bytes(file.read_bytes())
    pair = load_pair(tmp_path / "hybrid", dtype="bfloat16")
    assert len(delta_layers(pair.target)) == 3
    out = decode(pair, Strategy("autoregressive"), make_prompts([4, 9], 5), 2)
    assert [len(each.output_token_ids) for each in out] == [5, 5]


def test_the_text_part_of_a_checkpoint_with_images(tmp_path: Path) -> None:
    """As Qwen3.5 is published, with rotary sections for image positions."""
    name, settings = CONFIGS["qwen3_5"]
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0, "mrope_section": [2, 2, 2]}
    sight = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": HIDDEN}
    config = transformers.Qwen3_5Config(
        text_config={**settings, "rope_parameters": rope},
        vision_config={**sight, "num_position_embeddings": 16},
        image_token_id=20,
        video_token_id=21,
        vision_start_token_id=22,
        vision_end_token_id=23,
    )
    whole = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    whole.save_pretrained(tmp_path)
    text = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="sdpa").eval()
    assert type(text).__name__ == name.replace("TextConfig", "ForCausalLM")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.inference_mode(), Target(text, (), 1, 32) as target:
        logits, _ = target.prefill(Prompts.of(ids.tolist(), 0, target.dtype, target.device))
        wanted = whole(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1]
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4)
