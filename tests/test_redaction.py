"""What is a secret, and what is left of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddbench import redaction
from ddbench.redaction import is_secret, learn, redact, redact_files, redacted
from ddbench.storage import write_whole

PLANTED = "planted-0123456789"


@pytest.fixture(autouse=True)
def _nothing_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_configured", {})
    for name in [name for name in os.environ if is_secret(name)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "api-key", "service.apikey", "DB_PASSWORD", "AWS_SECRET", "host.credentials", "key"],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["mask_token_id", "load.max_new_tokens", "load.warmup_tokens", "monkey", "host.key", "tokenizer", "KEYBOARD"],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


def test_a_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact(f"a {PLANTED} b") == f"a {PLANTED} b"
    monkeypatch.setenv("MY_TOKEN", PLANTED)
    assert redact(f"a {PLANTED} b") == "a <MY_TOKEN hidden> b"
    data = {"x": [PLANTED, 3, None], "y": (f"--{PLANTED}",)}
    assert redacted(data) == {"x": ["<MY_TOKEN hidden>", 3, None], "y": ("--<MY_TOKEN hidden>",)}


@pytest.mark.parametrize("value", ["false", "1234567", "/root/.ssh/id_ed25519"])
def test_words_and_paths_stay(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    assert redact(f"is {value} here") == f"is {value} here"


def test_a_secret_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", PLANTED)
    monkeypatch.setenv("B_TOKEN", PLANTED + "-longer")
    assert redact(f"{PLANTED}-longer {PLANTED}") == "<B_TOKEN hidden> <A_TOKEN hidden>"


def test_secrets_of_a_configuration() -> None:
    learn({"service": {"api_key": PLANTED, "name": "a name of eight"}, "args": ["--auth-token", "tok-12345678", "x"]})
    assert redact(f"{PLANTED} tok-12345678 a name of eight") == (
        "<service.api_key hidden> <--auth-token hidden> a name of eight"
    )


def test_texts_of_a_folder_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", PLANTED)
    (tmp_path / "attempts").mkdir()
    log, inner, table = tmp_path / "server.log", tmp_path / "attempts" / "engine.json", tmp_path / "t.parquet"
    log.write_bytes(b"\xff header: Bearer " + PLANTED.encode() + b"\n")
    inner.write_text(f'["{PLANTED}"]')
    table.write_bytes(PLANTED.encode())
    (tmp_path / "clean.log").write_text("nothing")
    assert redact_files(tmp_path) == [inner, log]
    assert log.read_bytes() == b"\xff header: Bearer <MY_TOKEN hidden>\n"
    assert inner.read_text() == '["<MY_TOKEN hidden>"]'
    assert table.read_bytes() == PLANTED.encode()


def test_what_is_written_whole_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", PLANTED)
    write_whole(tmp_path / "a.json", f'{{"x": "{PLANTED}"}}')
    assert (tmp_path / "a.json").read_text() == '{"x": "<MY_TOKEN hidden>"}'
