"""Made-up costs: the form of `ddbench.cost`, a pass that is free up to a knee of tokens and linear beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Made:
    """Milliseconds."""

    draft: float = 1.6
    build: float = 0.3
    base: float = 6.5
    knee: float = 128.0
    slope: float = 0.02
    read: float = 0.0  # of the cache, a row and token of context

    def target(self, tokens: Any, batch: Any, context: Any) -> Any:
        beyond = np.maximum(0.0, np.asarray(tokens, dtype=float) - self.knee)
        return self.base + 0.002 * np.asarray(tokens) + self.slope * beyond + self.read * np.asarray(batch) * context

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.build + self.chain_ms(verify_width, batch, context)

    def chain_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.draft + self.target(np.asarray(verify_width) * batch, batch, context)

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return self.target(batch, batch, context)


FLAT = Made()  # a large GPU: wide trees are nearly free
STEEP = Made(draft=3.0, build=1.0, base=2.0, knee=8.0, slope=0.3)  # every node costs
MIDDLE = Made(draft=2.0, build=0.5, base=4.0, knee=32.0, slope=0.05)
