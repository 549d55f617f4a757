"""The stand-in's recording: what our plug-in's server writes of each round, drafted by the reference engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddbench.plugins.sglang.dumps import OFF, ROOTS, Layout, Writer

if TYPE_CHECKING:
    from ddbench.decoding import Generation, ModelPair


class Recording:
    def __init__(self, folder: Path, layout: Layout) -> None:
        self.mode, self._layout = ROOTS, layout
        self._writer = Writer(folder, layout)

    @classmethod
    def of(cls, depth: int, candidates: int) -> Recording | None:
        folder = os.environ.get("DDTREE_RECORD")
        if not folder:
            return None
        return cls(Path(folder), Layout(depth, int(os.environ.get("DDTREE_RECORD_NODES") or candidates)))

    @property
    def roots_alone(self) -> bool:
        return self.mode == ROOTS

    def write(self, pair: ModelPair, rid: str, done: Generation) -> None:
        """Every token but the last is a root where roots are alone; else those that a round began at are."""
        if self.mode == OFF or len(done.output_token_ids) < 2:
            return
        from ddbench.replay.record import Target, _draft, _teach, torch

        assert pair.dflash is not None
        taps = tuple(layer + 1 for layer in pair.dflash.config.target_layer_ids)
        request, output = done.request, done.output_token_ids
        with torch.inference_mode(), Target(pair.target, taps, 1, len(request.token_ids) + len(output)) as target:
            features, _ = _teach(target, request, output)
            log_probs, ids = _draft(pair, target, features, request, output, self._layout.candidates)
        taken = np.array([each.accepted_raw + 1 for each in done.rounds] or [1] * (len(output) - 1))
        anchors = np.concatenate([[0], taken.cumsum()[:-1]])
        self._writer.write(
            [rid] * len(anchors),
            position=len(request.token_ids) + anchors,
            root=np.array(output)[anchors],
            taken=taken,
            log_probs=log_probs[anchors],
            ids=ids[anchors],
        )
