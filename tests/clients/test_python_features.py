"""
The official Python client against everything that `gatepost dev` can offer, in each era it speaks.

What mcp 2.3 cannot do by itself: tasks (tests/clients/conftest.py has the extension that a host
adds, for the modern era alone). By the protocol: a level set for a session, and
`resources/subscribe`, are of the older revisions; `subscriptions/listen` and skills are of the
modern one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from tests.clients.conftest import ClientAnswers, GatedEndpoint

WITHIN_S = 30
MODES = ["legacy", "auto", "2026-07-28"]
MODERN_MODES = ["auto", "2026-07-28"]
WATCHED_URI = "test://watched-resource"


@asynccontextmanager
async def connected(
    endpoint: GatedEndpoint, mode: str, client_answers: ClientAnswers, **options: Any
) -> AsyncIterator[Client]:
    """Yield a client that answers every kind of client request."""
    callbacks: dict[str, Any] = {
        "elicitation_callback": client_answers.filled_in,
        "sampling_callback": client_answers.sampled,
        "list_roots_callback": client_answers.folders,
        "logging_callback": client_answers.logs,
        "message_handler": client_answers.hears,
    }
    with anyio.fail_after(WITHIN_S):
        async with (
            httpx2.AsyncClient(headers=endpoint.bearer, timeout=WITHIN_S, trust_env=False) as http,
            Client(
                streamable_http_client(endpoint.url, http_client=http),
                mode=mode,
                **{**callbacks, **options},
            ) as client,
        ):
            yield client


async def text(client: Client, tool: str, arguments: dict[str, Any] | None = None) -> str:
    """Return the text of a call that succeeds."""
    result = await client.call_tool(tool, arguments or {})
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    assert not result.is_error, block.text
    return block.text


@pytest.mark.parametrize("mode", MODES)
async def test_tool_calls_return_structured_content_progress_and_errors(
    gated_endpoint: GatedEndpoint, mode: str
) -> None:
    """The client validates the result by the listed output schema."""
    client_answers = ClientAnswers()
    async with connected(gated_endpoint, mode, client_answers) as client:
        protocol = client.protocol_version
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        warm = await client.call_tool("weather", {"city": "Graz"})
        await client.call_tool("test_tool_with_progress", {}, progress_callback=client_answers.step)
        mirrored = await text(client, "test_custom_headers", {"message": "grüß Gott"})
        failed = await client.call_tool("test_error_handling", {})
        several = await client.call_tool("test_multiple_content_types", {})

    assert protocol == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert listed["weather"].output_schema is not None
    assert warm.structured_content == {"city": "Graz", "degrees": 21.5}
    assert client_answers.steps == [0, 50, 100]
    assert mirrored == "grüß Gott"
    assert failed.is_error
    assert [block.type for block in several.content] == ["text", "image", "resource"]


@pytest.mark.parametrize("mode", MODES)
async def test_resources_prompts_and_completion(gated_endpoint: GatedEndpoint, mode: str) -> None:
    """The resources are fixed, templates and binary; prompts have arguments with completion."""
    async with connected(gated_endpoint, mode, ClientAnswers()) as client:
        listed = {str(each.uri) for each in (await client.list_resources()).resources}
        templates = (await client.list_resource_templates()).resource_templates
        (picture,) = (await client.read_resource("test://static-binary")).contents
        (document,) = (await client.read_resource("test://template/7/data")).contents
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        completed = await client.complete(
            types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments"),
            {"name": "arg1", "value": "test"},
        )

    assert {"test://static-text", WATCHED_URI} <= listed
    assert "test://template/{id}/data" in {each.uri_template for each in templates}
    assert isinstance(picture, types.BlobResourceContents)
    assert isinstance(document, types.TextResourceContents)
    assert '"id": "7"' in document.text
    assert "arg1='a'" in str(prompt.messages[0].content)
    assert completed.completion.values == ["test", "testValue1"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_answers_elicitations_in_both_revisions(
    gated_endpoint: GatedEndpoint, mode: str
) -> None:
    """One tool elicits by a request of the server, or in rounds of the call."""
    client_answers = ClientAnswers()
    async with connected(gated_endpoint, mode, client_answers) as client:
        form = await text(client, "test_elicitation", {"message": "Who is there?"})
        page = await text(client, "link_account")
        model = await text(client, "test_sampling", {"prompt": "Greet."})
        folders = await text(client, "test_input_required_result_list_roots")
        rounds = await text(client, "test_input_required_result_multi_round")
        together = await text(client, "test_input_required_result_multiple_inputs")
        prompt = await client.get_prompt("test_input_required_result_prompt")

    assert form == "accept: username='ann' email='ann@example.com'"
    assert page == "accept"
    assert model == "The model says: Grüß Gott"
    assert folders == "file:///work"
    assert rounds == "name='Name' likes color='Color'"
    assert together == "Grüß Gott (1 folders)"
    assert "Help me with Context." in str(prompt.messages[0].content)
    assert client_answers.asked[:2] == ["Who is there?", "https://mcp.example.com/connect"]


@pytest.mark.parametrize(("mode", "code"), [("legacy", None), ("auto", -32021)])
async def test_a_client_without_elicitation_gets_an_error_that_names_it(
    gated_endpoint: GatedEndpoint, mode: str, code: int | None
) -> None:
    """The modern revision has a protocol error, older revisions a tool error."""
    no_callbacks = {"elicitation_callback": None, "sampling_callback": None}
    async with connected(gated_endpoint, mode, ClientAnswers(), **no_callbacks) as client:
        if code is None:
            result = await client.call_tool("link_account", {})
            assert result.is_error
            assert "elicitation" in str(result.content)
            return
        with pytest.raises(MCPError) as refused:
            await client.call_tool("link_account", {})
    assert refused.value.error.code == code


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_an_older_session_sets_its_level_and_subscribes(
    gated_endpoint: GatedEndpoint,
) -> None:
    """Log messages begin at that level; updates of a document end with the subscription."""
    client_answers = ClientAnswers()
    async with connected(gated_endpoint, "legacy", client_answers) as client:
        await client.set_logging_level("error")
        await text(client, "test_tool_with_logging")
        assert client_answers.logged == []
        await client.set_logging_level("info")
        await text(client, "test_tool_with_logging")
        assert [level for level, _ in client_answers.logged] == ["info"] * 3

        await client.subscribe_resource(WATCHED_URI)
        await text(client, "touch")
        await client_answers.until(types.ResourceUpdatedNotification)
        await text(client, "test_trigger_tool_change")
        await client_answers.until(types.ToolListChangedNotification)
        await client.unsubscribe_resource(WATCHED_URI)
        with pytest.raises(ListenNotSupportedError):
            async with client.listen(tools_list_changed=True):
                pass


@pytest.mark.parametrize("mode", MODERN_MODES)
async def test_the_modern_revision_sends_logs_per_request_and_changes_on_listen(
    gated_endpoint: GatedEndpoint, mode: str
) -> None:
    """Only requested log messages and subscribed changes are sent."""
    quiet, client_answers = ClientAnswers(), ClientAnswers()
    async with connected(gated_endpoint, mode, quiet) as client:
        await text(client, "test_tool_with_logging")
    async with connected(gated_endpoint, mode, client_answers, log_level="info") as client:
        await text(client, "test_tool_with_logging")
        async with client.listen(
            tools_list_changed=True, resource_subscriptions=[WATCHED_URI]
        ) as listening:
            await text(client, "test_trigger_prompt_change")
            await text(client, "touch")
            updated = await anext(listening)
            await text(client, "test_trigger_tool_change")
            changed = await anext(listening)

    assert quiet.logged == []
    assert [level for level, _ in client_answers.logged] == ["info"] * 3
    assert listening.honored.tools_list_changed
    assert updated == ResourceUpdated(uri=WATCHED_URI)
    assert changed == ToolsListChanged()


@pytest.mark.parametrize("mode", MODERN_MODES)
async def test_tasks_are_awaited_and_their_client_requests_answered(
    gated_endpoint: GatedEndpoint, mode: str
) -> None:
    """With the extension a call becomes a task, and its client requests reach the person."""
    client_answers = ClientAnswers()
    tasks = client_answers.tasks()
    async with connected(gated_endpoint, mode, client_answers, extensions=[tasks]) as client:
        deleted = await text(client, "confirm_delete", {"filename": "a.txt"})
        short = await text(client, "greet", {"name": "Bo"})
        failed = await client.call_tool("failing_job", {})

    assert deleted == "a.txt was deleted."
    assert client_answers.asked == ["Delete a.txt?"]
    assert tasks.statuses[-1] == "completed"
    assert short == "Hello, Bo!"
    assert failed.is_error


async def test_a_running_task_can_be_cancelled(gated_endpoint: GatedEndpoint) -> None:
    """Long before it would have been done."""
    tasks = ClientAnswers().tasks(patient=False)
    async with connected(
        gated_endpoint, "2026-07-28", ClientAnswers(), extensions=[tasks]
    ) as client:
        result = await client.call_tool("slow_compute", {"seconds": 60})

    assert tasks.statuses[-1] == "cancelled"
    assert result.is_error


async def test_older_revisions_run_a_task_tool_as_a_plain_call(
    gated_endpoint: GatedEndpoint,
) -> None:
    """A tool with optional tasks answers; a tool that requires a task refuses."""
    client_answers = ClientAnswers()
    async with connected(
        gated_endpoint, "legacy", client_answers, extensions=[client_answers.tasks()]
    ) as client:
        computed = await text(client, "slow_compute", {"seconds": 0.1, "label": "it"})
        deleted = await text(client, "confirm_delete", {"filename": "a.txt"})
        refused = await client.call_tool("failing_job", {})

    assert computed == "Computed it in 0.1 seconds."
    assert deleted == "a.txt was deleted."
    assert "only clients that support tasks" in str(refused.content)


async def test_an_older_session_resumes_a_stream_that_the_server_closed(
    gated_endpoint: GatedEndpoint,
) -> None:
    """The client gets the rest of the stream."""
    async with connected(gated_endpoint, "legacy", ClientAnswers()) as client:
        assert await text(client, "test_reconnection") == "Reconnected."
