"""Requests that no well-behaved client would send: each ends before a tool, in the same shape."""

from typing import Any

import pytest

from tests.rest.conftest import RUNS, TOOLS
from tests.support.client import RestClient, exchange, request
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import issuer_settings, running_server

TICKET = b'{"subject":"a"}'

BODIES = [
    ("nothing", b"", 415, "unsupported_media_type"),
    ("empty", b" ", 400, "invalid_body"),
    ("half", b'{"subject":', 400, "invalid_body"),
    ("two", TICKET + TICKET, 400, "invalid_body"),
    ("null", b"null", 422, "validation_error"),
    ("list", b"[" + TICKET + b"]", 422, "validation_error"),
    ("text", b'"subject"', 422, "validation_error"),
    ("number", b"1", 422, "validation_error"),
    ("doubled", b'{"subject":"a","subject":"b"}', 400, "invalid_body"),
    ("doubled-escaped", b'{"subject":"a","\\u0073ubject":"b"}', 400, "invalid_body"),
    ("doubled-inside", b'{"subject":"a","x":{"y":1,"y":2}}', 400, "invalid_body"),
    ("deep", b'{"subject":' + b"[" * 64 + b"]" * 64 + b"}", 400, "invalid_body"),
    ("very-deep", b'{"subject":' + b"[" * 9000 + b"]" * 9000 + b"}", 400, "invalid_body"),
    ("not-a-number", b'{"subject":NaN}', 400, "invalid_body"),
    ("infinite", b'{"subject":1e999}', 400, "invalid_body"),
    ("endless-number", b'{"subject":' + b"1" * 5000 + b"}", 400, "invalid_body"),
    ("half-a-character", b'{"subject":"\\ud800"}', 400, "invalid_body"),
    ("not-utf-8", b'{"subject":"\xff"}', 400, "invalid_body"),
    ("utf-16", TICKET.decode().encode("utf-16"), 400, "invalid_body"),
    ("byte-order-mark", b"\xef\xbb\xbf" + TICKET, 400, "invalid_body"),
    ("json-rpc", b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', 422, "validation_error"),
]


@pytest.mark.requirement("O4", "O6")
@each(("body", "status", "word"), [case[1:] for case in BODIES], ids=[case[0] for case in BODIES])
def test_a_body_that_is_no_argument_object_is_refused(
    rest_client: RestClient, body: bytes, status: int, word: str
) -> None:
    """Two parsers could read such a body differently, so Gatepost refuses it."""
    before = len(RUNS)

    assert rest_client.post("create_ticket", body).error == (status, word)
    assert len(RUNS) == before


def test_colons_and_quotes_within_strings_are_not_counted_as_members(
    rest_client: RestClient,
) -> None:
    """Members are counted outside of strings only."""
    body = rb'{"subject":"a:b \\","priority":"low"}'

    assert rest_client.post("create_ticket", body).status == 200
    assert rest_client.post("create_ticket", rb'{"subject":"\":{\":\\\\\""}').status == 200


TYPES = [
    ("text/plain", 415),
    ("application/x-www-form-urlencoded", 415),
    ("multipart/form-data; boundary=x", 415),
    ("application/jsonp", 415),
    ("text/plain; application/json", 415),
    ("application/json, text/plain", 415),
    ("", 415),
    ("application/json", 200),
    ("application/json; charset=utf-8", 200),
    ("Application/JSON", 200),
]


@pytest.mark.requirement("O6")
@pytest.mark.parametrize(("kind", "status"), TYPES)
def test_only_json_is_read(rest_client: RestClient, kind: str, status: int) -> None:
    """A foreign page can send a form without a preflight request."""
    client = rest_client.server.client
    head = [("Host", client.authority), ("Authorization", f"Bearer {rest_client.token}")]
    head += [("Content-Type", kind), ("Content-Length", str(len(TICKET))), ("Connection", "close")]
    answer = exchange(client.port, request("POST", "/tool/create_ticket/call", head, TICKET))

    assert answer.status == status
    assert answer.field("content-type") == "application/json"


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, identity"])
def test_a_compressed_body_is_not_unpacked(rest_client: RestClient, coding: str) -> None:
    """A small one may unpack to more than memory holds."""
    answer = rest_client.post("create_ticket", TICKET, ("Content-Encoding", coding))

    assert answer.error == (415, "unsupported_media_type")


HEADERS = [
    [("Content-Type", "text/plain")],
    [("X-Octopus-Correlation-Id", "a"), ("X-Octopus-Correlation-Id", "b")],
    [("Idempotency-Key", "a"), ("Idempotency-Key", "a")],
    [("X-Octopus-Correlation-Id", "")],
    [("X-Octopus-Correlation-Id", "a b")],
    [("X-Octopus-Correlation-Id", "é")],
    [("X-Octopus-Correlation-Id", "a" * 256)],
    [("Idempotency-Key", "a" * 256)],
    [("Idempotency-Key", "fine"), ("X-Octopus-Correlation-Id", "a\tb")],
]


@pytest.mark.requirement("O12", "O13")
@pytest.mark.parametrize("fields", HEADERS)
def test_an_invalid_or_repeated_key_header_is_refused(
    rest_client: RestClient, fields: list[tuple[str, str]]
) -> None:
    """Keys and correlation ids end up in logs and in headers to other systems."""
    before = len(RUNS)
    answer = rest_client.post("create_ticket", TICKET, *fields)

    assert answer.error == (400, "invalid_header")
    assert len(RUNS) == before


@pytest.mark.requirement("A6", "O13")
@pytest.mark.parametrize(
    "name",
    [
        "X-Tenant-Id", "X-Org-Id", "X-User", "X-Scopes", "X-Roles", "Gatepost-Tenant",
        "X-Gatepost-Caller", "X-Octopus-Tenant", "X_Octopus_Tenant_Id", "X-Octopus_Tenant-Id",
        "X-Forwarded-User", "Remote-User", "X-HTTP-Method-Override",
    ],
)  # fmt: skip
def test_a_header_that_claims_an_identity_is_ignored(rest_client: RestClient, name: str) -> None:
    """Gatepost drops the header before any code could trust it."""
    answer = rest_client.post("whoami", b"{}", (name, "globex"))

    assert (answer.status, answer.json["tenant"]) == (200, "acme")
    assert b"globex" not in answer.raw.body


NAMES = [
    "create_ticket%2F..%2Fecho", "create_ticket%2fcall", "..%2fecho", "%2e%2e", "echo%00",
    "echo%0a", "echo%20", "Echo", "ECHO", "echo;x", "echo?x=/call", "echo%3F", "ec%C4%A7o",
    "%EF%BD%85cho", "echo/../create_ticket", "/echo", "echo/", "{name}", "%7Bname%7D",
    "tool", "a" * 4000,
]  # fmt: skip


@pytest.mark.requirement("O11", "W15")
@each("name", NAMES, ids=lambda name: name[:30])
def test_no_other_spelling_reaches_a_tool(rest_client: RestClient, name: str) -> None:
    """Paths are compared without normalisation."""
    before = len(RUNS)
    answer = rest_client.post(name, b'{"text":"reached"}')

    assert answer.status in {404, 400, 405}
    assert answer.error[1] in {"not_found", "method_not_allowed"}
    assert b"reached" not in answer.raw.body
    assert len(RUNS) == before
    bare = rest_client.send("POST", f"/tool/{name}/call", body=b"{}", token="")
    assert bare.error == (401, "invalid_token")


PATHS = ["//tools", "/tools/", "/Tools", "/tools%2f", "/tools%0a", "/tools/x", "/t/acme/tools",
         "/mcp/tools", "/tools;x", "/./tools", "/tool", "/tool/echo", "/tool//call"]  # fmt: skip


@pytest.mark.requirement("W15")
@pytest.mark.parametrize("path", PATHS)
def test_the_tool_list_has_one_path(rest_client: RestClient, path: str) -> None:
    """Any other spelling is an unknown path: it needs a token and answers 404."""
    assert rest_client.send("GET", path, token="").error == (401, "invalid_token")
    assert rest_client.send("GET", path).error == (404, "not_found")


@pytest.mark.requirement("O6")
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_another_http_method_is_refused(rest_client: RestClient, method: str) -> None:
    """405 names the allowed method, and the tool does not run."""
    before = len(RUNS)
    raw = rest_client.server.client.send(
        method, "/tool/create_ticket/call", body=TICKET, token=rest_client.token
    )

    assert raw.status == 405
    assert raw.field("content-type") == "application/json"
    assert raw.field("allow") == "POST"
    assert len(RUNS) == before


def test_a_body_beyond_the_limit_is_refused_declared_or_not(idp: Idp) -> None:
    """Unread where the length is declared, as it comes where it is not."""
    small: dict[str, Any] = {"limits": {"max_body_bytes": 1000, "failures_per_second": 0}}
    with running_server(
        idp,
        [issuer_settings(idp)],
        tools={"load": [TOOLS]},
        tenancy={"create_on_first_use": True},
        **small,
    ) as server:
        rest_client = RestClient(server)
        big = b'{"subject":"%s"}' % (b"x" * 1000)
        declared = rest_client.post("create_ticket", big)
        head = [("Host", server.client.authority), ("Authorization", f"Bearer {rest_client.token}")]
        head += [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]
        head += [("Connection", "close")]
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(big), big)
        streamed = exchange(
            server.client.port, request("POST", "/tool/create_ticket/call", head, chunks)
        )

    assert declared.error == (413, "body_too_large")
    assert streamed.status == 413
    assert streamed.field("content-type") == "application/json"
    assert b'"error":"body_too_large"' in streamed.body


def test_a_suspended_tenant_is_refused_on_both_routes(idp: Idp) -> None:
    """Its tokens are valid, and no tool runs."""
    tenancy = {"create_on_first_use": True, "suspended": ["acme"]}
    with running_server(
        idp, [issuer_settings(idp)], tools={"load": [TOOLS]}, tenancy=tenancy
    ) as server:
        rest_client, other = RestClient(server), RestClient(server, server.token(org_id="globex"))

        assert rest_client.tools().error == (403, "tenant_suspended")
        assert rest_client.call("create_ticket", {"subject": "a"}).error == (
            403,
            "tenant_suspended",
        )
        assert other.tools().status == 200


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("ask_user", {}, (403, "denied")),
        ("answer_code", {"code": -32602}, (422, "validation_error")),
        ("answer_code", {"code": -32603}, (500, "internal_error")),
        ("answer_code", {"code": 7}, (400, "protocol_error")),
    ],
)
def test_mcp_only_outcomes_have_an_http_status(
    rest_client: RestClient, tool: str, arguments: dict[str, Any], error: tuple[int, str]
) -> None:
    """Such are a tool that asks its user and a tool that answers a JSON-RPC error."""
    assert rest_client.call(tool, arguments).error == error
