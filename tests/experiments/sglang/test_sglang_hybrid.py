"""The evidence on hybrid targets without an engine: pairs of random weights, planted trees, what decides."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.options import Sizes
from experiments.sglang_evidence import hybrid, hybrid_inside, hybrid_pair, merge_checks, run
from experiments.sglang_evidence.arms import Pair, arguments, variables

WIDTH, BLOCK, WORDS = 16, 16, 97
TEXT = [5, 9, 2, 7, 11, 13, 4, 8, 3, 6, 12, 10, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25]


def worker_of(rows: int) -> Any:
    trees = Trees(rows, WIDTH, BLOCK, "cpu")
    trees.tokens[:, 0] = torch.tensor([TEXT[4], TEXT[6]][:rows])
    config = SimpleNamespace(vocab_size=WORDS)
    return SimpleNamespace(trees=trees, sizes=Sizes(WIDTH, BLOCK, 4), model_runner=SimpleNamespace(model_config=config))


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "texts.json"
    file.write_text(json.dumps([[3, TEXT], [2, [1, 1, *TEXT]]]))
    monkeypatch.setenv(hybrid_inside.TEXTS, str(file))


def batch_of(rows: int) -> Any:
    requests = [SimpleNamespace(origin_input_ids=TEXT[:3]) for _ in range(rows)]
    return SimpleNamespace(reqs=requests, seq_lens=torch.tensor([4, 6])[:rows])


def walked(worker: Any, rows: int) -> Walk:
    """The walk of a target that says the text after every entry at its depth."""
    trees, walk, lens = worker.trees, Walk(rows, BLOCK, "cpu"), torch.tensor([4, 6])[:rows]
    torch_ops.lay_out(trees, lens, torch.zeros(rows, WIDTH, dtype=torch.int64))
    at = lens[:, None] + trees.depths + 1
    torch_ops.walk(trees, torch.tensor(TEXT)[at.clamp(max=len(TEXT) - 1).long()], lens, walk)
    return walk


@pytest.mark.usefixtures("texts")
def test_planted_trees_carry_the_text_off_the_first_branch() -> None:
    planter, left, deepest = hybrid_inside.Planter(chain=False), 0, 0
    for _ in range(20):
        worker = worker_of(2)
        planter.plant(worker, batch_of(2), 2)
        walk = walked(worker, 2)
        for row, begin in enumerate((4, 6)):
            taken = int(walk.commit_lens[row])
            assert walk.out_tokens[row, :taken].tolist() == TEXT[begin + 1 : begin + 1 + taken]
            path, parents = walk.path[row, :taken].tolist(), worker.trees.parents[row].tolist()
            assert all(parent < entry for entry, parent in enumerate(parents))
            left += hybrid._leaves_first(parents, path)
            deepest = max(deepest, taken - 1)
    assert left >= 30, "of 40 paths"
    assert deepest >= 5


@pytest.mark.usefixtures("texts")
def test_planted_chains_break_where_the_length_says() -> None:
    worker, planter = worker_of(2), hybrid_inside.Planter(chain=True)
    planter.plant(worker, batch_of(2), 2)
    assert worker.trees.parents[0].tolist() == list(range(-1, WIDTH - 1))
    lengths = walked(worker, 2).commit_lens.tolist()
    assert lengths == [1 + 1 + (begin * 7) % (BLOCK - 1) for begin in (4, 6)]
    depths = torch.arange(WIDTH).expand(2, WIDTH)
    true = hybrid_inside.follows(torch.tensor([[4], [6]]), depths, BLOCK - 1)
    assert true.sum(dim=1).tolist() == lengths, "as the plant of the stock chain breaks"


def test_bits_are_the_ancestors() -> None:
    shape = hybrid_inside.random_shape(40, 15, seed=2)
    assert max(shape.depths) <= 15
    bits = hybrid_inside.bits_of(shape)
    for entry in range(40):
        seen, at = set(), entry
        while at >= 0:
            seen.add(at)
            at = shape.parents[at]
        assert {j for j in range(40) if (int(bits[entry, j // 32]) >> (j % 32)) & 1} == seen


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_a_pair_is_what_its_configuration_says(family: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import Qwen3_5TextConfig, Qwen3NextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextForCausalLM

    hybrid_pair.write_pair(tmp_path, family, "float32")
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    text = {name: value for name, value in config.get("text_config", config).items() if name != "model_type"}
    with torch.device("meta"):
        if family == "qwen3_5":
            expected = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text)).state_dict()
        else:
            expected = Qwen3NextForCausalLM(Qwen3NextConfig(**text)).state_dict()
    weights = load_file(tmp_path / "target" / "model.safetensors")
    found = {name: list(tensor.shape) for name, tensor in weights.items()}
    alike = {name: list(tensor.shape) for name, tensor in expected.items() if ".experts." not in name}
    assert {name: shape for name, shape in found.items() if ".experts." not in name} == alike


def test_a_text_model_in_the_form_that_sglang_knows(tmp_path: Path) -> None:
    hybrid_pair.write_pair(tmp_path, "qwen3_5", "float32")
    plain = tmp_path / "plain"
    plain.mkdir()
    text = json.loads((tmp_path / "target" / "config.json").read_text())["text_config"]
    del text["full_attention_interval"]
    own = text | {"architectures": ["Qwen3_5ForCausalLM"]}
    (plain / "config.json").write_text(json.dumps(own))
    (plain / "model.safetensors").symlink_to(tmp_path / "target" / "model.safetensors")
    seen = hybrid_pair.seen_by_sglang(plain, tmp_path / "seen")
    found = json.loads((seen / "config.json").read_text())
    assert found["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert found["text_config"]["full_attention_interval"] == hybrid_pair.INTERVAL
    assert (seen / "model.safetensors").exists()
    assert hybrid_pair.seen_by_sglang(tmp_path / "target", tmp_path / "other") == tmp_path / "target"


def test_every_arm_is_told_what_it_needs(tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in hybrid.arms_of([arm.name for arm in hybrid.ARMS], tmp_path, "qwen3_5")}
    assert set(hybrid.FIRST) <= set(arms)
    pair = Pair(tmp_path, tmp_path, tmp_path, "float32", False, 512, 4096)
    for name, arm in arms.items():
        told, env = arguments(arm, pair, [1, 8]), variables(arm, pair)
        assert told["dtype"] == ("bfloat16" if name.endswith("_bf16") else "float32")
        assert told["disable_radix_cache"] is (name != "ddtree_radix")
        assert ("float32_states" in env["DDBENCH_INSIDE"]) is (told["dtype"] == "float32") if arm.hooks else True
        if arm.strategy == "ddtree":
            assert told["speculative_num_draft_tokens"] == hybrid.WIDTH
        for change in filter(None, env.get("DDBENCH_INSIDE", "").split(",")):
            assert change == "float32" or change in hybrid_inside.CHANGES


def test_every_arm_has_a_text_of_its_own_arithmetic(tmp_path: Path) -> None:
    plain = {arm.name: hybrid.plain_of(arm.name) for arm in hybrid.ARMS}
    assert plain["ddtree"] == plain["ddtree_star"] == plain["dflash"] == hybrid.PLAIN
    assert plain["ddtree_bf16"] == hybrid.PLAIN_16
    assert plain["ddtree_bf16_state"] == plain[hybrid.PLAIN_STATE] == hybrid.PLAIN_STATE
    arms = {arm.name: arm for arm in hybrid.arms_of(["ddtree_bf16_state"], tmp_path, "qwen3_5")}
    arm = arms["ddtree_bf16_state"]
    assert arm.extra["mamba_ssm_dtype"] == "bfloat16"
    assert arm.extra["dtype"] == "float32"


def test_the_trained_pair_is_not_planted(tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in hybrid.arms_of(None, tmp_path, None)}
    assert list(arms) == list(hybrid.FIRST_TINY)
    assert not any(hook.startswith("plant") for arm in arms.values() for hook in arm.hooks)
    assert arms["ddtree_spine"].env["DDTREE_WIDTH"] == "1"
    assert arms["ddtree_star"].hooks[-1] == "star"


def result(**other: Any) -> dict[str, Any]:
    equal, wrong = {"share": 1.0, "unexplained": 0}, {"share": 0.1, "unexplained": 9}
    found: dict[str, Any] = {
        "asked": ["ddtree", "ddtree_sync", "ddtree_star"],
        "identity": {"ddtree": {8: equal, 1: equal}, "ddtree_sync": {8: equal}, "ddtree_star": {8: wrong, 1: wrong}},
        "node_logits": {"ddtree_sync": {"within_threshold": True}, "ddtree_star": {"within_threshold": False}},
        "links": {"ddtree_sync": {"rounds": 24, "read": 24, "changed": 24}},
        "pairs": {"ddtree_spine=dflash": {8: equal}},
        "histogram": {"ddtree_spine": {8: [1, 2]}, "dflash": {8: [1, 2]}},
    }
    return found | other


def test_the_verdict_holds_and_falls() -> None:
    assert set(hybrid.verdict(result()).values()) == {True}
    equal, wrong = {"share": 1.0, "unexplained": 0}, {"share": 0.1, "unexplained": 9}
    for key, value, claim in (
        ("identity", {"ddtree": {8: wrong}, "ddtree_star": {8: wrong}}, "greedy_is_autoregressive"),
        ("identity", {"ddtree": {8: equal}, "ddtree_star": {8: equal}}, "ddtree_star_caught_by_text"),
        ("node_logits", {"ddtree_sync": {"within_threshold": False}}, "node_logits_agree"),
        ("links", {"ddtree_sync": {"rounds": 24, "read": 23, "changed": 24}}, "links_rewritten_every_round"),
        ("links", {"ddtree_sync": {"rounds": 24, "read": 24, "changed": 1}}, "links_rewritten_every_round"),
        ("histogram", {"ddtree_spine": {8: [1, 2]}, "dflash": {8: [2, 1]}}, "spine_is_dflash"),
    ):
        assert hybrid.verdict(result(**{key: value}))[claim] is False, claim
    assert hybrid.verdict(result(node_logits={}))["node_logits_agree"] is None
    chain_alone = hybrid.verdict(result(identity={"dflash": {8: equal}}, pairs={"ddtree_sync=ddtree": {8: equal}}))
    assert chain_alone["greedy_is_autoregressive"] is None
    assert chain_alone["spine_is_dflash"] is None


def test_the_evidence_file_has_what_was_shown() -> None:
    shard = result(verdict=hybrid.verdict(result()), family="qwen3_5")
    found = merge_checks.hybrids({"hybrid": shard, "law": {}})
    assert found is not None
    assert list(found) == ["hybrid"]
    assert found["hybrid"]["verdict"]["greedy_is_autoregressive"] is True
    assert found["hybrid"]["states"] is None
    assert merge_checks.hybrids({"law": {}}) is None


def test_paths_in_a_trace(tmp_path: Path) -> None:
    lines = [
        {"parents": [-1, 0, 0, 2], "path": [0, 2, 3], "graph": True},
        {"parents": [-1, 0, 0, 2], "path": [0, 1], "graph": True},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = hybrid.paths_of(tmp_path / "t.jsonl")
    assert found == {"rounds": 2, "mean_accepted": 1.5, "deepest": 2, "on_other_branches": 1, "in_graph": 2}
    assert hybrid.paths_of(tmp_path / "none") is None


STAND_IN = Path(__file__).resolve().parents[2] / "runners" / "sglang" / "stand_in"
ASSETS = Path(__file__).resolve().parents[3] / "ddbench" / "assets"


def dense_pair(folder: Path, family: str, dtype: str) -> None:
    """The stand-in of SGLang knows dense models alone."""
    folder.mkdir(parents=True)
    for name in ("target", "dflash"):
        (folder / name).symlink_to(ASSETS / name)


def test_the_shard_from_engines_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of the stand-in, which plants nothing and has no states: what is left is measured, the rest is null."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.setattr(hybrid, "write_pair", dense_pair)
    monkeypatch.setattr(hybrid, "LENGTH", 12)
    monkeypatch.setattr(hybrid, "PROMPTS", 2)
    names = ["autoregressive", "ddtree"]
    options = {"dtype": "float32", "arms": names, "batches": [2], "prompts": None, "gpus": 1, "restart": 1}
    config = {"shard": "hybrid", "python": None, "limit_s": 240, "folder": str(tmp_path), "output": "", **options}
    answer = run.run(config, "id")
    assert answer["failed"] == {}
    found = json.loads(Path(answer["file"]).read_text())["measured"]
    assert found["asked"] == names
    assert found["identity"]["ddtree"]["2"]["share"] == 1.0
    assert found["acceptance_length"]["ddtree"]["2"] > 1
    assert found["verdict"]["greedy_is_autoregressive"] is True
    assert found["verdict"]["node_logits_agree"] is None
    assert found["states"] == {"ddtree": None}
    lines = json.loads((tmp_path / "hybrid_float32_logs" / "texts_autoregressive.json").read_text())
    assert [len(tokens) - prompt for prompt, tokens in lines] == [12 + hybrid.WIDTH] * 2
