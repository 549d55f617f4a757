"""The names by which a GPU is locked on its host: its UUID, which is the same for all who see it.

Its number is not: a scheduler may show each job the one GPU that it has, as number 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runners.gpu_memory import Gpu
from runners.hosts import Host


def lock_names(host: Host, gpus: Sequence[Gpu]) -> list[str]:
    """What an engine on these GPUs holds while it runs; nothing where ``host.share_gpus`` is set.

    Raises:
        HostFailure: the host is down.
    """
    return [] if host.config.share_gpus or not gpus else names_of(gpus, host.facts()["gpus"])


def names_of(gpus: Sequence[Gpu], cards: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same, from the GPUs that nvidia-smi lists; a number that it does not list stands for itself."""
    known = {card.get("index"): card.get("uuid") for card in cards}
    return [f"gpu-{known.get(gpu) or gpu}" for gpu in gpus]
