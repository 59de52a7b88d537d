"""
The official TypeScript clients against everything that `gatepost dev` can offer, in each era.

What they cannot do: 1.x speaks the older revisions alone. Tasks are in neither; with 2.x they are
driven by @modelcontextprotocol/ext-tasks. Neither knows the skills extension.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.clients.conftest import GatedEndpoint
from tests.support.programs import BrowserUser, run_typescript_client

CLIENT_PROGRAMS = {
    "1.x": ("features_v1.mjs", "legacy"),
    "2.x legacy": ("features_v2.mjs", "legacy"),
    "2.x auto": ("features_v2.mjs", "auto"),
    "2.x 2026-07-28": ("features_v2.mjs", "2026-07-28"),
}
OLD_CLIENTS = ["1.x", "2.x legacy"]
MODERN_CLIENTS = ["2.x auto", "2.x 2026-07-28"]


@pytest.fixture(scope="module")
def reports(gated_endpoint: GatedEndpoint) -> dict[str, dict[str, Any]]:
    """Return the report of each client, after one run of each."""

    def run(script: str, mode: str) -> dict[str, Any]:
        return run_typescript_client(
            script, BrowserUser(), url=gated_endpoint.url, token=gated_endpoint.token, mode=mode
        )

    with ThreadPoolExecutor(len(CLIENT_PROGRAMS)) as pool:
        return dict(
            zip(
                CLIENT_PROGRAMS,
                pool.map(lambda each: run(*each), CLIENT_PROGRAMS.values()),
                strict=True,
            )
        )


@pytest.mark.parametrize("name", CLIENT_PROGRAMS)
def test_tool_calls_return_structured_content_progress_and_errors(reports: Any, name: str) -> None:
    """The client validates the result by the listed output schema."""
    report = reports[name]

    assert report["protocol"] == ("2025-11-25" if name in OLD_CLIENTS else "2026-07-28")
    assert {"weather", "echo", "slow_compute"} <= set(report["tools"])
    assert report["weather"] == {"city": "Graz", "degrees": 21.5}
    assert report["steps"] == [0, 50, 100]
    assert report["mirrored"] == "grüß Gott"
    assert report["failed"] is True


@pytest.mark.parametrize("name", CLIENT_PROGRAMS)
def test_resources_prompts_and_completion(reports: Any, name: str) -> None:
    """The resources are fixed, templates and binary; prompts have arguments with completion."""
    report = reports[name]

    assert {"test://static-text", "test://watched-resource"} <= set(report["resources"])
    assert "test://template/{id}/data" in report["templates"]
    assert '"id": "7"' in report["document"]
    assert report["picture"] == "string"
    assert "test_prompt_with_arguments" in report["prompts"]
    assert "arg1='a', arg2='b'" in report["prompt"]
    assert report["completed"] == ["test", "testValue1"]


@pytest.mark.parametrize("name", CLIENT_PROGRAMS)
def test_a_client_answers_elicitations_in_both_revisions(reports: Any, name: str) -> None:
    """One tool elicits by a request of the server, or in rounds of the call."""
    report = reports[name]

    assert report["form"] == "accept: username='ann' email='ann@example.com'"
    assert report["page"] == "accept"
    assert report["model"] == "The model says: Grüß Gott"
    assert report["folders"] == "file:///work"
    assert report["rounds"] == "name='Name' likes color='Color'"
    assert report["asking_prompt"] == "Help me with Context."
    assert report["asked"][:2] == ["Who is there?", "https://mcp.example.com/connect"]


@pytest.mark.parametrize("name", CLIENT_PROGRAMS)
def test_clients_receive_log_messages_of_their_level_and_changes(reports: Any, name: str) -> None:
    """Changes arrive on a GET stream, or on a stream of `subscriptions/listen`."""
    report = reports[name]

    assert report["unheard"] == 0
    assert report["logged"] == ["info"] * 3
    assert report["updated"] is True
    assert report["changed"] is True


@pytest.mark.parametrize("name", OLD_CLIENTS)
def test_an_older_session_resumes_a_stream_that_the_server_closed(reports: Any, name: str) -> None:
    """The client sends the id of the last event, and ends its session with DELETE."""
    assert reports[name]["reconnected"] == "Reconnected."
    assert reports[name]["resumption_tokens"] >= 1


@pytest.mark.parametrize("name", OLD_CLIENTS)
def test_older_revisions_run_a_task_tool_as_a_plain_call(reports: Any, name: str) -> None:
    """A tool with optional tasks answers; a tool that requires a task refuses."""
    assert reports[name]["computed"] == "Computed something in 0.1 seconds."
    assert "only clients that support tasks" in reports[name]["refused"]


@pytest.mark.parametrize("name", MODERN_CLIENTS)
def test_tasks_are_awaited_answered_and_cancelled(reports: Any, name: str) -> None:
    """The server alone decides which call becomes one."""
    report = reports[name]

    assert report["deleted"] == ["task", "a.txt was deleted."]
    assert report["asked"][-1] == "Delete a.txt?"
    assert report["short"] == ["immediate", "Hello, Bo!"]
    assert report["failed_job"] == ["task", True]
    assert report["cancelled"] == ["task", "cancelled"]


@pytest.mark.parametrize("name", CLIENT_PROGRAMS)
def test_a_client_without_a_token_is_refused(reports: Any, name: str) -> None:
    """Without a token, a client gets neither a session nor a list."""
    assert reports[name]["stranger"] == 401
