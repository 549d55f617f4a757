"""Branches of SGLang from a checkout: what their servers are told, what is refused, and what is seen of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from branch import write_checkout
from engines import STAND_IN, cell, spec, write_stand_in
from sglang_arms import FOLDERS, GIVEN, GPU, HUB, arm, value

from ddbench.errors import ConfigError
from runners.base import CellJob, CellOutcome, ModelFiles
from runners.random_models import BLOCK_SIZE, RandomPair, write_random_pair
from runners.sglang.branches import BRANCHES, TOLD, Branch, Tree
from runners.sglang.checkout import look
from runners.sglang.command import Launch, Machine, arguments, build
from runners.sglang.runner import SglangRunner

OWN = Branch(
    ("--speculative-algorithm", "MINE", "--tree={width}x{depth}", "--nodes", "{nodes}", "--on"), {"B": "{block}"}
)
BARE = Branch(("--speculative-algorithm=A", "--nodes={nodes}"))
SMALL = replace(GIVEN, context_length=512, overlap=False)
DEMANDS = replace(GPU, batch_size=2, most_width=BLOCK_SIZE, context_length=512)
TREE = arm("ddtree", SMALL, DEMANDS, width=2, depth=BLOCK_SIZE - 1, nodes=8)


def launched(branch: Branch, model: ModelFiles = FOLDERS, **shape: Any) -> Launch:
    machine = Machine("py", "bfloat16", 1, "0", path="/there/python", branch=branch)
    return build(arm("ddtree", **shape), model, machine, (1, 8))


def test_each_branch_is_told_a_tree_by_its_own_flags() -> None:
    heap = launched(BRANCHES["sglang_29907"], width=3, depth=15, nodes=32)
    assert value(heap, "--speculative-algorithm") == "DDTREE"
    assert value(heap, "--speculative-ddtree-budget") == "32"
    assert heap.environment["SGLANG_DDTREE_MAX_TOPK"] == "3"
    assert not {"--speculative-num-draft-tokens", "--speculative-eagle-topk"} & set(heap.argv)
    beam = launched(BRANCHES["sglang_31069"], width=4, depth=15, nodes=32)
    assert "--speculative-dflash-tree-verify" in beam.argv
    told = {
        name: value(beam, f"--speculative-{name}") for name in ("eagle-topk", "num-draft-tokens", "dflash-block-size")
    }
    assert told == {"eagle-topk": "4", "num-draft-tokens": "33", "dflash-block-size": "16"}
    for made in (heap, beam):
        assert value(made, "--speculative-draft-model-path") == "/m/dflash"
        assert made.environment["PYTHONPATH"] == "/there/python"
        assert made.environment["SGLANG_PLUGINS"] == "none"
        ours = {name for name, given in made.environment.items() if name.startswith("DDTREE_") and given is not None}
        assert not ours
    hub = launched(BRANCHES["sglang_31069"], HUB, width=4, depth=15, nodes=32)
    assert value(hub, "--speculative-draft-model-revision") == "b" * 40


def test_an_adapter_of_the_users_own() -> None:
    made = launched(OWN, width=4, depth=7, nodes=32)
    assert (value(made, "--tree"), value(made, "--nodes"), made.environment["B"]) == ("4x7", "32", "16")
    assert "--on" in made.argv
    assert OWN.words == [*OWN.arguments, "B={block}"]
    machine = Machine("py", "bfloat16", 1, "0", path="/there/python", branch=OWN)
    chain = build(arm("dflash"), FOLDERS, machine, (1,))
    assert value(chain, "--speculative-num-draft-tokens") == "16"
    assert "B" not in chain.environment


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--speculative-algorithm", "A", "--n", "{node}"),
            r"engine\.branch='\{node\}': templates with \{verify_width\}",
        ),
        (("--speculative-algorithm", "A"), r"\{verify_width\} or \{nodes\}"),
        (("--speculative-algorithm", "A", "--n", "{nodes"), "templates whose braces fit"),
        (("--n", "{nodes}"), "--speculative-algorithm among"),
        (("--speculative-algorithm", "A", "B", "--n", "{nodes}"), r"engine\.branch='B': arguments of flags"),
        (("--speculative-algorithm", "A", "--n", "{nodes!x}"), r"engine\.branch='\{nodes!x\}': names alone in braces"),
        (("--speculative-algorithm", "A", "--n", "{nodes:foo}"), "names alone in braces"),
        (("--speculative-algorithm", "A", "--n", "{nodes:{other}}"), "names alone in braces"),
        (("--speculative-algorithm", "A", "--{nodes}"), "flags of letters, digits and -"),
        ((*BARE.arguments, "--page-size", "64"), r"engine\.branch='--page-size': flags of the branch's trees alone"),
        ((*BARE.arguments, "--attention-backend=flashinfer"), r"'--attention-backend': flags of the branch's"),
        (
            (*BARE.arguments, "--disable-overlap"),
            r"'--disable-overlap': flags of the branch's",
        ),  # the same, abbreviated
        ((*BARE.arguments, "--decode-attention-backend", "fa3"), "flags of the branch's trees alone"),
    ],
)
def test_an_adapter_that_tells_no_tree_is_refused(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Branch(arguments)


def test_what_every_server_is_told_is_no_adapters() -> None:
    """All settings of an arm with every flag given; what has no value for it is there under another one."""
    full = replace(
        GIVEN, quantization="fp8", mem_fraction_static=0.5, overlap=False, cuda_graphs=True, prefix_cache=False
    )
    names: set[str] = set()
    for graphs in (True, False):
        flags = replace(full, cuda_graphs=graphs)
        model = replace(HUB, trust_remote_code=True)
        names |= set(arguments(arm("autoregressive", flags), model, Machine("py", "bfloat16", 1), (1,)))
    assert names == set(TOLD)
    with pytest.raises(ConfigError, match=r"engine\.branch\.environment='A=B': names of variables"):
        Branch(BARE.arguments, {"A=B": "{nodes}"})


def test_a_checkout_is_known_by_all_that_runs_of_it(tmp_path: Path) -> None:
    """A kernel that is compiled at its first call, and the table that it is called by, are sources as Python is."""
    write_checkout(tmp_path)
    seen = set()

    def state() -> str:
        look.cache_clear()
        seen.add(look(str(tmp_path)).source)
        return look(str(tmp_path)).source

    first = state()
    inside = tmp_path / "python" / "sglang" / "kernels"
    inside.mkdir()
    names = ("a.cu", "b.cuh", "c.h", "d.cpp", "e.json", "f.py")
    for name in names:
        (inside / name).write_text("1")
        state()
        (inside / name).write_text("2")
        state()
    assert len(seen) == 1 + 2 * len(names)
    last = state()
    for name in ("g.so", "h.log"):
        (inside / name).write_text("1")
    (inside / "__pycache__").mkdir()
    (inside / "__pycache__" / "a.py").write_text("1")
    assert state() == last != first


@pytest.mark.parametrize(
    ("name", "width", "depth", "nodes", "told"),
    [
        ("sglang_29907", 3, 15, 32, None),
        ("sglang_29907", 4, 15, 32, "at most 3 candidates of a position at 32 nodes"),
        ("sglang_29907", 2, 15, 15, "at most 1 candidates"),  # its spine
        ("sglang_29907", None, 15, 32, "no unlimited width"),
        ("sglang_29907", 2, 7, 32, "only 15, that of the whole block"),
        ("sglang_31069", 4, None, 60, None),
        ("sglang_31069", 4, 15, 300, "nodes 300 > 228"),
        ("sglang_31069", 3, 15, 32, "widths 4, 8 and 16, not 3"),
        ("sglang_36196", 4, 15, 32, "DFlash-2"),
        ("own", 4, 7, 32, None),
        ("own", 4, 7, None, "needs a number of nodes"),
        ("bare", None, 15, 32, None),
        ("bare", 2, 15, 32, "cannot be told a width"),
    ],
)
def test_trees_that_a_branch_cannot_have(
    name: str, width: int | None, depth: int | None, nodes: int | None, told: str | None
) -> None:
    found = {**BRANCHES, "own": OWN, "bare": BARE}[name].refuse(Tree(width, depth, nodes, 16))
    assert found is None if told is None else told in str(found)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> RandomPair:
    return write_random_pair(tmp_path_factory.mktemp("models"), 0, 512)


def measured(pair: RandomPair, folder: Path, **says: str) -> CellOutcome:
    """A cell of a server of the made-up checkout."""
    checkout = write_checkout(folder / "checkout")
    given = spec(write_stand_in(folder, environment=says), pair, "ddtree")
    assert given.server is not None
    server = replace(given.server, checkout=str(checkout), branch=BRANCHES["sglang_29907"])
    runner = SglangRunner(replace(given, server=server))
    (folder / "cell").mkdir()
    try:
        assert runner.start()["engine_checkout"]["source"] == look(str(checkout)).source
        return runner.run_cell(CellJob(cell(TREE), folder / "cell", 2), lambda done, total: None)
    finally:
        runner.stop()


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ({"BRANCH_ADAPTS": "4"}, "speculative_ddtree_budget is 4, not 8"),
        ({"BRANCH_SAYS": "ddbench: DDTREE plugin registered: N=8"}, "our plug-in is in the server of a checkout"),
    ],
)
def test_a_server_that_is_not_the_branchs_is_not_measured(
    says: dict[str, str], told: str, pair: RandomPair, tmp_path: Path
) -> None:
    outcome = measured(pair, tmp_path, **says)
    assert outcome.status == "failed"
    assert told in str(outcome.reason)
    assert not (tmp_path / "cell" / "requests.parquet").exists()


def test_the_checkout_must_be_what_runs(pair: RandomPair, tmp_path: Path) -> None:
    """An environment may put something else before all that it is told."""
    checkout = write_checkout(tmp_path / "checkout")
    first = {"PYTHONPATH": str(STAND_IN)}
    given = spec(write_stand_in(tmp_path, environment=first), pair, "ddtree")
    assert given.server is not None
    runner = SglangRunner(replace(given, server=replace(given.server, checkout=str(checkout))))
    with pytest.raises(ConfigError, match=r"sources that engine\.python imports; it has sglang from .*stand_in/sglang"):
        runner.start()
