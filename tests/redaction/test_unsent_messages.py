"""A client that joins the messages it was sent finds no secret that is split around others."""

import json
from collections.abc import Iterator, Sequence

import pytest

from tests.redaction.test_split import SECRETS, EchoServer, echo_server
from tests.support.measuring import each

SECRET_VALUE = SECRETS["acme"]["TOKEN"]
REDACTION_MARK = "[REDACTED:TOKEN]"
FIRST, LAST = SECRET_VALUE[:12], SECRET_VALUE[12:]
BEGINNING, MIDDLE, END = FIRST, LAST[:1], LAST[1:]
PAUSE_S = 0.15
"""Longer than the rate limit delays the next message."""


@pytest.fixture(scope="module")
def server() -> Iterator[EchoServer]:
    with echo_server() as server:
        yield server


@pytest.fixture(autouse=True)
def slow_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client get one message at once, and ten in a second."""
    for kind in ("MESSAGES", "REPORTS"):
        monkeypatch.setattr(f"gatepost.mcp.client.{kind}_AT_ONCE", 1)
        monkeypatch.setattr(f"gatepost.mcp.client.{kind}_PER_S", 10)


def sent_texts(answer: str, method: str) -> list[str]:
    """Return the texts of the messages that a client was sent before the result."""
    lines = [line.removeprefix("data:") for line in answer.splitlines() if line.startswith("data:")]
    params = [event["params"] for event in map(json.loads, lines) if event.get("method") == method]
    return [str(message.get("message", message.get("data"))) for message in params]


UNSENT_REPORTS: dict[str, Sequence[tuple[float, str, float]]] = {
    "replaced": [(1, FIRST, 0), (2, "innocent", 0), (3, LAST, 0)],
    "replaced twice": [(1, FIRST, 0), (2, "innocent", 0), (3, "harmless", 0), (4, LAST, PAUSE_S)],
    "not increased": [(1, FIRST, PAUSE_S), (1, "innocent", PAUSE_S), (2, LAST, 0)],
    "not increased while one waits": [
        (1, BEGINNING, 0),
        (2, MIDDLE, 0),
        (2, "innocent", PAUSE_S),
        (3, END, 0),
    ],
    "replaced before one sent later": [
        (1, BEGINNING, 0),
        (2, "innocent", 0),
        (3, MIDDLE, PAUSE_S),
        (4, END, 0),
    ],
    "replaced, with a part": [(1, BEGINNING, 0), (2, MIDDLE, 0), (3, END, 0)],
}


@pytest.mark.requirement("P13", "PR-02")
@each("reports", UNSENT_REPORTS.values(), ids=UNSENT_REPORTS)
def test_a_secret_split_around_unsent_reports_is_redacted(
    server: EchoServer, reports: Sequence[tuple[float, str, float]]
) -> None:
    """A newer report replaces one that waits, and one that has not increased is dropped."""
    sent = sent_texts(server.call("report_each", reports=reports), "notifications/progress")

    assert sent[0] == reports[0][1]
    assert len(sent) < len(reports)
    assert reports[-1][1] not in sent
    assert REDACTION_MARK in sent


LARGE = "x" * 20_000
UNSENT_LOGS: dict[str, Sequence[tuple[str, str, float]]] = {
    "too fast": [("error", FIRST, 0), ("error", "innocent", PAUSE_S), ("error", LAST, 0)],
    "too fast, with a part": [
        ("error", BEGINNING, 0),
        ("error", MIDDLE, PAUSE_S),
        ("error", END, 0),
    ],
    "below the level": [
        ("error", FIRST, PAUSE_S),
        ("debug", "innocent", 0),
        ("error", LAST, 0),
    ],
    "below the level, with a part": [
        ("error", BEGINNING, PAUSE_S),
        ("debug", MIDDLE, 0),
        ("error", END, 0),
    ],
    "too large": [("error", FIRST, PAUSE_S), ("error", LARGE, PAUSE_S), ("error", LAST, 0)],
}


@pytest.mark.requirement("P13", "LG-06")
@each("messages", UNSENT_LOGS.values(), ids=UNSENT_LOGS)
def test_a_secret_split_around_unsent_log_messages_is_redacted(
    server: EchoServer, messages: Sequence[tuple[str, str, float]]
) -> None:
    """Messages that come too fast, are too large or below the client's level are not sent."""
    answer = server.call("log_each", level="info", messages=messages)
    sent = sent_texts(answer, "notifications/message")

    assert sent[0] == messages[0][1]
    assert messages[1][1] not in sent
    assert messages[2][1] not in sent
    assert REDACTION_MARK in sent
