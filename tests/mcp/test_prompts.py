"""`prompts/list` and `prompts/get` in every revision."""

import pytest

from gatepost import CallContext, Pack
from tests.mcp.conftest import PNG, base64, declared_capabilities, pack
from tests.support.endpoint import VERSION, EndpointClient, a_caller
from tests.support.endpoint_clients import REVISIONS, ask, result_of
from tests.support.measuring import each

pytestmark = pytest.mark.parametrize("revision", REVISIONS)


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.offers, obtainable=frozenset())


@pytest.mark.requirement("P-01", "V-08")
async def test_p_01_prompts_are_declared_when_there_are_some(revision: str) -> None:
    """Without prompts their methods are unknown."""
    tools_alone, with_prompt = (
        EndpointClient([pack.tools["stamp"]]),
        EndpointClient([pack.prompts["broken"]]),
    )

    assert "prompts" not in await declared_capabilities(tools_alone, revision)
    assert "prompts" in await declared_capabilities(with_prompt, revision)
    for method in ("prompts/list", "prompts/get"):
        response = await ask(tools_alone, revision, method, name="broken")
        assert response.error == (404 if revision == VERSION else 200, -32601)


@pytest.mark.requirement("P-02", "P-03", "IC-01")
async def test_p_02_p_03_prompts_have_the_members_of_each_revision(
    client: EndpointClient, revision: str
) -> None:
    """The list has the prompts that the caller may use, with their arguments."""
    listed = (await result_of(client, revision, "prompts/list"))["prompts"]
    prompts = {prompt["name"]: prompt for prompt in listed}
    summarise = prompts["summarise"]

    assert sorted(prompts) == ["broken", "illustrated", "summarise"]
    assert summarise["description"] == "Summarise a quarter."
    assert summarise.get("title") == ("Summary" if revision >= "2025-06-18" else None)
    assert ("icons" in summarise) == (revision >= "2025-11-25")
    title = {"title": "Quarter"} if revision >= "2025-06-18" else {}
    assert summarise["arguments"] == [
        {"name": "quarter", "description": "Such as q1", "required": True, **title},
        {"name": "tone"},
    ]


@pytest.mark.requirement("P-04", "J-07")
async def test_p_04_a_prompt_answers_messages(client: EndpointClient, revision: str) -> None:
    """A plain text is a user message; the prompt can use the caller's own data."""
    arguments = {"quarter": "q2", "tone": "warm"}
    result = await result_of(client, revision, "prompts/get", name="summarise", arguments=arguments)

    assert result["description"] == "Summarise a quarter."
    assert result["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Summarise q2 for acme, warm."}}
    ]
    assert (result.get("resultType") == "complete") is (revision == VERSION)
    assert "ttlMs" not in result


@pytest.mark.requirement("P-05")
async def test_p_05_messages_hold_pictures_sounds_and_resources(
    client: EndpointClient, revision: str
) -> None:
    """Base64 with a type; links are text where the revision has no links."""
    result = await result_of(client, revision, "prompts/get", name="illustrated")
    roles = [message["role"] for message in result["messages"]]
    text, image, audio, embedded, link = (message["content"] for message in result["messages"])

    assert roles == ["user", "user", "user", "assistant", "assistant"]
    assert text == {"type": "text", "text": "Look:"}
    assert image == {"type": "image", "data": base64(PNG), "mimeType": "image/png"}
    assert audio == {"type": "audio", "data": base64(b"RIFF"), "mimeType": "audio/wav"}
    assert embedded == {
        "type": "resource",
        "resource": {"uri": "library://rules", "mimeType": "text/plain", "text": "text"},
    }
    if revision == "2025-03-26":
        assert link == {"type": "text", "text": "rules library://rules"}
    else:
        assert link["type"] == "resource_link"


WRONG_PARAMS = [
    ({"name": "nobody"}, "Unknown prompt: nobody"),
    ({"name": "hidden_prompt"}, "Unknown prompt: hidden_prompt"),
    ({}, "params.name is required"),
    ({"name": "summarise"}, "`quarter` is required."),
    ({"name": "summarise", "arguments": {"quarter": "q", "more": "x"}}, "not an argument"),
    ({"name": "summarise", "arguments": {"quarter": "q", "tone": "loud"}}, "`tone` should"),
    ({"name": "summarise", "arguments": {"quarter": "x" * 11}}, "`quarter` should"),
    ({"name": "summarise", "arguments": {"quarter": 1}}, "are texts"),
    ({"name": "summarise", "arguments": ["q"]}, "must be an object"),
]


@pytest.mark.requirement("P-06", "P-09")
@each(("params", "expected_text"), WRONG_PARAMS, ids=[says for _, says in WRONG_PARAMS])
async def test_p_06_p_09_an_invalid_request_gets_an_error_that_names_the_problem(
    client: EndpointClient, revision: str, params: dict[str, object], expected_text: str
) -> None:
    """The error is -32602; a hidden prompt gets the error of a missing one."""
    response = await ask(client, revision, "prompts/get", **params)

    assert response.error == (400 if revision == VERSION else 200, -32602)
    assert expected_text in response.json["error"]["message"]


@pytest.mark.requirement("P-06")
async def test_p_06_an_internal_error_has_no_detail(client: EndpointClient, revision: str) -> None:
    """-32603 and the request's id, which finds the story in the log."""
    response = await ask(client, revision, "prompts/get", name="broken")

    assert response.error == (200, -32603)
    assert "request-1" in response.json["error"]["message"]
    assert b"hunter2" not in response.body


@pytest.mark.requirement("P-09")
async def test_p_09_a_prompt_too_large_is_an_error(revision: str) -> None:
    """Half of a message would say something else."""
    large = Pack("large")

    @large.prompt()
    async def long(ctx: CallContext) -> str:
        """Go on and on."""
        return "x" * 5000

    response = await ask(
        EndpointClient(large.offers, max_result_bytes=1000), revision, "prompts/get", name="long"
    )

    assert response.json["error"]["code"] == -32603
    assert "1000" in response.json["error"]["message"]


@pytest.mark.requirement("P-02", "P-09")
async def test_p_09_a_prompt_with_obtainable_scopes_is_listed_and_challenged(revision: str) -> None:
    """The list and the use take the same decision."""
    client = EndpointClient(pack.offers)
    client.caller = a_caller(scopes=frozenset())
    listed = (await result_of(client, revision, "prompts/list"))["prompts"]
    response = await ask(client, revision, "prompts/get", name="hidden_prompt")

    assert "hidden_prompt" in {prompt["name"] for prompt in listed}
    assert response.status == 403
    assert 'scope="hidden"' in response.headers["www-authenticate"]
