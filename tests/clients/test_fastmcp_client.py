"""
FastMCP's client against everything that `gatepost dev` can offer, in each era it speaks.

What fastmcp 4.1 cannot do by itself: tasks (the extension of tests/clients/conftest.py, or the
package fastmcp-tasks), `resources/subscribe` and `subscriptions/listen` (it has no method for them;
the SDK's session below it has).
"""

import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.auth import OAuth
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from fastmcp.skills.client import SkillsClientExtension
from mcp import types
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged, listen
from mcp.shared.exceptions import MCPError

from tests.clients.conftest import FORM, ClientAnswers, GatedEndpoint
from tests.support.commands import Gatepost
from tests.support.programs import BrowserUser

WITHIN_S = 30
MODES = ["legacy", "auto", "2026-07-28"]
MODERN_MODES = ["auto", "2026-07-28"]
WATCHED_URI = "test://watched-resource"
SKILL = "skill://conformance_resources/greet-visitor/SKILL.md"


@asynccontextmanager
async def connected(
    endpoint: GatedEndpoint, mode: str, client_answers: ClientAnswers, **options: Any
) -> AsyncIterator[Client[StreamableHttpTransport]]:
    """Yield a client that answers every kind of client request, with a bearer token."""

    async def filled_in(message: str, response_type: Any, params: Any, context: Any) -> Any:
        client_answers.asked.append(message)
        if response_type is None:
            return ElicitResult(action="accept")
        content = {
            name: FORM.get(name, name.title()) for name in params.requested_schema["properties"]
        }
        # The handler answers with an object of the class that FastMCP made of the schema.
        return response_type(**content)

    async def sampled(messages: Any, params: Any, context: Any) -> str:
        return "Grüß Gott"

    client = Client(
        StreamableHttpTransport(endpoint.url, auth=endpoint.token),
        mode=mode,
        timeout=WITHIN_S,
        **{
            "elicitation_handler": filled_in,
            "sampling_handler": sampled,
            "roots": ["file:///work"],
            "log_handler": client_answers.logs,
            "message_handler": client_answers.hears,
            "progress_handler": client_answers.step,
            **options,
        },
    )
    with anyio.fail_after(WITHIN_S):
        async with client:
            yield client


@pytest.mark.parametrize("mode", MODES)
async def test_tool_calls_return_structured_content_progress_and_errors(
    gated_endpoint: GatedEndpoint, mode: str
) -> None:
    """FastMCP builds an object from the result by the listed output schema."""
    client_answers = ClientAnswers()
    async with connected(gated_endpoint, mode, client_answers) as client:
        protocol = client.protocol_version
        listed = {tool.name for tool in await client.list_tools()}
        warm = await client.call_tool("weather", {"city": "Graz"})
        await client.call_tool("test_tool_with_progress", {})
        mirrored = await client.call_tool("test_custom_headers", {"message": "grüß Gott"})
        with pytest.raises(ToolError, match="This tool fails on purpose"):
            await client.call_tool("test_error_handling", {})
        with pytest.raises((ToolError, MCPError)):
            await client.call_tool("nothing", {})

    assert protocol == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert {"weather", "echo", "slow_compute"} <= listed
    assert (warm.data.city, warm.data.degrees) == ("Graz", 21.5)
    assert client_answers.steps == [0, 50, 100]
    assert mirrored.content[0].text == "grüß Gott"


@pytest.mark.parametrize("mode", MODES)
async def test_resources_prompts_and_completion(gated_endpoint: GatedEndpoint, mode: str) -> None:
    """The resources are fixed, templates and binary; prompts have arguments with completion."""
    async with connected(gated_endpoint, mode, ClientAnswers()) as client:
        listed = {str(each.uri) for each in await client.list_resources()}
        templates = {each.uri_template for each in await client.list_resource_templates()}
        (picture,) = await client.read_resource("test://static-binary")
        (document,) = await client.read_resource("test://template/7/data")
        prompts = {each.name for each in await client.list_prompts()}
        arguments = {"arg1": "a", "arg2": "b"}
        prompt = await client.get_prompt("test_prompt_with_arguments", arguments)
        completed = await client.complete(
            types.PromptReference(type="ref/prompt", name="test_prompt_with_arguments"),
            {"name": "arg1", "value": "test"},
        )

    assert {"test://static-text", WATCHED_URI} <= listed
    assert "test://template/{id}/data" in templates
    assert isinstance(picture, types.BlobResourceContents)
    assert isinstance(document, types.TextResourceContents)
    assert '"id": "7"' in document.text
    assert "test_prompt_with_arguments" in prompts
    assert "arg1='a'" in str(prompt.messages[0].content)
    assert completed.values == ["test", "testValue1"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_answers_elicitations_in_both_revisions(
    gated_endpoint: GatedEndpoint, mode: str
) -> None:
    """One handler answers requests of the server and rounds of the call."""
    client_answers = ClientAnswers()
    async with connected(gated_endpoint, mode, client_answers) as client:
        texts = [
            (await client.call_tool(tool, arguments)).content[0].text
            for tool, arguments in (
                ("test_elicitation", {"message": "Who is there?"}),
                ("link_account", {}),
                ("test_sampling", {"prompt": "Greet."}),
                ("test_input_required_result_list_roots", {}),
                ("test_input_required_result_multi_round", {}),
            )
        ]
        prompt = await client.get_prompt("test_input_required_result_prompt")

    assert texts == [
        "accept: username='ann' email='ann@example.com'",
        "accept",
        "The model says: Grüß Gott",
        "file:///work",
        "name='Name' likes color='Color'",
    ]
    assert "Help me with Context." in str(prompt.messages[0].content)
    assert client_answers.asked[:2] == ["Who is there?", "Link your account"]


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_an_older_session_sets_its_log_level_and_receives_changes(
    gated_endpoint: GatedEndpoint,
) -> None:
    """Changes of lists arrive without a subscription, changes of documents after one."""
    client_answers = ClientAnswers()
    async with connected(gated_endpoint, "legacy", client_answers) as client:
        await client.set_logging_level("error")
        await client.call_tool("test_tool_with_logging", {})
        assert client_answers.logged == []
        await client.set_logging_level("info")
        await client.call_tool("test_tool_with_logging", {})
        await client.session.subscribe_resource(WATCHED_URI)
        await client.call_tool("touch", {})
        await client_answers.until(types.ResourceUpdatedNotification)
        await client.call_tool("test_trigger_tool_change", {})
        await client_answers.until(types.ToolListChangedNotification)
        assert await client.ping()
        returned = await client.call_tool("test_reconnection", {})

    assert returned.content[0].text == "Reconnected."
    assert [level for level, _ in client_answers.logged] == ["info"] * 3


@pytest.mark.parametrize("mode", MODERN_MODES)
async def test_the_modern_revision_sends_logs_per_request_and_changes_on_listen(
    gated_endpoint: GatedEndpoint, mode: str
) -> None:
    """FastMCP requests every log message and opens the stream in its lower-level session."""
    client_answers = ClientAnswers()
    async with connected(gated_endpoint, mode, client_answers) as client:
        await client.call_tool("test_tool_with_logging", {})
        with pytest.raises(RuntimeError, match="logging/setLevel is not available"):
            await client.set_logging_level("error")
        async with listen(
            client.session, tools_list_changed=True, resource_subscriptions=[WATCHED_URI]
        ) as listening:
            await client.call_tool("touch", {})
            updated = await anext(listening)
            await client.call_tool("test_trigger_tool_change", {})
            changed = await anext(listening)

    assert [level for level, _ in client_answers.logged] == ["info"] * 3
    assert (updated, changed) == (ResourceUpdated(uri=WATCHED_URI), ToolsListChanged())


async def test_tasks_are_awaited_and_their_client_requests_answered(
    gated_endpoint: GatedEndpoint,
) -> None:
    """With the extension a call becomes a task, and its client requests reach the person."""
    client_answers = ClientAnswers()
    async with connected(
        gated_endpoint, "auto", client_answers, extensions=[client_answers.tasks()]
    ) as client:
        deleted = await client.call_tool("confirm_delete", {"filename": "a.txt"})
        with pytest.raises(ToolError, match="The job failed"):
            await client.call_tool("failing_job", {})

    assert deleted.content[0].text == "a.txt was deleted."
    assert client_answers.asked == ["Delete a.txt?"]


async def test_skills_are_listed_after_discovery(gated_endpoint: GatedEndpoint) -> None:
    """FastMCP pinned to a revision requests no capabilities, so it finds no skills."""
    extensions = [SkillsClientExtension()]
    async with connected(gated_endpoint, "auto", ClientAnswers(), extensions=extensions) as client:
        (skill,) = await client.list_skills()
        assert await client.get_skill(SKILL) == skill
    async with connected(
        gated_endpoint, "2026-07-28", ClientAnswers(), extensions=extensions
    ) as client:
        with pytest.raises(RuntimeError, match="does not advertise the Skills extension"):
            await client.list_skills()


async def test_older_revisions_run_a_task_tool_as_a_plain_call(
    gated_endpoint: GatedEndpoint,
) -> None:
    """A tool with optional tasks answers; a tool that requires a task refuses."""
    client_answers = ClientAnswers()
    async with connected(
        gated_endpoint, "legacy", client_answers, extensions=[client_answers.tasks()]
    ) as client:
        computed = await client.call_tool("slow_compute", {"seconds": 0.1})
        with pytest.raises(ToolError, match="only clients that support tasks"):
            await client.call_tool("failing_job", {})
        with pytest.raises(RuntimeError, match="requires a modern MCP connection"):
            await client.list_skills()

    assert computed.content[0].text == "Computed something in 0.1 seconds."


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("auth", [None, "nonsense"])
async def test_a_client_without_a_token_is_refused(
    gated_endpoint: GatedEndpoint, mode: str, auth: str | None
) -> None:
    """The status is 401 without a token, and with an invalid token."""
    statuses: list[int] = []

    async def seen(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    def watched(**options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(event_hooks={"response": [seen]}, **options)

    transport = StreamableHttpTransport(gated_endpoint.url, auth=auth, httpx_client_factory=watched)
    with anyio.fail_after(WITHIN_S), pytest.raises(MCPError):
        async with Client(transport, mode=mode) as client:
            await client.list_tools()
    assert set(statuses) == {401}


@pytest.mark.filterwarnings("ignore:Using in-memory token storage")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_person_signs_in(dev: Gatepost, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastMCP does discovery and registration and runs the callback server."""
    person, sign_ins = BrowserUser("alice"), list[threading.Thread]()

    def sign_in(url: str) -> None:
        back = person.follow(url)
        # The page that waits for the person is opened after the browser is.
        with httpx2.Client(transport=httpx2.HTTPTransport(retries=5), timeout=10) as browser:
            assert browser.get(back).status_code == 200

    def browse(url: str) -> bool:
        sign_ins.append(threading.Thread(target=sign_in, args=(url,)))
        sign_ins[-1].start()
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    transport = StreamableHttpTransport(dev.url, auth=OAuth(callback_timeout=WITHIN_S))
    with anyio.fail_after(WITHIN_S):
        async with Client(transport, mode=mode) as client:
            who = await client.call_tool("whoami", {})
    for each in sign_ins:
        each.join(10)

    assert "acme" in str(who.structured_content)
    (request,) = person.asked
    assert (request["resource"], request["code_challenge_method"]) == (dev.url, "S256")
