"""The log: no credential in it, and one event on one line."""

import json
import logging
import sys

import pytest

from gatepost.telemetry.access import Row, as_json, as_text
from gatepost.telemetry.logs import ConsoleFormatter, JsonFormatter, scrub, timestamp

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
def test_what_looks_like_a_credential_is_removed(text: str) -> None:
    """Messages of exceptions quote what clients sent."""
    cleaned = scrub(text)

    assert "[REDACTED" in cleaned
    assert not any(secret in cleaned for secret in (TOKEN, "eyJzdWIi", "abcdefgh12345678"))


def test_ordinary_sentences_stay_as_they_are() -> None:
    """Scrubbing must not eat the log."""
    text = "keys of https://id.example.com cannot be fetched: timeout (request_id=ab12-9)"

    assert scrub(text) == text


@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter()])
def test_a_traceback_is_kept_without_the_token_in_it(formatter: logging.Formatter) -> None:
    """Where it broke is told; what the client sent is not."""
    try:
        raise KeyError(f"Bearer {TOKEN}")
    except KeyError:
        record = logging.LogRecord(
            "gatepost.edge", logging.ERROR, __file__, 1, "unforeseen failure", None, sys.exc_info()
        )
    record.request_id = "ab12-9"
    told = formatter.format(record)

    assert "KeyError" in told
    assert "test_logs.py" in told
    assert "ab12-9" in told
    assert TOKEN not in told


def test_a_client_cannot_write_lines_of_its_own() -> None:
    """A path with a line break stays one line in both forms."""
    row: Row = (
        0.25,
        "GET",
        "/a\n12:00 GET /forged 200",
        404,
        0.001,
        "id-1",
        None,
        "192.0.2.1",
        b"a\nb",
    )

    assert as_text([row]).count(b"\n") == 1
    assert as_json([row]).count(b"\n") == 1
    assert json.loads(as_json([row]))["path"] == row[2]
    assert json.loads(as_json([row]))["correlation"] == "a\nb"
    assert json.loads(as_json([row]))["time"] == timestamp(0.25) == "1970-01-01T00:00:00.250Z"
