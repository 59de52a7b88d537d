"""Every JSON-RPC message of any client gets a documented answer, never a 500."""

import json
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.endpoint import JSON, META, VERSION, EndpointClient, Response, message
from tests.support.measuring import each

MODERN_HEADERS = [JSON, ("mcp-protocol-version", VERSION)]
MODERN_META = {META + "protocolVersion": VERSION, META + "clientCapabilities": {}}


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient()


async def session_of(client: EndpointClient, body: bytes, version: str = "2025-11-25") -> Response:
    return await client.within(await client.open(version), body)


GOOD_IDS = [
    "1",
    "0",
    "-5",
    "1.5",
    "1.0",
    "-0.50",
    "1e3",
    "2E-7",
    "9" * 500,
    '"a"',
    '""',
    '"ü"',
    r'"\u0041\n"',
    '"' + "x" * 500 + '"',
]


@pytest.mark.requirement("J-02", "J-03")
@pytest.mark.parametrize("identity", GOOD_IDS)
async def test_an_id_is_returned_unchanged(client: EndpointClient, identity: str) -> None:
    """Strings and numbers of any size, in a session and without, in every era."""
    body = b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % identity.encode()
    modern = message("tools/list", {"_meta": MODERN_META}, identity="@")
    answers = [
        await session_of(client, body),
        await client.send(body),
        await client.send(
            modern.replace(b'"@"', identity.encode()),
            [*MODERN_HEADERS, ("mcp-method", "tools/list")],
        ),
    ]

    for response in answers:
        assert response.status == 200
        assert response.json["id"] == json.loads(identity)
        if identity[0] != '"':
            assert b'"id":%b,' % identity.encode() in response.body


BAD_IDS = [
    "null",
    "1.",
    ".5",
    "+1",
    "01.5",
    "1e",
    "NaN",
    "true",
    "[]",
    "{}",
    '"' + "x" * 2000 + '"',
    "9" * 2000,
]


@pytest.mark.requirement("J-02", "J-03")
@pytest.mark.parametrize("identity", BAD_IDS)
async def test_an_invalid_id_is_refused_and_not_repeated(
    client: EndpointClient, identity: str
) -> None:
    """Such an error has no id, because null would be a value."""
    body = b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % identity.encode()
    response = await session_of(client, body)

    status, code = response.error
    assert status == 400
    if code == -32700:
        assert response.json["id"] is None  # what is no number is no JSON either
    else:
        assert code == -32600
        assert "id" not in response.json


@pytest.mark.requirement("J-01")
@pytest.mark.parametrize("member", ["id", "method", "params"])
async def test_a_body_that_is_not_utf8_is_a_parse_error(
    client: EndpointClient, member: str
) -> None:
    """This holds in each member: repeating such bytes would make our answer invalid."""
    text = message("ping", "@").replace(b'"@"', b'{"a":"@"}').replace(b": 7", b': "@"')
    body = {"id": text, "method": text.replace(b"ping", b"@"), "params": text}[member]
    response = await session_of(client, body.replace(b"@", b"\xff"))

    assert response.error == (400, -32700)


@pytest.mark.parametrize("identity", [rb'"\ud800"', rb'"\udc00\ud800"'])
async def test_an_id_with_a_lone_surrogate_is_refused_and_not_repeated(
    client: EndpointClient, identity: bytes
) -> None:
    """It is refused like any other invalid id."""
    body = b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % identity

    assert (await session_of(client, body)).status == 400


NOT_MESSAGES = [
    # body                                                        code
    (b"", -32700),
    (b"{", -32700),
    (b"nonsense", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"} x', -32700),
    (b"\xff\xfe{}", -32700),
    (b"1", -32600),
    (b'"text"', -32600),
    (b"null", -32600),
    (b"{}", -32600),
    (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    (b'{"id":1,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":1}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":""}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', -32600),
    (b'{"jsonrpc":"2.0","result":{}}', -32600),
]


@pytest.mark.requirement("J-01", "J-04", "J-06")
@each(("body", "code"), NOT_MESSAGES)
async def test_a_body_that_is_no_message_gets_a_json_rpc_error(
    client: EndpointClient, body: bytes, code: int
) -> None:
    """The answer has HTTP 400, in a session and without."""
    for response in (await session_of(client, body), await client.send(body, MODERN_HEADERS)):
        assert response.error == (400, code)
        assert isinstance(response.json["error"]["message"], str)
        if code == -32700:
            assert response.json["id"] is None


async def test_an_error_carries_the_id_where_one_could_be_read(client: EndpointClient) -> None:
    """The client finds its request again even when the rest is wrong."""
    response = await client.send(b'{"jsonrpc":"2.0","id":"x","method":5}')

    assert (response.error, response.json["id"]) == ((400, -32600), "x")


# Python 3.14 counts values at a depth that the decoder of earlier versions refuses.
DEEPEST_STATUS = 413 if sys.version_info >= (3, 14) else 400
STATUS_BY_DEPTH = [(61, 200), (62, 400), (900, 400), (100_000, DEEPEST_STATUS)]


@pytest.mark.parametrize(("depth", "status"), STATUS_BY_DEPTH)
async def test_nesting_deeper_than_64_levels_is_refused(
    client: EndpointClient, depth: int, status: int
) -> None:
    """64 levels with the envelope's own, whatever they are made of; brackets in text are text."""
    deep = b"[" * depth + b"]" * depth
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":{"b":%b}}}' % deep

    assert (await session_of(client, body)).status == status
    harmless = message("ping", {"text": "[{" * depth, "quote": '\\"[['})
    assert (await session_of(client, harmless)).status == 200


async def test_many_brackets_on_one_level_are_allowed(client: EndpointClient) -> None:
    """A list of ten thousand rows is two levels."""
    body = message("ping", {"rows": [{"a": [1]}] * 10_000})

    assert (await session_of(client, body)).status == 200


@pytest.mark.requirement("J-12", "DE-20")
async def test_any_replica_continues_a_session(client: EndpointClient) -> None:
    """A process with the same key ring accepts the session id of another one."""
    session = await client.open()
    replica = EndpointClient(keyring=client.keyring)

    assert (await replica.within(session, message("ping"))).json["result"] == {}


@pytest.mark.requirement("L-05")
async def test_ping_answers_an_object_without_members(client: EndpointClient) -> None:
    """It has no `_meta`, either, because the conformance suite counts the keys."""
    assert (await session_of(client, message("ping"))).json == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {},
    }


@pytest.mark.requirement("L-01")
@pytest.mark.parametrize(
    "params", [None, {}, {"protocolVersion": 1}, {"protocolVersion": "x", "capabilities": 1}, []]
)
async def test_a_malformed_initialize_is_a_parameter_error(
    client: EndpointClient, params: object
) -> None:
    """The answer is a parameter error, and no session is opened."""
    response = await client.send(message("initialize", params, identity=0))

    assert response.error == (200, -32602)
    assert "mcp-session-id" not in response.headers


@pytest.mark.requirement("L-04", "DE-24")
async def test_a_session_id_stays_short_for_any_client_capabilities(client: EndpointClient) -> None:
    """The id fits a header, whatever the client declares."""
    capabilities = {"sampling": {}, "elicitation": {"url": {}}, "x" * 5000: {"y": 1}, "roots": 5}
    session = await client.open(capabilities=capabilities)

    assert len(session) < 400
    assert (await client.within(session, message("ping"))).status == 200


async def test_a_session_is_initialized_once(client: EndpointClient) -> None:
    """A second `initialize` in it is refused; the session goes on."""
    session = await client.open()
    again = message("initialize", {"protocolVersion": "2025-11-25"})

    assert (await client.within(session, again)).error == (200, -32600)
    assert (await client.within(session, message("ping"))).status == 200


DOCUMENTED_CODES = {-32700, -32600, -32601, -32602, -32020, -32022}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
METHODS = st.sampled_from(
    [
        "ping",
        "initialize",
        "tools/list",
        "tools/call",
        "server/discover",
        "notifications/cancelled",
        "nope",
    ]
)
METAS = st.fixed_dictionaries(
    {},
    optional={
        META + "protocolVersion": st.sampled_from([VERSION, "2025-11-25", "x", ""]) | ANY_JSON,
        META + "clientCapabilities": st.just({}) | ANY_JSON,
        "progressToken": ANY_JSON,
    },
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "_meta": METAS | ANY_JSON,
        "name": st.sampled_from(["echo", "save_csv", "nope"]) | ANY_JSON,
        "arguments": st.fixed_dictionaries({}, optional={"text": ANY_JSON}) | ANY_JSON,
        "cursor": ANY_JSON,
        "protocolVersion": st.sampled_from([VERSION, "2025-03-26"]) | ANY_JSON,
        "capabilities": ANY_JSON,
        "requestId": ANY_JSON,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | ANY_JSON},
    optional={
        "id": st.integers() | st.text(max_size=5) | ANY_JSON,
        "method": METHODS | ANY_JSON,
        "params": PARAMS | ANY_JSON,
        "result": ANY_JSON,
        "error": ANY_JSON,
    },
)
BODIES = (
    st.binary(max_size=60)
    | MESSAGES.map(lambda value: json.dumps(value).encode())
    | MESSAGES.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    | MESSAGES.map(lambda value: json.dumps(value).encode().replace(b"e", b"\xff", 1))
    | st.lists(MESSAGES, max_size=3).map(lambda value: json.dumps(value).encode())
)
PARAMETER_VALUES = st.sampled_from(
    [VERSION, "2025-11-25", "2025-03-26", "tools/call", "echo", "=?base64?ZWNobw==?=", "", "é"]
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id", "accept"]
        ),
        PARAMETER_VALUES | st.text(st.characters(max_codepoint=255), max_size=10),
    ),
    max_size=5,
)


def assert_documented(response: Response) -> None:
    if response.status == 202:
        assert response.body == b""
        return
    assert response.status in (200, 400, 404, 403)
    answers: Any = response.json
    for answer in answers if isinstance(answers, list) else [answers]:
        assert answer["jsonrpc"] == "2.0"
        assert ("result" in answer) != ("error" in answer)
        if "error" in answer:
            assert answer["error"]["code"] in DOCUMENTED_CODES | {-31002}


@pytest.mark.requirement("J-01", "J-06", "J-18")
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=BODIES, headers=HEADERS, in_session=st.booleans())
async def test_any_body_and_headers_get_a_documented_answer(
    client: EndpointClient, body: bytes, headers: list[tuple[str, str]], in_session: bool
) -> None:
    """No body and no header causes an unhandled exception."""
    if in_session:
        headers = [*headers, ("mcp-session-id", await client.open("2025-03-26"))]

    assert_documented(await client.send(body, [JSON, *headers]))
