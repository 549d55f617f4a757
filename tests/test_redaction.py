"""What is a secret, and what is left of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from ddbench import redaction
from ddbench.redaction import hide, is_secret, learn, redact, redact_files, redacted, secret_in
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


@pytest.mark.parametrize("value", ["false", "1234567", "/home/me/.ssh/id_ed25519"])
def test_words_and_paths_stay(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    assert redact(f"is {value} here") == f"is {value} here"


def test_a_secret_is_known_in_every_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    value = 'pa"ss\\wörd 1234'
    monkeypatch.setenv("MY_PASSWORD", value)
    for text in (json.dumps([value]), json.dumps([value], ensure_ascii=False), repr([value]), quote(value, safe="")):
        assert "1234" not in redact(text), text


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


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("url='http://u:pass@host:9'", "url='http://<hidden>@host:9'"),
        ("x=['--api-key', 'pass']: y", "x=['--api-key', <hidden>]: y"),
        ("x=[--auth-token=pass,b] y", "x=[--auth-token=<hidden>,b] y"),
        ("--db-password pass, y", "--db-password <hidden>, y"),
        ("hub_token='pass': y", "hub_token=<hidden>: y"),
        ("x={'api_key': 'pass', 'b': 1}", "x={'api_key': <hidden>, 'b': 1}"),
    ],
)
def test_a_line_shows_nothing_that_looks_like_a_secret(line: str, shown: str) -> None:
    assert hide(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "host.key='~/.ssh/x': a key that host a accepts (no)",
        "host.hosts[0].key='/a/b': a file",
        "write key=value; load.max_new_tokens=5",
        "known_hosts=None: its key is not there; see http://a/b, compare",
        "engine.flags.api_key='(not shown)': no secret: give it by the environment",
    ],
)
def test_a_line_without_one_stays(line: str) -> None:
    assert hide(line) == line


def test_what_was_typed_is_hidden_wherever_it_is_repeated() -> None:
    assert hide("at 'planted]'", ["x=[--api-key=planted]"]) == "at '<hidden>]'"


def test_where_a_configuration_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"a": {"b": ["x", f"<{PLANTED}>"]}, "service": {"api_key": "configured-1"}, "n": 3, "no": None, "t": True}
    learn(config)
    assert secret_in(config) is None  # but where it is called one
    assert secret_in({**config, "note": "configured-1"}) == ("note", "service.api_key")
    monkeypatch.setenv("MY_TOKEN", PLANTED)
    assert secret_in(config) == ("a.b", "MY_TOKEN")
    monkeypatch.setenv("MY_TOKEN", "20261130")
    assert secret_in({"seed": 20261130}) == ("seed", "MY_TOKEN")
