"""The edge: each check by its table of cases, and what the middleware around them promises."""

import logging

import pytest

from gatepost.http.scope import REQUEST_ID
from tests.support.connections import HOST, PAGE, Pairs, RecordedEdge, ask, recorded_edge

__all__ = ["recorded_edge"]  # a fixture

REFUSED_REQUESTS: list[tuple[str, str, str, Pairs, int, str]] = [
    ("no host", "POST", "/mcp", (), 400, "bad_host"),
    ("two hosts", "POST", "/mcp", (HOST, HOST), 400, "bad_host"),
    ("foreign host", "POST", "/mcp", ((b"host", b"evil.example"),), 421, "foreign_host"),
    ("host with a path", "POST", "/mcp", ((b"host", b"evil/x?"),), 421, "foreign_host"),
    ("host by prefix", "POST", "/mcp", ((b"host", b"mcp.example.com.evil"),), 421, "foreign_host"),
    ("host, other port", "POST", "/mcp", ((b"host", b"mcp.example.com:8"),), 421, "foreign_host"),
    ("null origin", "POST", "/mcp", (HOST, (b"origin", b"null")), 403, "forbidden_origin"),
    ("foreign origin", "POST", "/mcp", (HOST, (b"origin", b"https://e")), 403, "forbidden_origin"),
    ("two origins", "POST", "/mcp", (HOST, *[(b"origin", PAGE)] * 2), 403, "forbidden_origin"),
    (
        "origin with a path",
        "POST",
        "/mcp",
        (HOST, (b"origin", PAGE + b"/x")),
        403,
        "forbidden_origin",
    ),
    (
        "origin by prefix",
        "POST",
        "/mcp",
        (HOST, (b"origin", PAGE + b".evil.example")),
        403,
        "forbidden_origin",
    ),
    (
        "extension origin",
        "POST",
        "/mcp",
        (HOST, (b"origin", b"chrome-extension://abc")),
        403,
        "forbidden_origin",
    ),
    ("trace", "TRACE", "/mcp", (HOST,), 405, "method_not_allowed"),
    ("connect", "CONNECT", "/mcp", (HOST,), 405, "method_not_allowed"),
    ("options alone", "OPTIONS", "/mcp", (HOST,), 405, "method_not_allowed"),
    ("huge body", "POST", "/mcp", (HOST, (b"content-length", b"1001")), 413, "body_too_large"),
    ("bad length", "POST", "/mcp", (HOST, (b"content-length", b"1e3")), 400, "bad_length"),
    (
        "two lengths",
        "POST",
        "/mcp",
        (HOST, (b"content-length", b"2"), (b"content-length", b"3")),
        400,
        "ambiguous_length",
    ),
    (
        "length and chunks",
        "POST",
        "/mcp",
        (HOST, (b"content-length", b"2"), (b"transfer-encoding", b"chunked")),
        400,
        "ambiguous_length",
    ),
    (
        "compressed body",
        "POST",
        "/mcp",
        (HOST, (b"transfer-encoding", b"gzip, chunked")),
        501,
        "unknown_coding",
    ),
    ("long header", "POST", "/mcp", (HOST, (b"x-a", b"a" * 2001)), 431, "headers_too_large"),
    ("many headers", "POST", "/mcp", (HOST, *[(b"a", b"b")] * 100), 431, "too_many_headers"),
]


@pytest.mark.requirement("W13", "W16", "W17", "W20", "W22")
@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [case[1:] for case in REFUSED_REQUESTS],
    ids=[case[0] for case in REFUSED_REQUESTS],
)
async def test_the_edge_refuses_invalid_requests_before_a_token_is_read(
    recorded_edge: RecordedEdge, method: str, path: str, headers: Pairs, status: int, code: str
) -> None:
    """Each refusal has its status and code in a body without an id."""
    answer = await ask(recorded_edge.edge, path, method=method, headers=headers)

    assert answer.status == status
    assert answer.json["error"]["data"]["error"] == code
    assert "id" not in answer.json
    assert answer.headers.get("x-request-id") == answer.json["error"]["data"]["request_id"]
    assert recorded_edge.inner.scopes == []


CHECK_ORDER: list[tuple[str, str, Pairs]] = [
    ("method_not_allowed", "OPTIONS", ()),
    ("https_required", "TRACE", ()),
    ("method_not_allowed", "TRACE", ()),
    ("headers_too_large", "POST", ((b"x-a", b"a" * 2001),)),
    ("bad_length", "POST", ((b"content-length", b"x"),)),
    ("foreign_host", "POST", ((b"host", b"evil.example"),)),
    ("forbidden_origin", "POST", (HOST, (b"origin", b"https://e"))),
]
"""Each request breaks the rule of its refusal and those of all refusals below."""


@pytest.mark.parametrize(
    "position", range(len(CHECK_ORDER)), ids=[f"{c}-{m}" for c, m, _ in CHECK_ORDER]
)
async def test_edge_checks_run_in_the_documented_order(
    recorded_edge: RecordedEdge, position: int
) -> None:
    """A request that breaks several rules gets the refusal of the first check."""
    code, method, _ = CHECK_ORDER[position]
    fields = {
        name: value for _, _, pairs in reversed(CHECK_ORDER[position:]) for name, value in pairs
    }
    if method == "OPTIONS":
        del fields[b"origin"]  # with it, this is a preflight of a page that is not allowed
    scheme = "http" if position <= 1 else "https"

    answer = await ask(
        recorded_edge.edge, method=method, scheme=scheme, headers=tuple(fields.items())
    )

    assert answer.json["error"]["data"]["error"] == code


async def test_a_refusal_outside_of_mcp_is_a_plain_json_document(
    recorded_edge: RecordedEdge,
) -> None:
    """It has a code, a sentence and the request id."""
    answer = await ask(recorded_edge.edge, "/else", headers=())

    assert answer.status == 400
    assert answer.json == {
        "error": "bad_host",
        "message": "A request needs exactly one Host header",
        "request_id": answer.headers.get("x-request-id"),
    }


ALLOWED_HOSTS: list[tuple[str, Pairs]] = [
    ("plain", (HOST,)),
    ("default port", ((b"host", b"mcp.example.com:443"),)),
    ("upper case", ((b"host", b"MCP.Example.com"),)),
    ("own page", (HOST, (b"origin", b"https://mcp.example.com"))),
    ("allowed page", (HOST, (b"origin", PAGE))),
    ("long credential, which the gate judges", (HOST, (b"authorization", b"B" * 60_000))),
]


@pytest.mark.parametrize(
    "headers", [case[1] for case in ALLOWED_HOSTS], ids=[c[0] for c in ALLOWED_HOSTS]
)
async def test_requests_with_allowed_hosts_and_origins_pass_the_edge(
    recorded_edge: RecordedEdge, headers: Pairs
) -> None:
    """They have the resource's own host and origin, or an allowed origin."""
    answer = await ask(recorded_edge.edge, headers=headers)

    assert answer.status == 200
    assert len(recorded_edge.inner.scopes) == 1


IDENTITY = [
    b"x-tenant-id",
    b"x_tenant_id",
    b"x-tenant",
    b"x-org",
    b"x-org-id",
    b"x-user",
    b"x_user_email",
    b"x-scopes",
    b"x-roles",
    b"x-forwarded-user",
    b"x-auth-request-email",
    b"x-gatepost-tenant",
    b"gatepost-caller",
    b"x-octopus-user",
    b"remote_user",
    b"x-http-method-override",
    b"x_octopus_tenant_id",
    b"content_length",
]


@pytest.mark.requirement("W12")
@pytest.mark.parametrize("name", IDENTITY, ids=bytes.decode)
async def test_identity_headers_of_the_caller_are_removed(
    recorded_edge: RecordedEdge, name: bytes
) -> None:
    """They are removed before any route reads them, also if a field is repeated."""
    answer = await ask(
        recorded_edge.edge, headers=(HOST, (name, b"globex"), (b"x-a", b"1"), (name, b"b"))
    )

    assert answer.status == 200
    assert recorded_edge.inner.scopes[0]["headers"] == [HOST, (b"x-a", b"1")]


async def test_the_documented_tenant_header_is_passed_on(recorded_edge: RecordedEdge) -> None:
    """The REST routes compare it with the tenant of the token."""
    header = (b"x-octopus-tenant-id", b"acme")
    await ask(recorded_edge.edge, headers=(HOST, header))

    assert header in recorded_edge.inner.scopes[0]["headers"]


FORWARDED_REQUESTS: list[tuple[str, str, Pairs, int, str]] = [
    ("tls", "198.51.100.7", (), 200, "198.51.100.7"),
    ("stranger claims tls", "198.51.100.7", ((b"x-forwarded-proto", b"https"),), 400, ""),
    ("proxy says tls", "10.1.1.1", ((b"x-forwarded-proto", b"https"),), 200, "10.1.1.1"),
    ("proxy says plain", "10.1.1.1", ((b"x-forwarded-proto", b"http"),), 400, ""),
    ("proxy says nothing", "10.1.1.1", (), 400, ""),
    ("a plain link", "10.1.1.1", ((b"x-forwarded-proto", b"https, http"),), 400, ""),
    (
        "proxy names the peer",
        "10.1.1.1",
        ((b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"192.0.2.1, 203.0.113.9")),
        200,
        "203.0.113.9",
    ),
    (
        "proxies in a row",
        "10.1.1.1",
        ((b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"203.0.113.9, 10.2.2.2")),
        200,
        "203.0.113.9",
    ),
    (
        "two fields, port and brackets",
        "10.1.1.1",
        (
            (b"x-forwarded-proto", b"https"),
            (b"x-forwarded-for", b"203.0.113.9:99"),
            (b"x-forwarded-for", b"[2001:db8::1]:443"),
        ),
        200,
        "2001:db8::1",
    ),
    (
        "nonsense",
        "10.1.1.1",
        ((b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"1.2.3.4, unknown")),
        200,
        "10.1.1.1",
    ),
    (
        "a text as a zone",
        "10.1.1.1",
        ((b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"::1%any <b>text</b>")),
        200,
        "10.1.1.1",
    ),
    ("mapped proxy", "::ffff:10.1.1.1", ((b"x-forwarded-proto", b"https"),), 200, "10.1.1.1"),
]


@pytest.mark.requirement("W14")
@pytest.mark.parametrize(
    ("peer", "headers", "status", "seen"),
    [case[1:] for case in FORWARDED_REQUESTS],
    ids=[case[0] for case in FORWARDED_REQUESTS],
)
async def test_forwarded_headers_are_used_only_from_a_trusted_proxy(
    recorded_edge: RecordedEdge, peer: str, headers: Pairs, status: int, seen: str
) -> None:
    """A caller can fake neither TLS nor its address."""
    scheme = "https" if peer == "198.51.100.7" and not headers else "http"
    answer = await ask(recorded_edge.edge, headers=(HOST, *headers), scheme=scheme, peer=peer)

    assert answer.status == status
    if status == 200:
        assert recorded_edge.inner.scopes[0]["client"][0].removeprefix("::ffff:") == seen
        assert recorded_edge.inner.scopes[0]["scheme"] == "https"


async def test_probes_are_answered_over_plain_http_to_any_host(recorded_edge: RecordedEdge) -> None:
    """An orchestrator probes the address of the pod."""
    answer = await ask(recorded_edge.edge, "/health", method="GET", headers=(), scheme="http")

    assert (answer.status, answer.json) == (200, {"status": "ok"})


async def test_an_unexpected_error_is_a_500_without_detail(
    recorded_edge: RecordedEdge, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets the request id; the log gets the traceback."""
    with caplog.at_level(logging.ERROR):
        answer = await ask(recorded_edge.edge, "/breaks")

    request_id = answer.headers.get("x-request-id")
    assert answer.status == 500
    assert set(answer.json) == {"error", "message", "request_id"}
    assert (answer.json["error"], answer.json["request_id"]) == ("internal_error", request_id)
    assert [getattr(record, "request_id", None) for record in caplog.records] == [request_id]
    assert caplog.records[0].exc_info


async def test_each_request_has_one_access_line_without_its_query(
    recorded_edge: RecordedEdge,
) -> None:
    """The line has no header, no query and no token."""
    answers = [
        await ask(recorded_edge.edge),
        await ask(recorded_edge.edge, "/mcp\n/forged", headers=()),
    ]
    await recorded_edge.log.aclose()

    assert [(line["status"], line["path"]) for line in recorded_edge.lines] == [
        (200, "/mcp"),
        (400, "/mcp\n/forged"),
    ]
    assert [line["request_id"] for line in recorded_edge.lines] == [
        answer.headers.get("x-request-id") for answer in answers
    ]
    assert recorded_edge.lines[0]["tenant"] is None
    assert recorded_edge.inner.scopes[0][REQUEST_ID] == recorded_edge.lines[0]["request_id"]
