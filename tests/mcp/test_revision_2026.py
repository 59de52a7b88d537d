"""What every 2026-07-28 exchange keeps to: versions, `_meta`, content types, caching hints."""

import pytest

from gatepost.mcp.endpoint import EndpointLimits
from tests.support.endpoint import JSON, META, VERSION, EndpointClient, a_caller, message

SERVER = META + "serverInfo"


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient()


@pytest.mark.requirement("V-01")
@pytest.mark.parametrize("missing", ["protocolVersion", "clientCapabilities"])
async def test_both_meta_members_are_required(client: EndpointClient, missing: str) -> None:
    """Every request has its version and the client's capabilities."""
    meta = {META + "protocolVersion": VERSION, META + "clientCapabilities": {}}
    del meta[META + missing]
    headers = [JSON, ("mcp-protocol-version", VERSION), ("mcp-method", "server/discover")]
    response = await client.send(message("server/discover", {"_meta": meta}), headers)

    assert response.error == (400, -32602)
    assert META + missing in response.json["error"]["message"]


@pytest.mark.requirement("V-01")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"_meta": None},
        {"_meta": []},
        {"_meta": {META + "protocolVersion": 1, META + "clientCapabilities": {}}},
        {"_meta": {META + "protocolVersion": VERSION, META + "clientCapabilities": []}},
        [],
        "text",
        None,
    ],
)
async def test_malformed_meta_is_a_parameter_error(client: EndpointClient, params: object) -> None:
    """The answer is -32602 with HTTP 400."""
    headers = [JSON, ("mcp-protocol-version", VERSION), ("mcp-method", "tools/list")]

    assert (await client.send(message("tools/list", params), headers)).error == (400, -32602)


@pytest.mark.requirement("V-02")
async def test_a_client_need_not_introduce_itself(client: EndpointClient) -> None:
    """`clientInfo` is optional, and nothing depends on it."""
    plain = await client.ask("tools/list")
    named = await client.ask("tools/list", meta={META + "clientInfo": {"name": "x"}})

    assert plain.body == named.body


@pytest.mark.requirement("V-05", "V-06", "C-01", "C-02", "C-03", "J-07", "TL-01")
async def test_discovery_lists_versions_and_capabilities(client: EndpointClient) -> None:
    """The newest version comes first, with the lifetime of the answer."""
    result = (await client.ask("server/discover")).json["result"]

    assert result == {
        "resultType": "complete",
        "supportedVersions": [VERSION, "2025-11-25", "2025-06-18", "2025-03-26"],
        "capabilities": {
            "logging": {},
            "tools": {"listChanged": True},
            "extensions": {
                "io.modelcontextprotocol/oauth-client-credentials": {},
                "io.modelcontextprotocol/enterprise-managed-authorization": {},
            },
        },
        "ttlMs": 300_000,
        "cacheScope": "private",
        "_meta": {SERVER: {"name": "gatepost", "version": "1.0"}},
    }


@pytest.mark.requirement("V-08", "J-11", "V-10")
@pytest.mark.parametrize("method", ["prompts/list", "resources/list", "completion/complete"])
async def test_v_08_methods_of_undeclared_capabilities_are_unknown(
    client: EndpointClient, method: str
) -> None:
    """The server declares only tools, so methods of prompts and resources are unknown."""
    assert (await client.ask(method)).error == (404, -32601)


@pytest.mark.requirement("J-07", "C-01", "C-05", "C-08", "TL-02")
async def test_the_list_of_tools_is_complete_and_private(client: EndpointClient) -> None:
    """Calls between two lists do not change it."""
    before = await client.ask("tools/list")
    await client.call("echo", {"text": "x"})
    after = await client.ask("tools/list")

    result = before.json["result"]
    assert before.body == after.body
    assert [tool["name"] for tool in result["tools"]] == [
        "count_slowly",
        "delete_csv",
        "echo",
        "save_csv",
        "whoami",
    ]
    assert (result["resultType"], result["cacheScope"]) == ("complete", "private")
    assert isinstance(result["ttlMs"], int)
    assert result["_meta"][SERVER]["name"] == "gatepost"
    assert "nextCursor" not in result


async def test_a_cursor_that_the_server_did_not_issue_is_invalid(client: EndpointClient) -> None:
    """There is one page, so no cursor is right."""
    session = await client.open()

    modern = await client.ask("tools/list", {"cursor": "x"})
    legacy = await client.within(session, message("tools/list", {"cursor": ""}))

    assert modern.error == (400, -32602)
    assert legacy.error == (200, -32602)


TYPES = [
    ("application/json", True),
    ("application/json; charset=utf-8", True),
    ("APPLICATION/JSON", True),
    ("text/plain", False),
    ("application/x-www-form-urlencoded", False),
    ("application/jsonx", False),
    ("", False),
]


@pytest.mark.parametrize(("declared", "accepted"), TYPES)
async def test_a_post_is_json(client: EndpointClient, declared: str, accepted: bool) -> None:
    """A foreign page can post forms and plain text to another site without a preflight."""
    response = await client.send(message("ping"), [("content-type", declared)])

    if accepted:
        assert (response.status, response.json["result"]) == (200, {})
    else:
        assert response.error == (415, -32600)


async def test_a_compressed_body_is_refused(client: EndpointClient) -> None:
    """Its expanded size could exceed every limit."""
    response = await client.send(message("ping"), [JSON, ("content-encoding", "gzip")])

    assert response.error == (415, -32600)


@pytest.mark.requirement("T-05")
async def test_a_request_is_answered_by_one_json_object(client: EndpointClient) -> None:
    """Without messages before the result there is no event stream."""
    response = await client.call("echo", {"text": "x"})

    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["content-length"]) == len(response.body)
    assert response.json["jsonrpc"] == "2.0"


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "*/*", "image/png"])
async def test_accept_is_read_leniently(client: EndpointClient, accept: str) -> None:
    """Every client of this protocol reads JSON, whatever its `Accept` header says."""
    assert (await client.ask("tools/list", accept=accept)).status == 200


async def test_a_body_too_large_is_refused() -> None:
    """Its real length counts; the edge checks the declared one."""
    client = EndpointClient(limits=EndpointLimits(max_body_bytes=500))
    small, large = message("ping"), message("ping", {"x": "y" * 500})

    assert (await client.send(small)).status == 200
    assert (await client.send(large)).status == 413


async def test_a_user_of_a_suspended_tenant_gets_an_error_with_http_200() -> None:
    """A 401 or 403 would send the user through the sign-in again and again."""
    client = EndpointClient(suspended=frozenset({"acme"}))

    suspended = await client.call("echo", {"text": "x"})
    client.caller = a_caller(tenant_id="globex")
    served = await client.call("echo", {"text": "x"})

    assert suspended.error == (200, -31001)
    assert suspended.json["id"] == 7
    assert served.json["result"]["isError"] is False


async def test_a_session_opened_before_a_suspension_is_refused() -> None:
    """Neither a single message nor a batch is served."""
    before, after = EndpointClient(), EndpointClient(suspended=frozenset({"acme"}))
    session = await before.open("2025-03-26")
    call = message("tools/call", {"name": "echo", "arguments": {"text": "x"}})

    assert (await before.within(session, call)).status == 200
    for body in (call, b"[" + call + b"]"):
        assert (await after.within(session, body)).error == (200, -31001)
