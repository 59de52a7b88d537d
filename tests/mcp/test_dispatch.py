"""The dispatch table: one test per row, through the endpoint."""

import json

import pytest

from tests.mcp import fixture_tools
from tests.support.endpoint import JSON, META, VERSION, EndpointClient, a_caller, message

LEGACY_REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
HANDSHAKE_ONLY = (
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
)
SERVED_MESSAGES = [
    json.loads(message("ping", identity="a")),
    json.loads(message("notifications/initialized", identity=None)),
    json.loads(message("tools/call", {"name": "echo", "arguments": {"text": "x"}})),
]
REFUSED_MESSAGES = [
    {"jsonrpc": "2.0", "id": None, "method": "ping"},
    {"jsonrpc": "2.0", "id": 4, "result": {}},
]


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient()


@pytest.mark.requirement("DE-01")
@pytest.mark.parametrize("method", [*HANDSHAKE_ONLY, "unknown/method"])
async def test_de_01_a_modern_version_in_meta_excludes_older_methods(
    client: EndpointClient, method: str
) -> None:
    """With a modern version in `_meta`, a method of the handshake era is unknown."""
    response = await client.ask(method)

    assert response.error == (404, -32601)
    assert response.json["id"] == 7


@pytest.mark.requirement("DE-01")
async def test_de_01_a_modern_request_needs_no_handshake(client: EndpointClient) -> None:
    """The first request of a new connection is answered as any other."""
    response = await client.call("echo", {"text": "hello"})

    assert response.json["result"]["content"] == [{"type": "text", "text": "hello"}]


@pytest.mark.requirement("DE-02", "S-18")
@pytest.mark.parametrize("version", [VERSION, "2030-01-01", "nonsense"])
async def test_de_02_a_modern_header_without_meta_names_the_missing_keys(
    client: EndpointClient, version: str
) -> None:
    """The header alone is no request of that era; the answer says which keys it lacks."""
    response = await client.send(
        message("tools/list", {}), [JSON, ("mcp-protocol-version", version)]
    )

    assert response.error == (400, -32602)
    assert META + "protocolVersion" in response.json["error"]["message"]
    assert META + "clientCapabilities" in response.json["error"]["message"]


@pytest.mark.requirement("DE-03", "H-01", "H-09")
@pytest.mark.parametrize("header", [None, "2025-11-25", "2030-01-01", ""])
async def test_de_03_header_and_body_must_name_the_same_version(
    client: EndpointClient, header: str | None
) -> None:
    """A proxy may route by the header, so the header must not name another version."""
    if header is None:
        response = await client.ask("tools/list", drop=["mcp-protocol-version"])
    else:
        response = await client.ask("tools/list", mcp_protocol_version=header)

    assert response.error == (400, -32020)
    assert response.json["id"] == 7


@pytest.mark.requirement("DE-04", "V-04")
async def test_de_04_a_version_that_is_not_served_is_answered_with_those_that_are(
    client: EndpointClient,
) -> None:
    """The client learns which version to try next."""
    response = await client.ask(
        "tools/list", meta={META + "protocolVersion": "v999.0.0"}, mcp_protocol_version="v999.0.0"
    )

    assert response.error == (400, -32022)
    data = {"supported": [VERSION, *LEGACY_REVISIONS], "requested": "v999.0.0"}
    assert response.json["error"]["data"] == data


@pytest.mark.requirement("DE-05", "L-01", "L-02", "S-14")
@pytest.mark.parametrize("version", LEGACY_REVISIONS)
@pytest.mark.parametrize("with_header", [True, False])
async def test_de_05_initialize_opens_a_session(
    client: EndpointClient, version: str, with_header: bool
) -> None:
    """The handshake answers the version asked for and an id that fits a header."""
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x"}}
    headers = [JSON, ("mcp-protocol-version", version)] if with_header else [JSON]
    response = await client.send(message("initialize", params, identity=0), headers)

    result = response.json["result"]
    assert (response.status, result["protocolVersion"]) == (200, version)
    assert result["serverInfo"] == {"name": "gatepost", "version": "1.0"}
    assert all(0x21 <= ord(letter) <= 0x7E for letter in response.headers["mcp-session-id"])


@pytest.mark.requirement("DE-06")
async def test_de_06_a_session_serves_its_requests(client: EndpointClient) -> None:
    """The answer has the form of the negotiated revision."""
    session = await client.open()

    response = await client.within(
        session, message("tools/call", {"name": "echo", "arguments": {"text": "hello"}})
    )

    assert response.json["result"] == {
        "content": [{"type": "text", "text": "hello"}],
        "structuredContent": {"result": "hello"},
        "isError": False,
    }


@pytest.mark.requirement("DE-06", "S-16", "S-20")
@pytest.mark.parametrize(
    "change",
    [
        {"tenant_id": "globex"},
        {"issuer": "https://other.example.com"},
        {"subject": "bob"},
        {"subject_kind": "client"},
        {"client_id": "other-client"},
        {"client_id": None},
    ],
)
async def test_de_06_the_session_of_another_caller_is_unknown(
    client: EndpointClient, change: dict
) -> None:
    """A stolen session id gets the answer of an unknown one."""
    session = await client.open()
    client.caller = a_caller(**change)

    stolen = await client.within(session, message("ping"))
    invented = await client.within("invented", message("ping"))

    assert stolen.status == 404
    assert (stolen.status, stolen.body) == (invented.status, invented.body)


@pytest.mark.requirement("DE-06", "S-16")
async def test_de_06_a_session_expires_after_a_week(client: EndpointClient) -> None:
    """The client has to open a new one."""
    session = await client.open()
    client.clock.now += 7 * 86_400

    assert (await client.within(session, message("ping"))).status == 404


@pytest.mark.requirement("DE-07", "DE-25")
@pytest.mark.parametrize("version", [None, *LEGACY_REVISIONS])
async def test_de_07_a_list_request_is_served_without_a_session(
    client: EndpointClient, version: str | None
) -> None:
    """The answer is that of a session of the named revision, or of 2025-03-26."""
    headers = [JSON] if version is None else [JSON, ("mcp-protocol-version", version)]
    listed = await client.send(message("tools/list"), headers)
    session = await client.open(version or "2025-03-26")
    expected = await client.within(session, message("tools/list"))

    assert (listed.status, listed.body) == (200, expected.body)
    assert "mcp-session-id" not in listed.headers


@pytest.mark.requirement("DE-07", "DE-25")
@pytest.mark.parametrize("method", ["logging/setLevel", "resources/subscribe"])
async def test_de_07_setting_a_level_and_subscribing_need_a_session(method: str) -> None:
    """The error names `Mcp-Session-Id`."""
    response = await EndpointClient(fixture_tools.resource_pack.offers).send(
        message(method, {"uri": "a:b", "level": "info"})
    )

    assert response.error == (400, -32600)
    assert "Mcp-Session-Id" in response.json["error"]["message"]


@pytest.mark.requirement("DE-08")
async def test_de_08_a_handshake_version_in_meta_counts_only_within_a_session(
    client: EndpointClient,
) -> None:
    """In a session the extra `_meta` is ignored; outside of one the request is refused."""
    session = await client.open()
    meta = {META + "protocolVersion": "2025-11-25", META + "clientCapabilities": {}}
    body = message("tools/list", {"_meta": meta})
    agreed, other = ("mcp-protocol-version", "2025-11-25"), ("mcp-protocol-version", "2025-06-18")

    within = await client.within(session, body, agreed)
    without = await client.send(body, [JSON, agreed])
    lost = await client.within("invented", body, agreed)
    torn = await client.within(session, body, other)

    assert "tools" in within.json["result"]
    assert "resultType" not in within.json["result"]
    assert without.error == lost.error == (400, -32022)
    assert without.json["error"]["data"]["supported"] == [VERSION]
    assert torn.error == (400, -32020)


@pytest.mark.requirement("DE-09", "J-09")
async def test_de_09_the_one_revision_with_batches_gets_them(client: EndpointClient) -> None:
    """A batch is served in order; what wants no answer gets none."""
    session = await client.open("2025-03-26")
    again = json.loads(message("initialize", {"protocolVersion": "2025-03-26"}, identity=3))
    batch = [*SERVED_MESSAGES, again, *REFUSED_MESSAGES]

    response = await client.within(session, json.dumps(batch).encode())
    only_notes = await client.within(session, json.dumps([SERVED_MESSAGES[1]]).encode())

    ping, echo, again, unreadable = response.json
    assert ping == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert echo["result"]["content"] == [{"type": "text", "text": "x"}]
    assert again["error"]["code"] == unreadable["error"]["code"] == -32600
    assert (only_notes.status, only_notes.body) == (202, b"")


@pytest.mark.requirement("DE-09", "J-10")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_de_09_every_other_revision_refuses_batches(
    client: EndpointClient, version: str
) -> None:
    """This holds in a session of another revision, without one, and in the modern era."""
    session = await client.open(version)
    body = b"[" + message("ping") + b"]"

    in_session = await client.within(session, body)
    in_none = await client.send(body, [JSON, ("mcp-protocol-version", version)])
    modern = await client.send(body, [JSON, ("mcp-protocol-version", VERSION)])

    assert in_session.error == in_none.error == modern.error == (400, -32600)


@pytest.mark.requirement("DE-09")
@pytest.mark.parametrize("size", [0, 51])
async def test_de_09_an_empty_or_huge_batch_is_refused(client: EndpointClient, size: int) -> None:
    """A batch is no way around the limits on requests."""
    session = await client.open("2025-03-26")
    body = b"[" + b",".join([message("ping")] * size) + b"]"

    assert (await client.within(session, body)).error == (400, -32600)


@pytest.mark.requirement("DE-09", "J-09")
@pytest.mark.parametrize("headers", [[JSON], [JSON, ("mcp-protocol-version", "2025-03-26")]])
async def test_de_09_a_batch_needs_no_session(client: EndpointClient, headers: list) -> None:
    """Each request of the batch is answered like a single request."""
    unknown = json.loads(message("tools/call", {"name": "no_such_tool"}, identity=3))
    batch = [*SERVED_MESSAGES, unknown, *REFUSED_MESSAGES]

    response = await client.send(json.dumps(batch).encode(), headers)
    only_notes = await client.send(json.dumps([SERVED_MESSAGES[1]]).encode(), headers)
    empty = await client.send(b"[]", headers)

    ping, echo, unknown, unreadable = response.json
    assert ping == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert echo["result"]["content"] == [{"type": "text", "text": "x"}]
    assert (unknown["error"]["code"], unreadable["error"]["code"]) == (-32602, -32600)
    assert (only_notes.status, only_notes.body) == (202, b"")
    assert empty.error == (400, -32600)


@pytest.mark.requirement("DE-10", "S-03")
async def test_de_10_a_response_is_accepted_only_in_a_session(client: EndpointClient) -> None:
    """A response without a session, or of a modern client, is refused."""
    session = await client.open()
    body = b'{"jsonrpc":"2.0","id":1,"result":{}}'

    within = await client.within(session, body)
    without = await client.send(body)
    modern = await client.within(session, body, ("mcp-protocol-version", VERSION))
    lost = await client.within("invented", body)

    assert (within.status, within.body) == (202, b"")
    assert without.error == modern.error == (400, -32600)
    assert lost.status == 404


@pytest.mark.requirement("DE-11", "T-06", "S-03", "J-05")
async def test_de_11_a_notification_is_accepted_and_never_answered(client: EndpointClient) -> None:
    """The answer is an empty 202; in the modern era the notification has no effect."""
    session = await client.open()
    body = message("notifications/initialized", identity=None)

    modern = await client.send(body, [JSON, ("mcp-protocol-version", VERSION)])
    legacy = await client.within(session, body)
    unserved = await client.send(body, [JSON, ("mcp-protocol-version", "2030-01-01")])
    stray = await client.send(body)

    assert (stray.status, stray.body) == (202, b"")
    assert (modern.status, modern.body) == (legacy.status, legacy.body) == (202, b"")
    assert "content-type" not in modern.headers
    assert unserved.error == (400, -32022)
    assert "id" not in unserved.json


@pytest.mark.requirement("DE-12", "DE-13", "T-01")
@pytest.mark.parametrize("verb", ["GET", "DELETE", "PUT", "HEAD", "PATCH"])
@pytest.mark.parametrize("version", [VERSION, "2030-01-01"])
async def test_de_12_de_13_a_modern_request_is_a_post(
    client: EndpointClient, verb: str, version: str
) -> None:
    """No stream to open and no session to end there, whatever session is named beside it."""
    session = await client.open()
    headers = [("mcp-protocol-version", version), ("mcp-session-id", session)]
    response = await client.send(b"", headers, verb=verb)

    assert (response.status, response.headers["allow"]) == (405, "POST")
    assert response.json["error"]["code"] == -32600
    assert (await client.within(session, message("ping"))).status == 200


@pytest.mark.requirement("DE-12", "DE-13", "S-01")
@pytest.mark.parametrize("verb", ["PUT", "HEAD", "PATCH"])
async def test_de_12_de_13_a_session_has_three_verbs(client: EndpointClient, verb: str) -> None:
    """Every other HTTP method is refused and has no effect."""
    response = await client.send(b"", [("mcp-session-id", await client.open())], verb=verb)

    assert (response.status, response.headers["allow"]) == (405, "GET, POST, DELETE")


@pytest.mark.requirement("DE-12", "DE-13", "DE-07", "S-15", "S-16")
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
async def test_de_12_de_13_get_and_delete_need_a_live_session(
    client: EndpointClient, verb: str
) -> None:
    """No session id gives 400; an unknown or another caller's id gives 404 and ends no session."""
    session = await client.open()
    none = await client.send(b"", [], verb=verb)
    unknown = await client.send(b"", [("mcp-session-id", "invented")], verb=verb)
    client.caller = a_caller(subject="bob")
    stolen = await client.send(b"", [("mcp-session-id", session)], verb=verb)
    client.caller = a_caller()

    assert none.error == (400, -32600)
    assert unknown.error == (404, -32600)
    assert (stolen.status, stolen.body) == (unknown.status, unknown.body)
    assert (await client.within(session, message("ping"))).status == 200


@pytest.mark.requirement("DE-14")
async def test_de_14_a_modern_request_ignores_session_and_event_ids(client: EndpointClient) -> None:
    """Headers of the older transport have no effect and are not returned."""
    response = await client.ask("tools/list", mcp_session_id="invented", last_event_id="1")

    assert response.status == 200
    assert "mcp-session-id" not in response.headers


@pytest.mark.requirement("DE-15", "L-02")
@pytest.mark.parametrize("requested", [VERSION, "2024-11-05", "2030-01-01", ""])
async def test_de_15_initialize_offers_a_version_that_has_a_handshake(
    client: EndpointClient, requested: str
) -> None:
    """A version that is not served is met by the newest that is, never by 2026-07-28."""
    response = await client.send(message("initialize", {"protocolVersion": requested}, identity=0))

    assert response.json["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.requirement("DE-21", "J-03")
async def test_de_21_every_modern_rejection_has_a_body_that_names_its_request(
    client: EndpointClient,
) -> None:
    """A client that reads an empty 400 takes us for an older server and starts a handshake."""
    for response in [
        await client.ask("nope"),
        await client.ask("tools/call", {"name": "nope"}),
        await client.ask("tools/list", drop=["mcp-method"]),
        await client.ask("tools/list", meta={META + "clientCapabilities": 1}),
        await client.ask("tools/list", {"cursor": "x"}),
    ]:
        assert 400 <= response.status < 500
        assert response.json["id"] == 7
        assert isinstance(response.json["error"]["message"], str)


@pytest.mark.requirement("DE-22", "J-11")
async def test_de_22_an_unknown_method_ends_no_session(client: EndpointClient) -> None:
    """HTTP 404 would make the client throw its session away."""
    session = await client.open()

    response = await client.within(session, message("resources/list"))

    assert response.error == (200, -32601)
