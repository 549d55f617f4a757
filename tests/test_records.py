"""The stored schema: ids are content hashes, round trips keep everything, the contract's columns are there."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import yaml

from ddbench.records import REQUESTS, ROUNDS, Arm, Cell, content_hash


def a_cell() -> Cell:
    arm = Arm(
        engine="reference",
        engine_version="0.1.0",
        strategy="ddtree",
        width=4,
        depth=7,
        nodes=16,
        force_spine=True,
        min_log_prob=None,
        model="tiny",
        target="asset://target",
        target_revision=None,
        drafter="asset://dflash",
        drafter_revision=None,
        host="local",
        flags={"device": "cpu", "dtype": "float32"},
    )
    return Cell(
        arm=arm,
        workload="shipped",
        prompts_hash="abc",
        prompts=8,
        batch_size=4,
        max_new_tokens=64,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=0,
        repeats=1,
        block=0,
    )


def test_the_id_is_stable() -> None:
    # Fixed: a change here breaks resuming of every stored run, so it must be meant.
    assert content_hash({"b": 1, "a": [None, 0.5]}) == content_hash({"a": [None, 0.5], "b": 1})
    assert len(a_cell().cell_id) == 16
    assert a_cell().cell_id == a_cell().cell_id
    assert int(a_cell().cell_id, 16) >= 0


def test_the_order_of_flags_does_not_matter() -> None:
    cell = a_cell()
    turned = replace(cell, arm=replace(cell.arm, flags=dict(reversed(cell.arm.flags.items()))))
    assert turned.cell_id == cell.cell_id


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 8},
        {"temperature": 1.0},
        {"workload": "other"},
        {"prompts_hash": "abd"},
        {"seed": 1},
        {"top_p": 0.9},
    ],
    ids=str,
)
def test_every_field_of_the_cell_counts(change: dict[str, object]) -> None:
    other = replace(a_cell(), **change)  # type: ignore[arg-type]
    assert other.cell_id != a_cell().cell_id
    assert other.point_id != a_cell().point_id


@pytest.mark.parametrize("change", [{"width": None}, {"nodes": 8}, {"flags": {}}, {"force_spine": False}], ids=str)
def test_every_field_of_the_arm_counts(change: dict[str, object]) -> None:
    cell = a_cell()
    assert replace(cell, arm=replace(cell.arm, **change)).cell_id != cell.cell_id  # type: ignore[arg-type]


def test_blocks_of_a_point_share_its_id() -> None:
    first, second = a_cell(), a_cell().with_block(1)
    assert first.point_id == second.point_id
    assert first.cell_id != second.cell_id


def test_yaml_round_trip() -> None:
    stored = yaml.safe_dump(asdict(a_cell()))
    assert Cell.from_dict(yaml.safe_load(stored)) == a_cell()


def test_requests_have_the_contract_columns() -> None:
    contract = (
        "cell_id, block, prompt_id, turn, dataset, category, repeat, seed, prompt_tokens, output_tokens, rounds, "
        "drafted, accepted, accepted_raw, accept_histogram, start_s, ttft_s, latency_s, finish_reason, cached_tokens, "
        "output_token_ids, error"
    )
    assert set(contract.split(", ")) <= set(REQUESTS.names)
    assert {"draft_s", "build_s", "verify_s", "commit_s", "drafted", "accepted_raw", "emitted"} <= set(ROUNDS.names)
