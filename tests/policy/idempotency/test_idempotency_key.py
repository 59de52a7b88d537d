"""How a call names its idempotency key, in either era, and what is no key."""

import pytest

from gatepost import CallContext, Pack
from gatepost.tools.context.idempotency_key import BadKey, idempotency_key_of
from gatepost.tools.offers.offer import Call, IdempotencyKey
from tests.support.connections import HOST, RecordedEdge, ask, recorded_edge
from tests.support.endpoint import JSON, META, VERSION, EndpointClient, a_caller, message
from tests.support.measuring import each

__all__ = ["recorded_edge"]  # a fixture

KEY, ID = b"idempotency-key", b"x-octopus-correlation-id"
META_KEY = "io.gatepost/idempotency-key"

KEY_CASES = [
    ({}, None, None),
    ({KEY: b"a"}, None, IdempotencyKey("idempotency", "a")),
    ({KEY: b' "8e03"\t'}, None, IdempotencyKey("idempotency", '"8e03"')),
    ({KEY: b"x" * 255}, None, IdempotencyKey("idempotency", "x" * 255)),
    ({ID: b"episode-xyz789"}, None, IdempotencyKey("correlation", "episode-xyz789")),
    ({ID: b"episode", KEY: b"a"}, None, IdempotencyKey("idempotency", "a")),
    ({ID: b"episode"}, "b", IdempotencyKey("idempotency", "b")),
    ({KEY: b"b"}, "b", IdempotencyKey("idempotency", "b")),
    ({}, "b", IdempotencyKey("idempotency", "b")),
]

REFUSED_KEYS = [
    ({KEY: b""}, None),
    ({KEY: b"x" * 256}, None),
    ({KEY: b"two words"}, None),
    ({KEY: b"caf\xc3\xa9"}, None),
    ({KEY: b"a\x00"}, None),
    ({KEY: b"a\n"}, None),
    ({ID: b" "}, None),
    ({}, ""),
    ({}, "x" * 256),
    ({}, "a\n"),
    ({}, "\u0661"),
    ({KEY: b"a"}, "b"),
]


@pytest.mark.parametrize(("headers", "named", "expected"), KEY_CASES)
def test_an_idempotency_key_is_found(
    headers: dict[bytes, bytes], named: str | None, expected: IdempotencyKey | None
) -> None:
    """An idempotency key promises more than a correlation id, so it wins."""
    assert idempotency_key_of(headers, named) == expected


@each(("headers", "named"), REFUSED_KEYS)
def test_an_invalid_idempotency_key_is_refused(
    headers: dict[bytes, bytes], named: str | None
) -> None:
    """A key that is dropped in silence would make a client believe that its retry is safe."""
    with pytest.raises(BadKey):
        idempotency_key_of(headers, named)


pack = Pack("keys")


@pack.tool()
async def act(ctx: CallContext) -> str:
    """Do something."""
    return "done"


class KeyClient(EndpointClient):
    """A client that keeps the idempotency key of every call."""

    def __init__(self) -> None:
        super().__init__(pack.tools.values())
        self.keys: list[IdempotencyKey | None] = []

    def _context(self, call: Call) -> CallContext:
        self.keys.append(call.idempotency_key)
        return super()._context(call)


CALL = {"name": "act", "arguments": {}}
KEYS_BY_REQUEST = [
    ({}, {}, None),
    ({"idempotency-key": "k1"}, {}, IdempotencyKey("idempotency", "k1")),
    ({}, {META_KEY: "k1"}, IdempotencyKey("idempotency", "k1")),
    ({"x-octopus-correlation-id": "e1"}, {}, IdempotencyKey("correlation", "e1")),
]


@pytest.mark.parametrize(("headers", "meta", "expected"), KEYS_BY_REQUEST)
async def test_both_eras_read_the_same_keys(
    headers: dict[str, str], meta: dict[str, str], expected: IdempotencyKey | None
) -> None:
    """Header or `_meta`, with or without a session."""
    client = KeyClient()
    await client.ask("tools/call", CALL, meta=meta, **headers)
    # Another caller, since the same caller's second call would not run.
    client.caller = a_caller(subject="bob")
    session = await client.open()
    body = message("tools/call", {**CALL, "_meta": meta})
    await client.within(session, body, *headers.items())

    assert client.keys == [expected, expected]


@pytest.mark.parametrize(
    ("headers", "meta"),
    [
        ({"idempotency-key": "two words"}, {}),
        ({"idempotency-key": "a"}, {META_KEY: "b"}),
        ({}, {META_KEY: ""}),
        ({}, {META_KEY: 7}),
    ],
)
async def test_an_invalid_key_is_refused_before_the_tool_runs(
    headers: dict[str, str], meta: dict[str, object]
) -> None:
    """-32602 in both eras."""
    client = KeyClient()
    modern = await client.ask("tools/call", CALL, meta=meta, **headers)
    session = await client.open()
    body = message("tools/call", {**CALL, "_meta": meta})
    legacy = await client.within(session, body, *headers.items())

    assert modern.error == (400, -32602)
    assert legacy.json["error"]["code"] == -32602
    assert client.keys == []


@pytest.mark.parametrize("name", ["idempotency-key", "x-octopus-correlation-id"])
async def test_a_key_that_came_twice_is_refused(name: str) -> None:
    """Programs could read different ones of the two."""
    client = KeyClient()
    meta = {META + "protocolVersion": VERSION, META + "clientCapabilities": {}}
    mirrored = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/call")]
    headers = [JSON, *mirrored, ("mcp-name", "act"), (name, "a"), (name, "b")]
    response = await client.send(message("tools/call", {**CALL, "_meta": meta}), headers)

    assert response.status == 400
    assert client.keys == []


@pytest.mark.parametrize("name", [KEY, ID])
async def test_idempotency_headers_pass_the_edge(recorded_edge: RecordedEdge, name: bytes) -> None:
    """`X-Octopus-Correlation-Id` resembles a header that names the caller, and is none."""
    await ask(recorded_edge.edge, headers=(HOST, (name, b"episode-xyz789")))

    assert (name, b"episode-xyz789") in recorded_edge.inner.scopes[0]["headers"]


async def test_web_pages_may_send_idempotency_headers(recorded_edge: RecordedEdge) -> None:
    """A preflight names both."""
    page = (b"origin", b"https://app.example.com")
    headers = (HOST, page, (b"access-control-request-method", b"POST"))
    answer = await ask(recorded_edge.edge, method="OPTIONS", headers=headers)
    allowed = str(answer.headers.get("access-control-allow-headers")).lower()

    assert "idempotency-key" in allowed
    assert "x-octopus-correlation-id" in allowed
