"""Prompts as token ids: the same for every engine, so that all are asked the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddbench.errors import ConfigError
from runners.base import Prompt


@dataclass(frozen=True)
class Tokenized:
    prompt: Prompt
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Encoder:
    """Turns a prompt's first turn into token ids. ``limit``: tokens of prompt and answer together."""

    tokenizer: Any
    template: str  # raw or chat
    thinking: bool | None
    limit: int
    max_new_tokens: int

    def __call__(self, prompt: Prompt) -> Tokenized:
        """Raises ConfigError for a prompt that is empty or leaves too little room, or a template that is not there."""
        text, new = prompt.turns[0], self.max_new_tokens
        if self.template == "chat":
            text = _chat(self.tokenizer, text, self.thinking)
        ids = tuple(self.tokenizer(text, add_special_tokens=self.template == "raw")["input_ids"])
        if new >= self.limit:
            allowed = f"fewer than the context of {self.limit} (model.context_length)"
            raise ConfigError("load.max_new_tokens", new, allowed)
        if not ids or len(ids) + new > self.limit:
            room = self.limit - new
            allowed = f"a prompt of 1 to {room} tokens (context {self.limit} less {new} new ones); it has {len(ids)}"
            raise ConfigError("workload.path", prompt.id, allowed)
        return Tokenized(prompt, ids)


def stop_ids(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    """Tokens that end a text: those of the model's generation config and the tokenizer's own."""
    ends = getattr(generation_config, "eos_token_id", None)
    listed = ends if isinstance(ends, list) else [ends]
    return frozenset(int(end) for end in [*listed, tokenizer.eos_token_id] if end is not None)


def lengths(prompts: list[Tokenized]) -> dict[str, int]:
    """Shortest, longest and all together, in tokens."""
    counts = [len(item.token_ids) for item in prompts]
    return {"min": min(counts), "max": max(counts), "sum": sum(counts)}


def _chat(tokenizer: Any, text: str, thinking: bool | None) -> str:
    if not tokenizer.chat_template:
        raise ConfigError("model.template", "chat", "raw, since the tokenizer has no chat template")
    extra = {} if thinking is None else {"enable_thinking": thinking}
    messages = [{"role": "user", "content": text}]
    rendered: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **extra)
    return rendered
