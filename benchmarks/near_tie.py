"""Both ways from a near-tie of the tiny target's greedy text, in float32 on this CPU.

    python benchmarks/near_tie.py PROMPT PLACE [--words N]

PROMPT: index of a shipped prompt. PLACE: of a word in the answer, counted from 0. Says how many logits lie between the
target's two best words there, and how the text goes on after each: in bfloat16 either may come. One JSON object on
standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ddbench.errors import ConfigError
from experiments.evidence.shards import shipped_prompts
from experiments.sglang_evidence.law_reference import target_of
from experiments.workloads import asset_path


def both_ways(prompt: int, place: int, words: int) -> dict[str, Any]:
    """``best`` and ``second``: the text from ``place`` on, ``words`` long, beginning with that word there.

    Raises:
        ConfigError: no such prompt, or a place that the target's context does not hold.
    """
    assets = asset_path("asset://target").parent
    prompts = shipped_prompts(assets)
    if not 0 <= prompt < len(prompts):
        raise ConfigError("PROMPT", prompt, f"an index from 0 to {len(prompts) - 1}")
    target = target_of(assets)
    most = int(target.config.max_position_embeddings) - len(prompts[prompt])
    if place < 0 or words < 1 or place + words > most:
        raise ConfigError("PLACE", place, f"from 0 on, with at least one word (--words), {most} words in all at most")
    begun = [*prompts[prompt], *_greedy(target, prompts[prompt], place)]
    two = _logits(target, begun).topk(2)
    texts = [[int(word), *_greedy(target, [*begun, int(word)], words - 1)] for word in two.indices]
    gap = float(two.values[0] - two.values[1])
    return {"prompt": prompt, "place": place, "gap_logits": round(gap, 3), "best": texts[0], "second": texts[1]}


def _greedy(target: Any, tokens: Sequence[int], count: int) -> list[int]:
    text = list(tokens)
    for _ in range(count):
        text.append(int(_logits(target, text).argmax()))
    return text[len(tokens) :]


def _logits(target: Any, tokens: Sequence[int]) -> torch.Tensor:
    """``[V]`` after a text."""
    with torch.inference_mode():
        last: torch.Tensor = target(torch.tensor([list(tokens)])).logits[0, -1].float()
    return last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", type=int, help="index of a shipped prompt")
    parser.add_argument("place", type=int, help="of a word in the answer, from 0")
    parser.add_argument("--words", type=int, default=6, help="how many words of each way are told, 6 if left out")
    asked = parser.parse_args()
    try:
        found = both_ways(asked.prompt, asked.place, asked.words)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
