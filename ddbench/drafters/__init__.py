"""DFlash and EAGLE-3 drafters in PyTorch, and the reading of their published checkpoints."""

from ddbench.drafters.checkpoint import (
    check_dflash_pair,
    check_eagle3_pair,
    load_dflash,
    load_eagle3,
    resolve_checkpoint,
    save_drafter,
)
from ddbench.drafters.dflash import DFlashConfig, DFlashDrafter
from ddbench.drafters.eagle3 import Eagle3Config, Eagle3Drafter

__all__ = [
    "DFlashConfig",
    "DFlashDrafter",
    "Eagle3Config",
    "Eagle3Drafter",
    "check_dflash_pair",
    "check_eagle3_pair",
    "load_dflash",
    "load_eagle3",
    "resolve_checkpoint",
    "save_drafter",
]
