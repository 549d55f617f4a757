"""The quality bar of a shipped pair, and how a pair that reaches it gets to its place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.train_tiny.config import BarConfig

MIB = 2**20
PARTS = ("target", "dflash", "eagle3", "README.md")


def shortfalls(bar: BarConfig, evaluation: Mapping[str, Any]) -> list[str]:
    """What an evaluation (:func:`experiments.train_tiny.evaluate.evaluate`) misses, in words; empty if it passes."""
    lengths = evaluation["acceptance_length"]
    chain, tree = lengths["dflash_chain"]["all"] or 0.0, lengths["ddtree_64"]["all"] or 0.0
    missed = []
    if chain < bar.chain:
        missed.append(f"the chain emits {chain} tokens a round, {bar.chain} wanted")
    if tree < bar.tree * chain:
        missed.append(f"DDTree of 64 nodes emits {tree}, {bar.tree} times the chain's {chain} wanted")
    if "eagle3_chain_5" in lengths and (lengths["eagle3_chain_5"]["all"] or 0.0) < bar.eagle:
        missed.append(f"the EAGLE-3 chain emits {lengths['eagle3_chain_5']['all']}, {bar.eagle} wanted")
    if evaluation["loop_share"] > bar.loop_share:
        missed.append(f"{evaluation['loop_share']:.1%} of the texts loop, {bar.loop_share:.0%} allowed")
    for name, row in lengths.items():
        if (row["lossless_share"] or 0.0) < bar.lossless_share:
            missed.append(f"{name} is lossless on {row['lossless_share']} of the prompts, {bar.lossless_share} wanted")
    return missed


def size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MIB


def ship(models: Path, folder: Path, bar: BarConfig, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Puts the pair in ``models`` and its card into ``folder``, in place of what is there under the same names.

    Raises:
        ConfigError: the pair misses the bar, or its files are too large together.
    """
    missed = shortfalls(bar, evaluation)
    if missed:
        raise ConfigError("train_tiny.bar", "; ".join(missed), "a pair that reaches it")
    parts = [models / name for name in PARTS if (models / name).exists()]
    size = sum(size_mib(part) if part.is_dir() else part.stat().st_size / MIB for part in parts)
    if size > bar.max_mib:
        raise ConfigError("train_tiny.bar.max_mib", round(size, 2), f"files of {bar.max_mib} MiB together at most")
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        place = folder / part.name
        if part.is_dir():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(part, place, copy_function=shutil.copyfile)  # with the permissions of new files
        else:
            shutil.copyfile(part, place)
    return {"folder": str(folder), "mib": round(size, 3), "parts": [part.name for part in parts]}
