"""The W&B sink for real, offline: no key, no network, and the record read back from disk."""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddbench.errors import ConfigError
from reports import WandbSettings, build_report

wandb = pytest.importorskip("wandb")

BLOCK = 32_768  # the record file is a sequence of blocks of this size, as in LevelDB's log


def records(path: Path) -> Iterator[object]:
    """The records of an offline run's file: chunks (checksum, length, kind) that never cross a block."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, b""  # seven bytes of head
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.fixture
def run(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "synthetic" / "run"
    shutil.copytree(small_run, folder)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb"))
    return folder


def test_offline_run_is_written_and_finished(run: Path) -> None:
    build_report(run, wandb=WandbSettings(tags=("test",)))
    stored = list(run.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(stored) == 1
    assert wandb.run is None  # finished: a second run in this process would not join it
    found = list(records(stored[0]))
    kinds = [record.WhichOneof("record_type") for record in found]  # type: ignore[attr-defined]
    assert "exit" in kinds
    assert next(r.exit.exit_code for r in found if r.WhichOneof("record_type") == "exit") == 0  # type: ignore[attr-defined]
    started = next(r.run for r in found if r.WhichOneof("record_type") == "run")  # type: ignore[attr-defined]
    assert (started.project, started.run_group, started.job_type) == ("ddbench", "run", "report")
    keys = {
        item.key or ".".join(item.nested_key)
        for record in found
        if record.WhichOneof("record_type") == "history"  # type: ignore[attr-defined]
        for item in record.history.item  # type: ignore[attr-defined]
    }
    assert {"ddtree/acceptance_length", "ddtree/batch_size", "ddtree_by_nodes/nodes"} <= keys
    for media in ("results", "figures/speedup_vs_batch_size"):  # stored as nested items: media._type, media.path, ...
        assert any(key.startswith(f"{media}.") for key in keys)
    logged = [r.artifact for r in found if r.WhichOneof("record_type") == "artifact"]  # type: ignore[attr-defined]
    assert {entry.path for artifact in logged for entry in artifact.manifest.contents} >= {
        "report.md",
        "results.parquet",
    }


def test_disabled_writes_nothing(run: Path) -> None:
    build_report(run, wandb=WandbSettings(mode="disabled"), figures=False)
    assert not (run / "wandb").exists()


def test_a_fault_of_wandb_is_a_warning(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("the server said no")

    monkeypatch.setattr(wandb, "init", broken)
    with caplog.at_level(logging.WARNING):
        paths = build_report(run, wandb=WandbSettings(), figures=False)
    assert paths.report.is_file()
    assert "the server said no" in caplog.text


def test_a_wrong_mode_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.mode='of': one of offline, online, disabled"):
        WandbSettings(mode="of")
