"""What is stored: whole or not at all, of this version or an older one; and damage that costs its cell alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sweeps import CELLS, Sweeps

import ddbench
from ddbench import storage
from ddbench.errors import ConfigError
from ddbench.records import REQUESTS
from ddbench.storage import KEY, SCHEMA_VERSION, NewerSchema, damaged, read_parquet, schema_version, write_parquet
from experiments.store import RunFolder
from reports import build_report
from reports.frames import read_run

OLDER = Path(__file__).parent / "samples" / "schema_1"  # as the version before schema 2 wrote it
TABLE = pa.Table.from_pylist([{"cell_id": "c", "output_token_ids": list(range(50))}] * 40, schema=REQUESTS)


def copied(sweeps: Sweeps, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sweeps.path("whole"), tmp_path / "run"))


def newer(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({KEY: str(SCHEMA_VERSION + 1).encode()}), path)


def test_an_older_run_is_read_and_gone_on_with(tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLDER, tmp_path / "run"))
    (first, *_) = (run / "cells").glob("*/requests.parquet")
    assert schema_version(first) == 1
    frames = ddbench.load(run)
    assert set(frames.results["status"]) == {"ok"}
    assert frames.requests["output_tokens"].notna().all()
    assert build_report(run, figures=False).report.is_file()
    assert RunFolder(run).counts()["ok"] == 2


def test_a_newer_table_is_refused_in_one_line(sweeps: Sweeps, tmp_path: Path) -> None:
    run = copied(sweeps, tmp_path)
    (first, *_) = (run / "cells").glob("*/requests.parquet")
    assert schema_version(first) == SCHEMA_VERSION
    newer(first)
    with pytest.raises(
        ConfigError, match=rf"run='.*': a run of this version.*has schema {SCHEMA_VERSION + 1}"
    ) as error:
        build_report(run, figures=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["status.json", "telemetry.parquet"])
def test_a_newer_run_is_not_gone_on_with(sweeps: Sweeps, name: str) -> None:
    run_id = f"newer-{name.partition('.')[0]}"
    shutil.copytree(sweeps.path("whole"), sweeps.path(run_id))
    (file, *_) = (sweeps.path(run_id) / "cells").glob(f"*/{name}")
    if file.suffix == ".json":
        file.write_text(json.dumps({**json.loads(file.read_text()), "schema": SCHEMA_VERSION + 1}))
    else:
        newer(file)
    code, _, err = sweeps.run(run_id)
    assert code == 2
    (line,) = err.strip().splitlines()
    assert line.startswith("error: run=")
    assert f"has schema {SCHEMA_VERSION + 1}" in line


def test_what_is_written_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    write_parquet(path, TABLE)
    assert read_parquet(path).schema.equals(REQUESTS)
    before = path.read_bytes()

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "_sync", full)
    with pytest.raises(OSError, match="No space left"):
        write_parquet(path, TABLE.slice(0, 3))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", [0, 1, 100, 0.5, 0.99])
def test_a_cut_table_is_seen(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "table.parquet"
    write_parquet(path, TABLE)
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data)) if 0 < cut < 1 else int(cut)])
    assert damaged(path)
    path.write_bytes(b"\0" * len(data))
    assert damaged(path)


def test_a_page_that_was_overwritten_is_seen_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_parquet(path, TABLE)
    data = bytearray(path.read_bytes())
    place = pq.read_metadata(path).row_group(0).column(0).data_page_offset + 40
    data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises((OSError, pa.ArrowException)):
        read_parquet(path)


def test_a_newer_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_parquet(path, TABLE)
    newer(path)
    with pytest.raises(NewerSchema):
        read_parquet(path)


NEWEST = ("requests.parquet", "telemetry.parquet", "status.json", "cell.yaml")  # of the last cell
OWN = ("config.yaml", "environment.json", "dropped.json", "results.parquet", "report.md")  # of the run


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", NEWEST + OWN)
def test_a_power_cut_costs_one_cell_at_most(sweeps: Sweeps, tmp_path: Path, name: str) -> None:
    run = copied(sweeps, tmp_path)
    newest = max((run / "cells").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    halved((newest if name in NEWEST else run) / name)
    silent = ("config.yaml", "results.parquet", "report.md")  # half of a YAML file is one; the others are made anew
    assert any(name in problem for problem in read_run(run).problems) or name in silent
    assert RunFolder(run).counts()["ok"] == CELLS - (name in NEWEST)


def test_a_report_is_made_of_what_a_power_cut_left(sweeps: Sweeps, tmp_path: Path) -> None:
    run = copied(sweeps, tmp_path)
    for cell, name in zip(sorted((run / "cells").iterdir()), NEWEST, strict=False):
        halved(cell / name)
    for name in OWN:
        halved(run / name)
    paths = build_report(run, figures=False)
    assert "cannot be read" in paths.report.read_text()


def flip_a_byte(table: Path) -> None:
    """The last of the first column's page: the table is read as before, with another value in it."""
    data = bytearray(table.read_bytes())
    column = pq.read_metadata(table).row_group(0).column(0)
    data[column.dictionary_page_offset + column.total_compressed_size - 1] ^= 0x01
    table.write_bytes(data)


def test_damaged_cells_are_measured_again_and_no_others(sweeps: Sweeps) -> None:
    run = sweeps.path("cut")
    shutil.copytree(sweeps.path("whole"), run)
    before = {path.name: (path / "status.json").read_text() for path in (run / "cells").iterdir()}
    first, second, third, fourth, *_ = sorted(before)
    flip_a_byte(run / "cells" / fourth / "requests.parquet")
    (run / "cells" / first / "requests.parquet").write_bytes(b"PAR1")
    (run / "cells" / second / "status.json").write_text('{"status": "o')
    (run / "cells" / third / "telemetry.parquet").unlink()
    for name in ("config.yaml", "environment.json", "dropped.json", "results.parquet"):
        (run / name).write_bytes(b"\0" * 100)
    code, summary, err = sweeps.run("cut")
    assert code == 0, err
    assert summary["cells"]["ok"] == CELLS
    assert sweeps.content("cut") == sweeps.content("whole")
    damages = {first: "requests.parquet", second: "status.json", third: "telemetry.parquet", fourth: "requests.parquet"}
    for cell, name in damages.items():
        assert f"cells/{cell}/{name} is missing or damaged: the cell is measured again" in err
    after = {path.name: (path / "status.json").read_text() for path in (run / "cells").iterdir()}
    assert {name for name in before if before[name] != after[name]} == set(damages)
    assert "Traceback" not in err


def test_one_wrong_byte_of_a_page_is_seen_by_sweeps_and_reports(sweeps: Sweeps, tmp_path: Path) -> None:
    run = copied(sweeps, tmp_path)
    first, second, third, *_ = sorted((run / "cells").iterdir())
    flip_a_byte(first / "requests.parquet")
    (second / "cell.yaml").unlink()
    (third / "telemetry.parquet").unlink()
    stored = read_run(run)
    broken = {folder.name: RunFolder(run).broken(folder.name) for folder in (first, second, third)}
    assert list(broken.values()) == ["requests.parquet", "cell.yaml", "telemetry.parquet"]
    assert RunFolder(run).counts() == {"ok": CELLS - 3, "unsupported": 0, "failed": 3, "suspect": 0}
    assert stored.cells["status"].value_counts().to_dict() == {"ok": CELLS - 3, "failed": 2}
    for name, file in broken.items():
        assert sum(f"cells/{name}/{file}" in problem for problem in stored.problems) == 1
