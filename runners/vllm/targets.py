"""What loading a hybrid target in vLLM takes, by the ``config.json`` of a folder."""

from __future__ import annotations

from pathlib import Path

from runners.architectures import architectures_of


def may_need_torchvision(folder: Path) -> bool:
    """Whether vLLM imports torchvision for a hybrid target: not for a family that it has in a file for text alone.

    Seen in 0.32.0: ``qwen3_5.py`` imports ``qwen3_vl.py``, whose processors need it; ``qwen3_next.py`` and
    ``olmo_hybrid.py`` do without. True where the folder is not one of this machine.
    """
    named = architectures_of(folder)
    return not named or any(name.startswith("Qwen3_5") for name in named)
