"""Stored files of a run to pandas frames, with nulls kept as nulls; nothing is derived here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

from ddbench.errors import ConfigError
from ddbench.metrics import Counts
from ddbench.records import REQUESTS, ROUNDS, TELEMETRY, Cell
from ddbench.storage import SCHEMA_VERSION, NewerSchema, check_version, read_parquet

# Cells that gave requests to count. A failed cell may have left some behind: they are not evidence.
MEASURED = ("ok", "suspect")
NAMELESS = "counted as failed if it has a final status; in no table, since nothing says which arm it was"

CELLS = pa.schema(
    [
        ("cell_id", pa.string()),
        ("point_id", pa.string()),
        ("block", pa.int32()),
        ("engine", pa.string()),
        ("engine_version", pa.string()),
        ("strategy", pa.string()),
        ("width", pa.int32()),
        ("depth", pa.int32()),
        ("nodes", pa.int32()),
        ("force_spine", pa.bool_()),
        ("min_log_prob", pa.float64()),
        ("policy", pa.string()),
        ("cost", pa.string()),
        ("model", pa.string()),
        ("target", pa.string()),
        ("target_revision", pa.string()),
        ("drafter", pa.string()),
        ("drafter_revision", pa.string()),
        ("host", pa.string()),
        ("flags", pa.string()),  # canonical JSON
        ("dataset", pa.string()),
        ("prompts_hash", pa.string()),
        ("prompts", pa.int32()),
        ("batch_size", pa.int32()),
        ("max_new_tokens", pa.int32()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("top_k", pa.int32()),
        ("seed", pa.int64()),
        ("repeats", pa.int32()),
        ("status", pa.string()),  # null: not finished
        ("reason", pa.string()),
        ("log", pa.string()),
        ("started", pa.string()),
        ("seconds", pa.float64()),
        ("gpu", pa.string()),
        ("build", pa.string()),
        ("target_weight_bytes", pa.int64()),
        ("gpu_bytes_per_s", pa.int64()),
        ("peak_memory_gib", pa.float64()),
    ]
)

_NULLABLE: dict[pa.DataType, Any] = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
}


@dataclass(frozen=True)
class Stored:
    """What the files of a run say. ``dropped`` are grid points that could not be; ``problems`` unreadable files.

    ``planned`` counts the cells of all plans of the run, 0 where none was stored; ``not_run`` are those of them that
    have no folder, with engine, strategy, shape, batch size, temperature and block.
    """

    run: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    dropped: list[dict[str, Any]]
    planned: int
    not_run: list[dict[str, Any]]
    cells: pd.DataFrame
    requests: pd.DataFrame
    rounds: pd.DataFrame
    telemetry: pd.DataFrame
    problems: list[str]


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Arrow to pandas with nullable dtypes: a null integer stays an integer column with pandas.NA."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get)
    return frame


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dictionaries by column name, a null as None."""
    rows = frame.to_dict("records")
    return [{str(name): None if value is pd.NA else value for name, value in row.items()} for row in rows]


def read_run(run: Path) -> Stored:
    """Read everything a run stored. Missing or damaged files give empty values, and the damaged ones a problem each.

    Raises:
        FileNotFoundError: there is no such folder.
        ConfigError: a later version of ddbench stored a cell of it.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"no such run folder: {run}")
    try:
        return _read_run(run)
    except NewerSchema as error:
        allowed = f"a run of this version of ddbench, with schemas up to {SCHEMA_VERSION}, or an older one; {error}"
        raise ConfigError("run", str(run), allowed) from None


def _read_run(run: Path) -> Stored:
    rows: list[dict[str, Any]] = []
    tables: dict[str, list[pa.Table]] = {"requests": [], "rounds": [], "telemetry": []}
    problems: list[str] = []
    for folder in sorted((run / "cells").glob("*")):
        if not (folder / "cell.yaml").is_file():
            if folder.is_dir():
                problems.append(f"cells/{folder.name}/cell.yaml is missing: {NAMELESS}")
            continue
        row = _cell_row(run, folder, problems)
        if row is None:
            continue
        rows.append(row)
        if row["status"] in MEASURED:
            found = _tables(folder, row, problems)
            for name in tables:
                tables[name].append(found[name])
    planned = _planned(run, problems)
    return Stored(
        run=run,
        config=_mapping(run / "config.yaml", problems),
        environment=_mapping(run / "environment.json", problems),
        dropped=_rows(run / "dropped.json", problems),
        planned=len(planned),
        not_run=[row for cell_id, row in planned.items() if not (run / "cells" / cell_id).is_dir()],
        cells=to_frame(pa.Table.from_pylist(rows, schema=CELLS)),
        requests=to_frame(pa.concat_tables([REQUESTS.empty_table(), *tables["requests"]])),
        rounds=to_frame(pa.concat_tables([ROUNDS.empty_table(), *tables["rounds"]])),
        telemetry=to_frame(pa.concat_tables([TELEMETRY.empty_table(), *tables["telemetry"]])),
        problems=problems,
    )


def counts_of(requests: pd.DataFrame) -> Counts:
    """The integers and clocks of some request rows; a null becomes NaN, which makes dependent ratios None."""
    columns: dict[str, Any] = {
        name: requests[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in Counts.COLUMNS
    }
    return Counts.from_columns({**columns, "accept_histogram": requests["accept_histogram"].tolist()})


def flag(flags: str | None, name: str) -> Any:
    """One value of an arm's flags, as ``cells`` and ``results`` hold them; None where there is none."""
    return json.loads(flags or "{}").get(name)


def finished(requests: pd.DataFrame) -> pd.DataFrame:
    """The rows that count: no error, and tokens and clocks present; of a replayed row rounds, since it has no clock."""
    clocks = requests[["ttft_s", "latency_s", "start_s"]].notna()
    replayed = ~clocks.any(axis=1) & requests["rounds"].notna()
    complete = requests["output_tokens"].notna() & (clocks.all(axis=1) | replayed)
    return requests[requests["error"].isna() & complete]


def _cell_row(run: Path, folder: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        cell = Cell.from_dict(yaml.safe_load((folder / "cell.yaml").read_text()))
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        problems.append(f"cells/{folder.name}/cell.yaml cannot be read ({type(error).__name__}): {NAMELESS}")
        return None
    flat = asdict(cell)
    arm = flat.pop("arm")
    arm["flags"] = json.dumps(arm["flags"], sort_keys=True, separators=(",", ":"))
    status = _json_mapping(folder / "status.json")
    if status is None:
        status = {}
        problems.append(f"cells/{folder.name}/status.json cannot be read: counted as unfinished")
    check_version(folder / "status.json", status.get("schema"))
    tables = ("requests.parquet", *(status.get("tables") or ())) if status.get("status") in MEASURED else ()
    missing = next((name for name in tables if not (folder / name).is_file()), None)
    if missing is not None:
        problems.append(f"cells/{folder.name}/{missing} is missing: counted as failed")
        status = {**status, "status": "failed", "reason": f"{missing} is missing"}
    flat["dataset"] = flat.pop("workload")
    return {
        **dict.fromkeys(CELLS.names),
        **arm,
        **flat,
        **{key: status[key] for key in CELLS.names if key in status},
        "cell_id": cell.cell_id,
        "point_id": cell.point_id,
    }


def _planned(run: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """The cells of all plans of the run by id, small shapes first; empty for a run that stored no plan."""
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted((run / "planned").glob("*.json")):
        try:
            rows |= {str(row["cell_id"]): row for row in _json(path)}
        except (OSError, ValueError, TypeError, KeyError):
            problems.append(f"planned/{path.name} cannot be read: its cells are not counted as planned")
    axes = ("width", "depth", "nodes", "batch_size", "temperature", "block")
    return dict(sorted(rows.items(), key=lambda item: [(item[1].get(a) is None, item[1].get(a) or 0) for a in axes]))


def _tables(folder: Path, row: dict[str, Any], problems: list[str]) -> dict[str, pa.Table]:
    """The stored rows of a measured cell. An unreadable file makes the cell failed, in ``row``: none of it counts."""
    schemas = {"requests": REQUESTS, "rounds": ROUNDS, "telemetry": TELEMETRY}
    found = {}
    for name, schema in schemas.items():
        try:
            found[name] = _table(folder / f"{name}.parquet", schema)
        except (pa.ArrowException, OSError) as error:
            problems.append(
                f"cells/{folder.name}/{name}.parquet cannot be read ({type(error).__name__}): counted as failed"
            )
            row |= {"status": "failed", "reason": f"{name}.parquet cannot be read"}
            return {each: kind.empty_table() for each, kind in schemas.items()}
    return found


def read_table(path: Path, schema: pa.Schema) -> pd.DataFrame:
    """One table of one cell as a frame; empty where the cell has no such file."""
    return to_frame(_table(path, schema))


def _table(path: Path, schema: pa.Schema) -> pa.Table:
    """A Parquet file in the order and types of ``schema``: missing columns are null, unknown ones left out."""
    if not path.is_file():
        return schema.empty_table()
    table = read_parquet(path)
    present = set(table.column_names)
    columns = [
        table[field.name].cast(field.type) if field.name in present else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _mapping(path: Path, problems: list[str]) -> dict[str, Any]:
    """A file of the run's own, YAML or JSON; empty where there is none, or it is damaged."""
    try:
        loaded = yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else _json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError):
        loaded = path
    if loaded is not None and not isinstance(loaded, dict):
        problems.append(f"{path.name} cannot be read: what it says is missing here")
    return loaded if isinstance(loaded, dict) else {}


def _rows(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        loaded = _json(path)
    except (OSError, ValueError):
        loaded = path
    if loaded is not None and not isinstance(loaded, list):
        problems.append(f"{path.name} cannot be read: the points in it are not counted")
    return loaded if isinstance(loaded, list) else []


def _json_mapping(path: Path) -> dict[str, Any] | None:
    """A JSON object; empty without the file, None where it is damaged."""
    try:
        loaded = _json(path)
    except (OSError, ValueError):
        return None
    return {} if loaded is None else loaded if isinstance(loaded, dict) else None


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else None
