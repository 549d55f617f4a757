"""Which prompts of a set are measured, and the hash that tells one choice from another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ddbench.errors import ConfigError
from ddbench.records import content_hash
from experiments.settings import WorkloadSettings
from runners.base import Prompt


def choose(prompts: Sequence[Prompt], settings: WorkloadSettings) -> list[Prompt]:
    """The measured prompts: of the wanted categories, spread evenly over them, in the order of the set.

    Raises:
        ConfigError: a category that the set does not have.
    """
    return spread(of_categories(prompts, settings.categories), settings.max_prompts)


def of_categories(prompts: Sequence[Prompt], categories: tuple[str, ...] | None) -> list[Prompt]:
    """The prompts of these categories, of all for None. Raises ConfigError for one that the set does not have."""
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    for category in categories or ():
        if category not in known:
            raise ConfigError("workload.categories", category, f"one of {', '.join(known)}")
    return [prompt for prompt in prompts if categories is None or prompt.category in categories]


def spread(prompts: Sequence[Prompt], most: int | None) -> list[Prompt]:
    """At most ``most`` prompts: one of each category after another, the first ones of each, in their order."""
    if most is None or most >= len(prompts):
        return list(prompts)
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    by_category: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    rank = {p.id: (place, known.index(p.category)) for group in by_category.values() for place, p in enumerate(group)}
    chosen = {prompt.id for prompt in sorted(prompts, key=lambda p: rank[p.id])[:most]}
    return [prompt for prompt in prompts if prompt.id in chosen]


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Content hash of what is asked, in order: the records, and the answers of earlier turns where there are any."""
    return content_hash([_content(prompt) for prompt in prompts])


def _content(prompt: Prompt) -> list[object]:
    content: list[object] = [prompt.id, prompt.dataset, prompt.category, list(prompt.turns)]
    return [*content, list(prompt.answers)] if prompt.answers else content
