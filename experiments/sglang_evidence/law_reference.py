"""Logits of the tiny target after texts that engines have drawn, in float32 on this CPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ddbench.decoding import load_pair

Text = tuple[int, ...]
At = tuple[int, Text]  # index of a prompt, and what was drawn after it


def target_of(assets: Path) -> Any:
    """The tiny target, a Hugging Face causal LM."""
    return load_pair(str(assets / "target"), device="cpu", dtype="float32").target


def logits_after(target: Any, prompts: Sequence[Sequence[int]], texts: Iterable[At]) -> dict[At, NDArray[np.float32]]:
    """``[V]`` after each text. With a text, all of its beginnings must be there, the empty one among them.

    One place of all texts of a prompt at a time, over a cache whose rows follow the texts as they part.
    """
    found: dict[At, NDArray[np.float32]] = {}
    wanted: dict[int, set[Text]] = {}
    for prompt, text in texts:
        wanted.setdefault(prompt, set()).add(text)
    for prompt, mine in wanted.items():
        _walk(target, prompt, prompts[prompt], mine, found)
    return found


def _walk(target: Any, prompt: int, tokens: Sequence[int], wanted: set[Text], found: dict[At, Any]) -> None:
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    level: list[Text] = [()]
    ids = torch.tensor([list(tokens)])
    with torch.inference_mode():
        while level:
            rows = target(ids, past_key_values=cache, use_cache=True).logits[:, -1].float().numpy()
            found |= {(prompt, text): row for text, row in zip(level, rows, strict=True)}
            after = sorted(text for text in wanted if len(text) == len(level[0]) + 1)
            places = {text: row for row, text in enumerate(level)}
            if after:
                cache.batch_select_indices(torch.tensor([places[text[:-1]] for text in after]))
                ids = torch.tensor([text[-1:] for text in after])
            level = after
