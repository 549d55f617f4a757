"""The tiny pair's own byte-level BPE, saved in the form that transformers, SGLang and vLLM load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END, MASK, PAD = "<|endoftext|>", "<|mask|>", "<|pad|>"
SPECIALS = [END, MASK, PAD]
# Words with one leading space, runs of digits up to three, runs of punctuation, newlines with indentation, spaces.
SPLIT = Regex(r" ?[A-Za-z_]+|\d{1,3}| ?[^\sA-Za-z_\d]+|\n[ \t]*|[ \t]+|\s")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(SPLIT, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, mask_token=MASK, model_max_length=context
    )
    fast.save_pretrained(folder)
