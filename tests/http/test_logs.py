"""The log: no credential in it, and one event on one line."""

import json
import logging
import sys

import pytest
from msgspec import UNSET

from gatepost.telemetry.access import AccessRow, as_json, as_text
from gatepost.telemetry.logs import ConsoleFormatter, JsonFormatter, TrustedText, scrub, timestamp
from tests.support.measuring import each

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"

SECRETS = [
    f"Authorization: Bearer {TOKEN}",
    f"token {TOKEN} refused",
    f"half a token {TOKEN.rpartition('.')[0]}",
    "bearer abcdefgh12345678",
    "POST client_secret=abcdefgh12345678&scope=x",
    "GET /?access_token=abcdefgh12345678",
]


@pytest.mark.requirement("W26")
@pytest.mark.parametrize("text", SECRETS)
def test_text_that_looks_like_a_credential_is_redacted(text: str) -> None:
    """Exception messages may quote what clients sent."""
    cleaned = scrub(text)

    assert "[REDACTED" in cleaned
    assert not any(secret in cleaned for secret in (TOKEN, "eyJzdWIi", "abcdefgh12345678"))


def test_ordinary_sentences_are_not_redacted() -> None:
    """Redaction must not make the log useless."""
    text = "keys of https://id.example.com cannot be fetched: timeout (request_id=ab12-9)"

    assert scrub(text) == text


@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter()])
def test_text_marked_as_the_servers_own_is_not_redacted(formatter: logging.Formatter) -> None:
    """A signature stays whole; other fields of the same event are redacted."""
    record = logging.makeLogRecord({"name": "gatepost.audit", "msg": "signed"})
    record.signature, record.said = TrustedText(TOKEN), TOKEN

    assert formatter.format(record).count(TOKEN) == 1


@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter()])
def test_a_traceback_is_kept_without_the_token_in_it(formatter: logging.Formatter) -> None:
    """The traceback names the place of the error."""
    try:
        raise KeyError(f"Bearer {TOKEN}")
    except KeyError:
        record = logging.LogRecord(
            "gatepost.edge", logging.ERROR, __file__, 1, "request_error", None, sys.exc_info()
        )
    record.request_id = "ab12-9"
    text = formatter.format(record)

    assert "KeyError" in text
    assert "test_logs.py" in text
    assert "ab12-9" in text
    assert TOKEN not in text


def test_a_client_cannot_forge_log_lines() -> None:
    """A path with a line break stays one line, and one with spaces stays one field."""
    row: AccessRow = (
        0.25,
        "GET",
        "/a\n12:00 GET /forged 200",
        404,
        0.001,
        "id-1",
        None,
        "192.0.2.1",
        b"a\nb",
        ("tools/call\n", "ec\nho", UNSET),
    )

    assert as_text([row]).count(b"\n") == 1
    assert len(as_text([row]).split()) == 12, "no field of the line is forged"
    assert as_json([row]).count(b"\n") == 1
    assert json.loads(as_json([row]))["path"] == row[2]
    assert json.loads(as_json([row]))["correlation"] == "a\nb"
    assert json.loads(as_json([row]))["name"] == "ec\nho"
    assert json.loads(as_json([row]))["time"] == timestamp(0.25) == "1970-01-01T00:00:00.250Z"


CONTROL_CHARACTERS = "\x7f\x85\x9b\u061c\u200b\u200e\u2028\u2029\u202e\u2066\ufeff\U000e0041"
"""Controls of terminals, marks of direction, ends of lines and letters that are not seen."""


def formatted(formatter: logging.Formatter, text: str) -> str:
    """Format an event whose message, detail and traceback contain the text."""
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord(
            "gatepost.edge", logging.ERROR, __file__, 1, text, None, sys.exc_info()
        )
    record.detail = text
    return formatter.format(record)


@each("letter", CONTROL_CHARACTERS)
def test_control_and_bidirectional_characters_are_escaped_in_logs(letter: str) -> None:
    """This holds for JSON, text and the access log; the JSON value stays the same."""
    text = f"a{letter}b é"
    row: AccessRow = (
        0.25,
        "GET",
        f"/{text}",
        404,
        0.001,
        "id-1",
        None,
        "192.0.2.1",
        None,
        (text, text, UNSET),
    )
    written = (
        formatted(JsonFormatter(), text),
        formatted(ConsoleFormatter(), text),
        as_json([row]).decode(),
        as_text([row]).decode(),
    )

    assert not any(letter in line for line in written)
    event = json.loads(written[0])
    assert (event["event"], event["detail"]) == (text, text)
    assert json.loads(written[2])["path"] == f"/{text}"
    assert "é" in written[0]


def test_an_undecodable_byte_does_not_lose_the_log_event() -> None:
    """Names of files may contain bytes that are not UTF-8."""
    event = json.loads(formatted(JsonFormatter(), "file a\udc80b"))

    assert event["detail"] == "file a\\udc80b"
