"""The model pair as files, and the prompts as its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddbench.errors import ConfigError
from runners.base import ModelFiles, Prompt, ServerSpec
from runners.prompts import Encoder, Tokenized, plain_texts, stop_ids


@dataclass(frozen=True)
class Asked:
    prompts: list[Tokenized]
    warmup: list[Tokenized]
    stop_ids: frozenset[int]
    encode: Encoder

    def with_prompts(self, prompts: Sequence[Prompt], warmup: Sequence[Prompt]) -> Asked:
        """The same with other prompts. Raises ConfigError for one that does not fit."""
        return replace(self, prompts=list(map(self.encode, prompts)), warmup=list(map(self.encode, warmup)))

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        return plain_texts(self.encode.tokenizer, token_ids)


def materialised(spec: ServerSpec, scratch: Path) -> ModelFiles:
    """The pair as folders or ids that a server can open: random models are written out first."""
    model = spec.model
    if model.random_seed is None:
        return model
    from runners.random_models import write_random_pair

    made = write_random_pair(scratch / "models", model.random_seed, spec.context_length)
    return replace(
        model,
        target=str(made.target),
        dflash=model.dflash and str(made.dflash),
        eagle=model.eagle and str(made.eagle),
    )


def prompts(spec: ServerSpec, model: ModelFiles) -> Asked:
    """Raises ConfigError for a model without a tokenizer, or a prompt that does not fit."""
    from transformers import AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.target, revision=model.target_revision, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise ConfigError("model.target.source", model.target, f"a model with a tokenizer ({said})") from None
    try:
        config = GenerationConfig.from_pretrained(model.target, revision=model.target_revision)
    except (OSError, ValueError):  # it has none: the tokenizer's end of text alone counts
        config = None
    limit = spec.context_length - (spec.server.reserved if spec.server else 0)
    encode = Encoder(tokenizer, spec.template, spec.thinking, limit, spec.max_new_tokens)
    ends = frozenset() if spec.ignore_eos else stop_ids(tokenizer, config)
    return Asked([encode(each) for each in spec.prompts], [encode(each) for each in spec.warmup], ends, encode)
