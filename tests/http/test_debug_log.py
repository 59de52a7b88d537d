"""What the log tells of requests, also at `debug`, and what it never does."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatepost.storage.backends import open_records
from gatepost.telemetry.logs import OWN_LOGGERS, configure
from tests.support.client import RestClient
from tests.support.issuers import Idp
from tests.support.measuring import capture_logs, eventually
from tests.support.server import Server, issuer_settings, running_server

pytestmark = pytest.mark.requirement("P15")
SECRET_ARGUMENT = "glpat-this-must-be-hidden"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        Idp() as idp,
        running_server(
            idp,
            [issuer_settings(idp)],
            log={"level": "debug"},
            tenancy={"create_on_first_use": True},
            tools={"packs": ["demo", "filesystem"]},
        ) as server,
    ):
        yield server


CALLS: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "done": ("echo", {"text": "hello"}, "success", "success"),
    "failed": ("fs_read_text", {"path": "none.txt"}, "failure", "not_found"),
    "wrong": ("echo", {"txt": "hello"}, "failure", "validation"),
    "unknown": ("ecko", {}, "error -32602", None),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_request_is_logged_with_its_duration_and_outcome(server: Server, case: str) -> None:
    """Both events have the method, the id and the tool; the call has the tool's name."""
    tool, arguments, outcome, ended = CALLS[case]
    token = server.token(org_id="acme", scope="files:read")
    with capture_logs() as events:
        server.client.call(token, tool, arguments)

    lines = [event for event in events if event["event"] in ("request_received", "response_ready")]
    assert [(event["event"], event["method"], event["tool"]) for event in lines] == [
        ("request_received", "tools/call", tool),
        ("response_ready", "tools/call", tool),
    ]
    assert lines[0]["id"] == lines[1]["id"] != ""
    assert lines[1]["outcome"] == outcome
    assert lines[1]["duration_ms"] >= 0
    calls = [event for event in events if event["event"] == "call_completed"]
    assert [(call["offer"], call["outcome"]) for call in calls] == (
        [(tool, ended)] if ended else []
    )
    assert token not in json.dumps(events, default=str)


def test_a_rest_call_is_logged_with_its_correlation_id(server: Server) -> None:
    """The arguments are not logged."""
    rest_client = RestClient(server, server.token(org_id="acme"))
    with capture_logs() as events:
        rest_client.call(
            "echo", {"text": SECRET_ARGUMENT}, ("X-Octopus-Correlation-Id", "episode-1")
        )

    [call] = [event for event in events if event["event"] == "call_completed"]
    assert (call["offer"], call["outcome"], call["correlation"]) == ("echo", "success", "episode-1")
    assert call["duration_ms"] >= 0
    assert SECRET_ARGUMENT not in json.dumps(events, default=str)


def test_an_access_line_names_the_method_and_the_tool(server: Server) -> None:
    """Unknown tools are named too, but arguments never."""
    token = server.token(org_id="acme", scope="files:read")
    answers = [
        server.client.call(token, name, {"text": SECRET_ARGUMENT}) for name in ("echo", "ecko")
    ]
    request_ids = [answer.field("x-request-id") for answer in answers]

    def lines() -> dict[str, Any]:
        written = [json.loads(line) for line in server.log().splitlines() if '"request"' in line]
        return {line["request_id"]: line for line in written}

    eventually(lambda: set(request_ids) <= set(lines()), within=20)
    assert [
        (lines()[request_id]["rpc_method"], lines()[request_id]["name"])
        for request_id in request_ids
    ] == [
        ("tools/call", "echo"),
        ("tools/call", "ecko"),
    ]
    assert SECRET_ARGUMENT not in server.log()


def test_request_events_are_not_logged_without_the_debug_level() -> None:
    """Without that level the events are not even created."""
    with (
        Idp() as idp,
        running_server(idp, [issuer_settings(idp)], tenancy={"create_on_first_use": True}) as quiet,
        capture_logs() as events,
    ):
        quiet.client.call(quiet.token(org_id="acme"), "echo", {"text": "hello"})

    names = {"request_received", "response_ready", "call_completed"}
    assert [event for event in events if event["event"] in names] == []


@contextmanager
def levels_restored() -> Iterator[None]:
    """Put the handlers and levels back that the test's process had."""
    loggers = [logging.getLogger(name) for name in (None, *OWN_LOGGERS)]
    before = [(logger, logger.level, logger.handlers) for logger in loggers]
    try:
        yield
    finally:
        for logger, level, handlers in before:
            logger.setLevel(level)
            logger.handlers = handlers


async def test_debug_level_logs_no_database_statements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parameters of a statement are tenant data."""
    with levels_restored():
        configure(level="debug", form="json")
        records = await open_records(f"sqlite:///{tmp_path / 'gatepost.db'}")
        try:
            await records.for_tenant("acme").approvals.get(SECRET_ARGUMENT)
        finally:
            await records.aclose()
        logging.getLogger("gatepost.tools").debug("own_event")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert "own_event" in [line["event"] for line in lines]
    strangers = [line for line in lines if line["logger"].partition(".")[0] not in OWN_LOGGERS]
    assert [line for line in strangers if line["level"] == "debug"] == []
    assert SECRET_ARGUMENT not in json.dumps(lines)
