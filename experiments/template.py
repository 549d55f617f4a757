"""Which chat template the prompts are put into, as a hash that arms must share."""

from __future__ import annotations

from ddbench.errors import ConfigError
from ddbench.records import content_hash
from runners.base import ModelFiles


def template_hash(template: str, files: ModelFiles | None) -> str | None:
    """16 hex digits of the text of the target's chat template; None for raw prompts, or a target that is not there.

    Raises:
        ConfigError: a target without a tokenizer, or a tokenizer without a chat template.
    """
    if template == "raw" or files is None:
        return None
    if files.random_seed is not None:
        raise ConfigError("model.template", template, "raw: random models have no chat template")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            files.target, revision=files.target_revision, trust_remote_code=files.trust_remote_code
        )
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise ConfigError("model.target.source", files.target, f"a model with a tokenizer ({said})") from None
    if not tokenizer.chat_template:
        raise ConfigError("model.template", template, "raw, since the tokenizer has no chat template")
    return content_hash(tokenizer.chat_template)
