"""The shards' figures as one evidence file: the keys that readers look for, each derived from what a shard stored.

A value that no shard shows is null. What failed or was left out is named by shard under ``failed`` and ``skipped``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.evidence.shards import plain
from experiments.sglang_evidence.merge_checks import correctness
from experiments.sglang_evidence.merge_times import rounds, speed

FUNCTIONS = 12  # of each arm's profile, those with the largest time of their own
LOG_END = 1500  # characters

Records = dict[str, dict[str, Any]]
PARTS = ("gpu", "driver", "versions", "date", "command", "measured")  # of every shard's file
NOTES = (
    "One GPU; a shard is one start of its engines, and a second start of a shard has the suffix _2. round_ms: Qwen3-8B "
    "dimensions, random weights, 256-token prompts. A round time is the median over the interleaved repeats of all "
    "starts together; a ratio is the median over the same repeats, each divided by the chain's of the same repeat. At "
    "a verify width N above 16 DFLASH drafts a block of N tokens where the tree drafts 16: ratios at 32, 64 and 128 "
    "flatter the tree, whose drafter has less to do. tokens_per_s_synthetic has accepted lengths pinned to published "
    "ones and says nothing of real text. A null is a value that no shard shows: its arm failed (see failed), or was "
    "not run. Differences are held against the threshold of their dtype that is named here; a first shard in float32 "
    "was run under a wider one, and its ledger holds under this one too where it says so. What is called identical "
    "is equal up to such ties, its share stands beside it. Trees verify with the attention that their started engines "
    "name as verify_attention. Shards of 2026-11-30 whose engines name none verified with SGLang's own, but for a "
    "rounds shard with an arm that is named for SGLang's: its other trees had the plug-in's. An arm under left_out "
    "of a shard ran with other code, and stands in the file that is named there."
)


def merge(folder: Path, output: Path) -> Path:
    """Writes ``output`` from the shards that lie in ``folder``.

    Raises:
        ConfigError: there is none, they are of several GPUs, drivers or versions, or a file is none of a shard.
    """
    records: Records = {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
    if not records:
        raise ConfigError("folder", str(folder), "a folder with the files of at least one shard")
    machine = one_machine(folder, records)
    shards = {name: record["measured"] for name, record in records.items()}
    commands = [command_of(name, record) for name, record in records.items()]
    measured = {
        **rounds(shards),
        **correctness(shards),
        **speed(shards),
        "failed": {name: brief(one["failed"]) for name, one in shards.items() if one.get("failed")},
        "skipped": {name: one["skipped"] for name, one in shards.items() if one.get("skipped")},
    }
    record = {
        "command": "; ".join([*commands, "python -m ddbench experiment=sglang_evidence shard=merge"]),
        "date": max(one["date"] for one in records.values()),
        **machine,
        "measured": measured,
        "notes": NOTES,
        "shards": {name: slim(one) for name, one in shards.items()},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    return output


def read(path: Path) -> dict[str, Any]:
    """A shard's file.

    Raises:
        ConfigError: it is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not set(PARTS) <= set(found) or not isinstance(found["measured"], dict):
        raise ConfigError("folder", str(path), f"the files of shards alone, each with {', '.join(PARTS)}")
    shard: dict[str, Any] = plain(found)
    return shard


def slim(value: Any) -> Any:
    """Without what stays with the shard: rows of single prompts, functions that take little, all but a log's end."""
    if isinstance(value, str):
        return value if len(value) <= LOG_END else f"{value.partition(chr(10))[0]}\n...\n{value[-LOG_END:]}"
    if not isinstance(value, dict):
        return value
    kept = {key: slim(each) for key, each in value.items() if key != "by_prompt"}
    return kept | {key: kept[key][:FUNCTIONS] for key in ("functions",) if key in kept}


def one_machine(folder: Path, records: Records) -> dict[str, Any]:
    """GPU, driver and versions, which all shards that ran on a GPU must share; those of a CPU have their own.

    Raises:
        ConfigError: they do not.
    """
    on_gpu = {name: record for name, record in records.items() if record["gpu"]} or records
    found = {name: {key: record[key] for key in ("gpu", "driver", "versions")} for name, record in on_gpu.items()}
    first = next(iter(found))
    for name, machine in found.items():
        if machine != found[first]:
            allowed = f"shards of one GPU, driver and set of versions: {first} has {found[first]}, {name} has {machine}"
            raise ConfigError("folder", str(folder), allowed)
    return found[first]


def command_of(name: str, record: dict[str, Any]) -> str:
    """The command of a shard. The first ones did not name their options, which the file's name tells."""
    if "options" in record:
        return str(record["command"])
    dtype = " dtype=float32" if "_float32" in name else ""
    again = re.search(r"_(\d+)$", name.removeprefix(record["command"].rpartition("shard=")[2]))
    return f"{record['command']}{dtype}" + (f" restart={again[1]}" if again else "")


def brief(failed: dict[str, str]) -> dict[str, str]:
    """The first line of each reason: what failed, and why. The whole text stays with its shard."""
    return {arm: text.strip().partition("\n")[0] for arm, text in failed.items()}
