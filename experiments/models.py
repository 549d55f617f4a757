"""Where a model pair lies and exactly which one it is, found before anything starts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from ddbench.errors import ConfigError
from experiments.settings import DrafterSettings, ModelSettings, TargetSettings
from experiments.workloads import asset_path
from runners.base import ModelFiles

ROLES = ("target", "dflash", "eagle")
WHOLE_BYTES = 256 * 2**20  # files up to this size are hashed whole; of larger ones, the size and both ends
END_BYTES = 2**20
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
UNSAFE = "a checkpoint with safetensors: pickled weights (.bin, .pt) can run code and are not read (docs/security.md)"


def resolve(model: ModelSettings, roles: Iterable[str]) -> tuple[ModelFiles, dict[str, str | None]]:
    """The files of the named ``roles`` and their revisions: a Hugging Face commit, or ``sha256:`` and a folder's hash.

    Raises:
        ConfigError: a folder without a checkpoint, or an id that is neither cached nor to be had from the hub.
    """
    places: dict[str, tuple[str, str | None]] = {}
    revisions: dict[str, str | None] = {}
    for role in roles:
        part: TargetSettings | DrafterSettings | None = getattr(model, role)
        if part is None:
            continue
        if model.kind == "random":
            places[role], revisions[role] = (part.source, None), f"seed:{model.random_seed}"
        else:
            places[role], revisions[role] = _locate(f"model.{role}", part.source, part.revision)
    target, target_revision = places["target"]
    dflash, dflash_revision = places.get("dflash", (None, None))
    eagle, eagle_revision = places.get("eagle", (None, None))
    files = ModelFiles(
        target=target,
        target_revision=target_revision,
        dflash=dflash,
        dflash_revision=dflash_revision,
        eagle=eagle,
        eagle_revision=eagle_revision,
        random_seed=model.random_seed if model.kind == "random" else None,
        block_size=model.dflash.block_size if model.dflash else None,
        mask_token_id=model.dflash.mask_token_id if model.dflash else None,
        vocab_size=model.target.vocab_size,
        trust_remote_code=model.trust_remote_code,
    )
    return files, revisions


def _locate(key: str, source: str, revision: str | None) -> tuple[tuple[str, str | None], str]:
    folder = asset_path(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{key}.source", source, "a folder with a checkpoint (it has no config.json)")
        if _all_pickled(path.name for path in folder.iterdir()):
            raise ConfigError(f"{key}.source", source, UNSAFE)
        return (str(folder), None), f"sha256:{folder_hash(folder)}"
    if not HUB_ID.fullmatch(source):
        raise ConfigError(f"{key}.source", source, "a folder with a checkpoint (there is none), or a Hugging Face id")
    commit = _hub_commit(key, source, revision)
    if pickled(source, revision):
        raise ConfigError(f"{key}.source", source, UNSAFE)
    return (source, commit), commit


@lru_cache
def pickled(source: str, revision: str | None) -> str | None:
    """Why a model of the hub is not used, if all its weights are pickled; None otherwise, or where nobody can tell."""
    import httpx
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if asset_path(source).is_dir() or not HUB_ID.fullmatch(source):
        return None
    try:
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
        if isinstance(cached, str):
            names = [path.name for path in Path(cached).parent.iterdir()]
        else:
            found = HfApi().model_info(source, revision=revision, timeout=10)
            names = [each.rfilename for each in found.siblings or ()]
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError):
        return None
    return f"{source} is not {UNSAFE}" if _all_pickled(names) else None


def _all_pickled(names: Iterable[str]) -> bool:
    """Whether there are weights among the files of a checkpoint, and none that can be read without running code."""
    weights = [name for name in names if name.endswith((".safetensors", *PICKLES))]
    return bool(weights) and not any(name.endswith(".safetensors") for name in weights)


def _hub_commit(key: str, source: str, revision: str | None) -> str:
    """The commit of a Hugging Face model: from the cache if it is there, else from the hub."""
    import httpx
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    try:
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
        if isinstance(cached, str):
            return Path(cached).parent.name
        found = HfApi().model_info(source, revision=revision, timeout=10).sha
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:
        at = f" at revision {revision}" if revision else ""
        allowed = f"a folder, or a model{at} in the Hugging Face cache or on its hub ({type(error).__name__})"
        raise ConfigError(f"{key}.source", source, allowed) from None
    if found is None:
        raise ConfigError(f"{key}.source", source, "a model with a commit hash on the Hugging Face hub")
    return found


def folder_hash(folder: Path) -> str:
    """16 hex digits that tell a checkpoint from another: names, sizes and contents of config, tokenizer and weights."""
    digest = hashlib.sha256()
    files = [path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".txt", ".jinja", ".model")]
    for path in sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as stream:
            if size <= WHOLE_BYTES:
                digest.update(stream.read())
                continue
            digest.update(stream.read(END_BYTES))
            stream.seek(-END_BYTES, 2)
            digest.update(stream.read())
    return digest.hexdigest()[:16]
