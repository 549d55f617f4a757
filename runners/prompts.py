"""Prompts as token ids: the same for every engine, so that all are asked the same."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Turns the conversation up to the turn that is asked into token ids.

    ``limit``: tokens of prompt and answer together. ``template`` chat: the tokenizer's own, with ``thinking`` as its
    switch where that is not None; raw: the first turn as it is, to be continued, and each further turn after the answer
    before it and an empty line.
    """

    tokenizer: Any
    template: str  # raw or chat
    thinking: bool | None
    limit: int
    max_new_tokens: int

    def __call__(self, prompt: Prompt) -> Tokenized:
        """Raises ConfigError for a prompt that is empty or leaves too little room, or a template that is not there."""
        new = self.max_new_tokens
        text = _chat(self.tokenizer, prompt, self.thinking) if self.template == "chat" else _raw(prompt)
        ids = tuple(self.tokenizer(text, add_special_tokens=self.template == "raw")["input_ids"])
        if new >= self.limit:
            allowed = f"fewer than the context of {self.limit} (model.context_length)"
            raise ConfigError("load.max_new_tokens", new, allowed)
        if not ids or len(ids) + new > self.limit:
            room = self.limit - new
            allowed = f"1 to {room} tokens (context {self.limit} less {new} new ones); it has {len(ids)}"
            name = f"{prompt.id} turn {prompt.turn}" if prompt.turn else prompt.id
            raise ConfigError("workload", name, allowed)
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


def plain_texts(tokenizer: Any, token_ids: Sequence[Sequence[int]]) -> list[str]:
    """Answers as text, special tokens left out and nothing tidied."""
    return [
        str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
        for ids in token_ids
    ]


def _raw(prompt: Prompt) -> str:
    rounds = [turn + answer for turn, answer in zip(prompt.turns, prompt.answers, strict=False)]
    return "\n\n".join([*rounds, prompt.turns[prompt.turn]])


def _chat(tokenizer: Any, prompt: Prompt, thinking: bool | None) -> str:
    if not tokenizer.chat_template:
        raise ConfigError("model.template", "chat", "raw, since the tokenizer has no chat template")
    extra = {} if thinking is None else {"enable_thinking": thinking}
    rendered: str = tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True, **extra)
    return rendered
