"""A checkout of the published implementation: where it is, which state of it, under which licence."""

from __future__ import annotations

from pathlib import Path

from ddbench.errors import ConfigError
from runners.checkouts import Checkout, examine
from runners.published.interface import KEY, check_interface

WANTED = "a folder with a checkout of the published DDTree implementation (docs/rivals.md)"


def look(checkout: str | None) -> Checkout:
    """What is in the folder.

    Raises:
        ConfigError: none is named, it is no folder, or its functions are not those that we call.
    """
    if checkout is None or not Path(checkout).expanduser().is_dir():
        raise ConfigError(KEY, checkout, WANTED)
    folder = Path(checkout).expanduser().resolve()
    check_interface(folder)
    return examine("published ddtree", folder, folder)
