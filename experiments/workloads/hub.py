"""Rows of a dataset of the Hugging Face hub, of a local folder shaped like one, or of a file at a web address.

A dataset of the hub is first brought into the Hugging Face cache as files at one commit, then read by `datasets` from
that folder: a pinned revision is the one that is read, with a network or without.
"""

from __future__ import annotations

import os
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import content_hash
from experiments.settings import WorkloadSettings
from experiments.workloads.records import Row, asset_path

KEY = "workload.dataset"
ADDRESS = re.compile(r"https?://\S+")
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
TIMEOUT_S = 10.0
OFFLINE = (
    "a dataset in the Hugging Face cache, or a network to get it ({why}); "
    "offline use workload.path=<file>, workload.dataset=<folder> or workload=shipped"
)


@dataclass(frozen=True)
class Loaded:
    """Rows of one dataset in the order of measurement. ``revision``: commit of the hub, or None for a local folder."""

    source: str
    revision: str | None
    rows: tuple[Row, ...]


def load(settings: WorkloadSettings, source: str, revision: str | None) -> Loaded:
    """One of ``settings.dataset``: shuffled and cut to ``take`` rows where it has more, as the papers do it.

    Raises:
        ConfigError: `datasets` is not installed; the dataset, its revision, config, split or a file is not to be had.
    """
    datasets = _library(source)
    folder, commit, place, names = _place(settings, source, revision)
    try:
        rows = _read(datasets.load_dataset(place, split=settings.split, streaming=True, **names), settings)
    except Exception as error:  # noqa: BLE001  the library raises what it likes; the text is what tells the user
        said = (str(error) or type(error).__name__).strip().splitlines()[0].replace(str(folder), source)
        wanted = f"a dataset with config {settings.config} and split {settings.split} ({type(error).__name__}: {said})"
        raise ConfigError(KEY, source, wanted) from None
    numbers = list(range(len(rows)))
    if settings.take is not None and settings.take < len(rows):
        if settings.shuffle_seed is not None:
            shuffled = datasets.Dataset.from_dict({"number": numbers}).shuffle(seed=settings.shuffle_seed)
            numbers = list(shuffled["number"])
        numbers = numbers[: settings.take]
    alone = len(settings.dataset or ()) == 1
    name = settings.name if alone else source.rstrip("/").rpartition("/")[2]  # of several, each is a group
    return Loaded(source, commit, tuple(Row(f"{source} row {n}", name, n, rows[n]) for n in numbers))


def _read(stream: Any, settings: WorkloadSettings) -> list[dict[str, Any]]:
    """All rows, with the columns that are read where it has them: others may be large, hidden tests say.

    Streamed: what `datasets` keeps of a folder it would find again by the folder's name, whatever has changed in it.
    """
    needed = settings.rows.columns if settings.rows is not None else frozenset()
    return [{name: row[name] for name in needed} if needed and needed <= row.keys() else row for row in stream]


def _place(
    settings: WorkloadSettings, source: str, revision: str | None
) -> tuple[Path, str | None, str, dict[str, Any]]:
    """Where the files lie, their commit, and what `datasets` is told to read them: a folder, or files of one kind."""
    if ADDRESS.fullmatch(source):
        path = _fetched(source.replace("{revision}", revision or ""), source)
        return path.parent, revision, "json", {"data_files": {settings.split: str(path)}}
    folder, commit = _folder(settings, source, revision)
    if settings.files is None:
        return folder, commit, str(folder), {"name": settings.config}
    missing = [name for name in settings.files if not (folder / name).is_file()]
    if missing:
        raise ConfigError("workload.files", missing[0], f"a file of {source}")
    kind = "parquet" if settings.files[0].endswith(".parquet") else "json"
    return folder, commit, kind, {"data_files": {settings.split: [str(folder / name) for name in settings.files]}}


def _library(source: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(KEY, source, "the package datasets: pip install 'ddbench[datasets]'") from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    return datasets


def _fetched(address: str, source: str) -> Path:
    """A file at a web address, fetched once into the Hugging Face cache."""
    from huggingface_hub.constants import HF_HOME

    path = Path(HF_HOME) / "ddbench" / f"{content_hash(address)}{Path(address).suffix}"
    if path.is_file():
        return path
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            data = answer.read()
    except OSError as error:
        raise ConfigError(KEY, source, OFFLINE.format(why=type(error).__name__)) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
    return path


def _folder(settings: WorkloadSettings, source: str, revision: str | None) -> tuple[Path, str | None]:
    """The dataset as a folder, and its commit."""
    local = asset_path(source)
    if local.is_dir():
        return local, None
    if not HUB_ID.fullmatch(source):
        raise ConfigError(KEY, source, "a folder with a dataset (there is none), or a Hugging Face id")
    return _snapshot(source, revision, list(settings.files) if settings.files else None)


def _snapshot(source: str, revision: str | None, files: list[str] | None) -> tuple[Path, str]:
    """The files of a dataset of the hub: from the network, else from the cache, each at one commit."""
    import httpx
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    wanted: dict[str, Any] = {"repo_type": "dataset", "allow_patterns": files}
    try:
        commit = HfApi().dataset_info(source, revision=revision, timeout=TIMEOUT_S).sha
        return Path(snapshot_download(source, revision=commit, **wanted)), str(commit)
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:
        try:
            folder = Path(snapshot_download(source, revision=revision, local_files_only=True, **wanted))
        except (HfHubHTTPError, OSError, ValueError):
            raise ConfigError(KEY, source, OFFLINE.format(why=type(error).__name__)) from None
        return folder, folder.name
