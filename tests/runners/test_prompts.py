"""What the engines are asked, as text and as token ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import ddbench
from ddbench.errors import ConfigError
from experiments.template import template_hash
from runners.base import ModelFiles, Prompt
from runners.prompts import Encoder, plain_texts

TARGET = Path(ddbench.__file__).parent / "assets" / "target"
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}[no thoughts]{% endif %}"
)
TALK = Prompt("p", "d", "c", ("one", "two", "never asked"), ("answer",))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TARGET)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Any:
    made = AutoTokenizer.from_pretrained(TARGET)
    made.chat_template = TEMPLATE
    return made


def asked(tokenizer: Any, prompt: Prompt, template: str, thinking: bool | None = None) -> str:
    ids = Encoder(tokenizer, template, thinking, 100, 10)(prompt).token_ids
    return str(tokenizer.decode(list(ids)))


def test_a_first_turn_is_continued_as_it_is(tokenizer: Any) -> None:
    assert asked(tokenizer, replace(TALK, answers=()), "raw") == "one"


def test_further_turns_follow_the_answers(tokenizer: Any) -> None:
    assert asked(tokenizer, TALK, "raw") == "oneanswer\n\ntwo"
    third = replace(TALK, answers=("answer", ""))
    assert asked(tokenizer, third, "raw") == "oneanswer\n\ntwo\n\nnever asked"


def test_the_template_gets_the_whole_conversation(chat: Any) -> None:
    assert asked(chat, TALK, "chat") == "[user]one[assistant]answer[user]two[assistant]"
    assert asked(chat, replace(TALK, answers=()), "chat") == "[user]one[assistant]"


def test_the_thinking_mode_reaches_the_template(chat: Any) -> None:
    assert asked(chat, TALK, "chat", False).endswith("[assistant][no thoughts]")
    assert not asked(chat, TALK, "chat", True).endswith("[no thoughts]")


def test_a_later_turn_without_room_is_named(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="workload='p turn 1'"):
        Encoder(tokenizer, "raw", None, 20, 10)(replace(TALK, answers=("answer " * 30,)))


def test_answers_as_text(tokenizer: Any) -> None:
    """White space stays, special tokens go."""
    ids = tokenizer("  def f( x ) :\n")["input_ids"]
    end = tokenizer.eos_token_id
    assert end is not None
    assert plain_texts(tokenizer, [ids, [*ids, end], []]) == ["  def f( x ) :\n", "  def f( x ) :\n", ""]


def test_another_template_is_another_hash(chat: Any, tmp_path: Path) -> None:
    hashes = []
    for index, text in enumerate((TEMPLATE, TEMPLATE + " ", TEMPLATE)):
        chat.chat_template = text
        chat.save_pretrained(tmp_path / str(index))
        hashes.append(template_hash("chat", ModelFiles(str(tmp_path / str(index)))))
    chat.chat_template = TEMPLATE
    assert hashes[0] == hashes[2] != hashes[1]
    assert template_hash("raw", ModelFiles(str(tmp_path / "0"))) is None
    with pytest.raises(ConfigError, match=r"model\.template='chat'"):
        template_hash("chat", ModelFiles(str(TARGET)))
    with pytest.raises(ConfigError, match=r"model\.template='chat'"):
        template_hash("chat", ModelFiles("random", random_seed=0))
