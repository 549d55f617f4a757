"""The requests of benchmarks that decode: the same prompts for all that is set side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from ddbench.decoding import ModelPair, Request, Sampling
from ddbench.errors import ConfigError


def make_requests(pair: ModelPair, options: argparse.Namespace) -> list[Request]:
    """Requests of ``new_tokens`` each, no stop token: every arm then writes the same number of tokens.

    ``options``: ``requests``, ``prompt_tokens``, ``new_tokens`` and ``prompts``, the file that a pair with a tokenizer
    is asked from; one without is asked random tokens. Raises ConfigError where the file cannot be read.
    """
    if pair.tokenizer is None:
        torch.manual_seed(1)
        vocabulary = pair.target.config.vocab_size
        prompts = torch.randint(vocabulary - 1, (options.requests, options.prompt_tokens)).tolist()
        named = [(f"random-{index}", ids) for index, ids in enumerate(prompts)]
    else:
        try:
            lines = Path(options.prompts).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError("--prompts", options.prompts, f"a readable file ({error.strerror})") from error
        records = [json.loads(line) for line in lines if line.strip()]
        every = max(1, len(records) // options.requests)  # spread over the file, hence over its categories
        chosen = records[::every][: options.requests]
        named = [(record["id"], pair.tokenizer(record["turns"][0])["input_ids"]) for record in chosen]
    return [
        Request(name, tuple(ids[-options.prompt_tokens :]), options.new_tokens, Sampling(), frozenset())
        for name, ids in named
    ]
