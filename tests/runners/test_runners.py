from __future__ import annotations

import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ddbench.decoding import Generation, Request, Round, Sampling, load_pair
from ddbench.records import REQUESTS, ROUNDS, TELEMETRY, Arm, Cell
from runners.base import Prompt
from runners.machine import machine_facts, version
from runners.random_models import BLOCK_SIZE, END_TOKEN, MASK_TOKEN, VOCAB, write_random_pair
from runners.reference import engine_version
from runners.tables import histogram, write_tables
from runners.telemetry import Telemetry
from runners.worker import judge, source_hash

ARM = Arm("reference", "1", "ddtree", 2, 3, 4, False, None, "m", "t", None, "d", None, "local", {})
CELL = Cell(ARM, "w", "h", 1, 1, 6, 0.0, 1.0, 0, 0, 1, 2)
PROMPT = Prompt("p", "data", "code", ("text",))


def generation(rounds: tuple[Round, ...], tokens: tuple[int, ...], error: str | None = None) -> Generation:
    request = Request("p", (1, 2, 3), 6, Sampling(seed=5), frozenset())
    return Generation(request, tokens, rounds, 0.5, 0.75, 2.0, "length", 3, error)


def a_round(accepted: int, raw: int) -> Round:
    return Round(4, 3, accepted, raw, accepted + 1, 2, 0.1, 0.2, 0.3, 0.4)


def test_tables_hold_counts_and_clocks(tmp_path: Path) -> None:
    made = generation((a_round(2, 2), a_round(1, 3)), (7, 8, 9, 10, 11, 12))
    write_tables(tmp_path, CELL, [(PROMPT, 1, made)], [(0.0, "cpu_percent", 50.0)])
    (request,) = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert pq.read_schema(tmp_path / "requests.parquet").equals(REQUESTS)
    assert request == {
        "cell_id": CELL.cell_id,
        "block": 2,
        "prompt_id": "p",
        "turn": 0,
        "dataset": "data",
        "category": "code",
        "repeat": 1,
        "seed": 5,
        "prompt_tokens": 3,
        "output_tokens": 6,
        "rounds": 2,
        "drafted": 8,
        "accepted": 3,
        "accepted_raw": 5,
        "accept_histogram": [0, 0, 1, 1],
        "start_s": 0.5,
        "ttft_s": 0.25,
        "latency_s": 1.5,
        "finish_reason": "length",
        "cached_tokens": 0,
        "output_token_ids": [7, 8, 9, 10, 11, 12],
        "error": None,
        "output_gaps": None,
    }
    rounds = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    assert pq.read_schema(tmp_path / "rounds.parquet").equals(ROUNDS)
    assert [(row["round"], row["accepted"], row["accepted_raw"], row["verify_s"]) for row in rounds] == [
        (0, 2, 2, 0.3),
        (1, 1, 3, 0.3),
    ]
    assert pq.read_schema(tmp_path / "telemetry.parquet").equals(TELEMETRY)


def test_histogram() -> None:
    assert histogram([]) == []
    assert histogram([0, 2, 2]) == [1, 0, 2]


def test_judgement() -> None:
    good = (PROMPT, 0, generation((a_round(0, 0),), (7, 8)))
    idle = (PROMPT, 0, generation((), (7, 8)))
    broken = (PROMPT, 0, generation((), (), "out of memory"))
    assert judge("ddtree", [good]) == ("ok", None)
    assert judge("autoregressive", [idle]) == ("ok", None)
    assert judge("ddtree", [idle])[0] == "failed"
    assert judge("ddtree", [good, broken]) == ("failed", "1 of 2 requests failed: out of memory")
    assert judge("ddtree", [(PROMPT, 0, generation((), (7,)))]) == ("ok", None)


def test_the_build_is_the_source_that_computes(tmp_path: Path) -> None:
    for name in ("decoding", "tree", "plugins"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text("x = 1\n")
    before = source_hash(tmp_path)
    (tmp_path / "plugins" / "code.py").write_text("x = 2\n")  # of another engine
    assert source_hash(tmp_path) == before
    (tmp_path / "tree" / "code.py").write_text("x = 2\n")
    after = source_hash(tmp_path)
    assert after != before
    (tmp_path / "tree" / "code.py").rename(tmp_path / "tree" / "renamed.py")
    assert source_hash(tmp_path) not in (before, after)


def test_telemetry_samples_this_process() -> None:
    with Telemetry(interval_s=0.05) as telemetry:
        time.sleep(0.2)
    times = [at for at, name, _ in telemetry.samples if name == "process_rss_gib"]
    assert len(times) >= 3
    assert times == sorted(times)
    assert telemetry.peak_rss_gib > 0.01


def test_machine_facts() -> None:
    facts = machine_facts()
    assert facts["packages"]["torch"] == version("torch")
    assert facts["cpu_count"] >= 1
    assert facts["memory_gib"] > 0
    assert "torch" in engine_version()


def test_random_models_load_like_real_ones(tmp_path: Path) -> None:
    made = write_random_pair(tmp_path, seed=3, context_length=256)
    pair = load_pair(str(made.target), str(made.dflash), str(made.eagle))
    assert pair.dflash is not None
    assert pair.eagle is not None
    assert pair.target.config.vocab_size == VOCAB
    assert pair.max_length == 256
    assert (pair.dflash.config.block_size, pair.dflash.config.mask_token_id) == (BLOCK_SIZE, MASK_TOKEN)
    assert pair.tokenizer.eos_token_id == END_TOKEN
    text = "def f(x):\n    return 'é'"
    assert pair.tokenizer.decode(pair.tokenizer(text)["input_ids"]) == text
    again = write_random_pair(tmp_path / "again", seed=3, context_length=256)
    other = write_random_pair(tmp_path / "other", seed=4, context_length=256)
    for name in ("target", "dflash", "eagle"):
        weights = (getattr(made, name) / "model.safetensors").read_bytes()
        assert weights == (getattr(again, name) / "model.safetensors").read_bytes()
        assert weights != (getattr(other, name) / "model.safetensors").read_bytes()


@pytest.mark.gpu
def test_telemetry_reads_the_gpu() -> None:
    with Telemetry(gpu_index=0, interval_s=0.05) as telemetry:
        time.sleep(0.2)
    assert {"gpu_sm_clock_mhz", "gpu_power_w"} <= {name for _, name, _ in telemetry.samples}
