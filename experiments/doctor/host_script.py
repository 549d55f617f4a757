"""What a host has of disk, time and models. Runs there under the engine's interpreter, and needs only its stdlib.

    python host_script.py '{"models": [[source, revision], ...], "places": [path, ...]}'

Prints one JSON object. Models are looked for with the package ``huggingface_hub`` where it is installed.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

GIB = 2**30
HUB_TIMEOUT_S = 10.0


def main() -> None:
    asked = json.loads(sys.argv[1])
    print(json.dumps(look(asked["models"], asked["places"])))  # noqa: T201  this is its answer


def look(models: list[list[Any]], places: list[str]) -> dict[str, Any]:
    """``time``: seconds since the epoch; ``free_gib``: by place, of the disk that it is or would be on."""
    return {
        "time": time.time(),
        "free_gib": {place: free_gib(Path(place).expanduser()) for place in [*places, *cache()]},
        "cache": next(iter(cache()), None),
        "models": [model(source, revision) for source, revision in models],
    }


def free_gib(place: Path) -> float:
    """Of the nearest folder above that exists, for this user."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free / GIB


def cache() -> list[str]:
    """Where models of the hub are kept; none without the package."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return []
    return [str(HF_HUB_CACHE)]


def model(source: str, revision: str | None) -> dict[str, Any]:
    """``state``: ``folder``, ``cached`` (whole), ``hub`` (to be downloaded, ``gib`` of it), ``absent`` or
    ``unknown`` with ``why``."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return {"state": "folder"} if weights_in(folder) else absent("the folder has no config.json with weights")
    if source.startswith(("/", "~", ".")):
        return absent("there is no such folder")
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
    except ImportError:
        return {"state": "unknown", "why": f"{sys.executable} has no huggingface_hub"}
    config = try_to_load_from_cache(source, "config.json", revision=revision)
    if isinstance(config, str) and weights_in(Path(config).parent):
        return {"state": "cached", "revision": Path(config).parent.name}
    try:
        found = HfApi().model_info(source, revision=revision, files_metadata=True, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001  a library's, an HTTP client's or a socket's: all mean that it cannot be had
        lines = str(error).strip().splitlines() or ["no message"]
        return absent(f"{type(error).__name__}: {lines[0]}")
    sizes = [each.size or 0 for each in found.siblings or [] if each.rfilename.endswith(".safetensors")]
    return {"state": "hub", "revision": found.sha, "gib": sum(sizes) / GIB}


def absent(why: str) -> dict[str, Any]:
    return {"state": "absent", "why": why}


def weights_in(folder: Path) -> bool:
    """Whether a checkpoint lies there whole: its config, and every safetensors file that its index names."""
    if not (folder / "config.json").exists():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return any(folder.glob("*.safetensors"))
    names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return all((folder / name).exists() for name in names)


if __name__ == "__main__":
    main()
