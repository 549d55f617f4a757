"""Prompt sets that come inside a Python package: found where it is installed, without running any of its code."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

from ddbench.errors import ConfigError
from experiments.settings import WheelSettings

KEY = "workload.wheel"


def locate(wheel: WheelSettings) -> tuple[Path, str]:
    """The file, and the distribution with its version.

    Raises:
        ConfigError: the package is not installed, or has no such file.
    """
    install = f"pip install --no-deps {wheel.distribution}"
    try:
        version = metadata.version(wheel.distribution)
        spec = importlib.util.find_spec(wheel.package)
    except (metadata.PackageNotFoundError, ModuleNotFoundError):
        spec = None
    if spec is None:
        raise ConfigError(KEY, wheel.distribution, f"an installed package: {install}")
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / wheel.file
        if path.is_file():
            return path, f"{wheel.distribution} {version}"
    raise ConfigError(KEY, f"{wheel.package}/{wheel.file}", f"a file of {wheel.distribution} {version}; it has none")
