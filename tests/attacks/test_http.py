"""The HTTP layer: group W of the attack catalogue, byte by byte, on both parsers."""

import json
from typing import Any

import pytest

from tests.attacks.conftest import AttackedServer
from tests.support.client import RawAnswer
from tests.support.measuring import each


def case(identifier: str, name: str, *values: Any) -> Any:
    return pytest.param(
        *values, id=f"{identifier}-{name}", marks=pytest.mark.requirement(identifier)
    )


def challenge_of(answer: RawAnswer) -> str:
    return answer.field("www-authenticate") or ""


def assert_refused(server: AttackedServer, answer: RawAnswer, status: int, error: str) -> None:
    """Assert that the gate refused with this status and code, its metadata, and `no-store`."""
    assert answer.status == status, answer
    assert challenge_of(answer).startswith(
        f'Bearer resource_metadata="{server.client.metadata_url}"'
    )
    assert f'error="{error}"' in challenge_of(answer)
    assert json.loads(answer.body)["error"] == error
    assert answer.field("cache-control") == "no-store"


MALFORMED_HEADERS = [
    case("W01", "good-bad", [b"Bearer GOOD", b"Bearer bad"]),
    case("W01", "bad-good", [b"Bearer bad", b"Bearer GOOD"]),
    case("W01", "same-twice", [b"Bearer GOOD", b"Bearer GOOD"]),
    case("W01", "basic-and-bearer", [b"Basic eDp5", b"Bearer GOOD"]),
    case("W02", "comma-list", [b"Bearer GOOD, Bearer GOOD"]),
    case("W02", "comma", [b"Bearer GOOD,"]),
    case("W04", "alone", [b"Bearer"]),
    case("W06", "tab", [b"Bearer\tGOOD"]),
    case("W06", "two-words", [b"Bearer GOOD GOOD"]),
    case("W08", "latin-1", [b"Bearer GOOD\xe9"]),
    case("W08", "utf-8", [b"Bearer GOOD\xc3\xa9"]),
    case("W08", "equals-first", [b"Bearer =GOOD"]),
    case("W08", "quote", [b'Bearer "GOOD"']),
]


@each("values", MALFORMED_HEADERS)
def test_a_malformed_credential_is_refused(server: AttackedServer, values: list[bytes]) -> None:
    """A proxy and a server that read one header differently could disagree about the caller."""
    token = server.tokens().token().encode()
    fields = [("Authorization", value.replace(b"GOOD", token)) for value in values]

    with server.nothing_runs():
        answer = server.raw(fields)

    assert_refused(server, answer, 400, "invalid_request")


@pytest.mark.requirement("W04")
def test_a_bearer_scheme_without_a_token_is_refused(server: AttackedServer) -> None:
    """The answer is the same whether the parser keeps or strips the spaces."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", b"Bearer    ")])

    assert_refused(server, answer, 400, "invalid_request")


@pytest.mark.requirement("W08")
@pytest.mark.parametrize("byte", [b"\x00", b"\x7f", b"\x01"])
def test_a_credential_with_a_control_character_is_refused(
    server: AttackedServer, byte: bytes
) -> None:
    """Either the parser or the gate refuses the request."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", b"Bearer abc" + byte + b"def")])

    assert answer.status == 400


@pytest.mark.requirement("W03")
@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "BeArEr"])
def test_the_scheme_compares_without_regard_to_case(server: AttackedServer, scheme: str) -> None:
    """RFC 9110 section 11.1."""
    answer = server.raw([("Authorization", f"{scheme} {server.tokens().token()}")])

    assert answer.status == 200


@pytest.mark.requirement("W05")
def test_several_spaces_before_the_token_are_allowed(server: AttackedServer) -> None:
    """RFC 9110 section 11.4 allows more than one."""
    assert server.raw([("Authorization", f"Bearer    {server.tokens().token()}")]).status == 200


@pytest.mark.requirement("W06")
def test_spaces_after_the_token_are_stripped_or_refused(server: AttackedServer) -> None:
    """One parser strips the spaces; with the other parser the request is refused."""
    assert server.raw([("Authorization", f"Bearer {server.tokens().token()}  ")]).status in (
        200,
        400,
    )


@pytest.mark.requirement("W07")
def test_a_folded_header_is_refused(server: AttackedServer) -> None:
    """Obsolete line folding (RFC 9112 section 5.2) hides a second value from some parsers."""
    token = server.tokens().token().encode()
    with server.nothing_runs():
        answer = server.raw([("Authorization", b"Bearer\r\n " + token)])

    assert answer.status == 400


@pytest.mark.requirement("W09")
@pytest.mark.parametrize("size", [17_000, 60_000, 70_000])
def test_an_oversized_credential_is_refused(server: AttackedServer, size: int) -> None:
    """The size limit applies before the content of the credential."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", b"Bearer " + b"a" * size)])

    assert answer.status in (400, 431)


@pytest.mark.requirement("W10")
def test_a_token_in_the_query_or_the_form_is_ignored_and_not_logged(server: AttackedServer) -> None:
    """Queries end up in logs (RFC 9700 section 4.3.2)."""
    token = server.tokens().token()
    form = f"access_token={token}".encode()
    with server.nothing_runs():
        query = server.raw([], target=f"{server.client.path}?access_token={token}")
        body = server.raw([], body=form, content_type="application/x-www-form-urlencoded")

    assert_refused(server, query, 401, "invalid_token")
    assert_refused(server, body, 401, "invalid_token")
    assert token not in server.log()


@pytest.mark.requirement("W11")
@each("value", ["Basic eDp5", "Negotiate abc", "Token abc", "DPoP abc", "abc"])
def test_another_authorization_scheme_counts_as_missing_credentials(
    server: AttackedServer, value: str
) -> None:
    """The challenge names Bearer, the scheme that the server accepts."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", value)])

    assert_refused(server, answer, 401, "invalid_token")


@pytest.mark.requirement("W12", "A6")
@each(
    "name",
    ["X-Tenant-Id", "x-org", "X-ORG-ID", "X-User", "X_Tenant_Id", "X-Scopes", "X-Forwarded-User",
     "X-Auth-Request-User", "X-Gatepost-Tenant"],
)  # fmt: skip
def test_identity_headers_of_the_caller_have_no_effect(server: AttackedServer, name: str) -> None:
    """The tenant comes from the token, even if a header names another one twice."""
    fields = [(name, "globex"), (name, "initech")]

    caller = server.accepted(server.tokens().token(), fields=fields)

    assert (caller.tenant_id, caller.subject) == ("acme", "alice")


@pytest.mark.requirement("W13")
@each(
    ("hosts", "status"),
    [(["evil.example"], 421), (["evil.example/x?"], 421), ([], 400), (["HERE", "HERE"], 400),
     (["HERE", "evil.example"], 400), (["HERE.evil.example"], 421), (["user@HERE"], 421)],
)  # fmt: skip
def test_a_foreign_host_is_refused(server: AttackedServer, hosts: list[str], status: int) -> None:
    """A missing, repeated or foreign `Host` is refused (DNS rebinding)."""
    with server.nothing_runs():
        answer = server.raw(
            [("Authorization", f"Bearer {server.tokens().token()}")],
            hosts=[host.replace("HERE", server.client.authority) for host in hosts],
        )

    assert answer.status in (status, 400)


@pytest.mark.requirement("W14", "W13")
@each(
    "field",
    [("X-Forwarded-Host", "evil.example"), ("X-Forwarded-Proto", "https"),
     ("X-Forwarded-Port", "1"), ("X-Forwarded-Prefix", "/evil"),
     ("Forwarded", "host=evil.example;proto=https"), ("X-Forwarded-For", "10.0.0.1")],
)  # fmt: skip
def test_forwarded_headers_from_an_untrusted_peer_have_no_effect(
    server: AttackedServer, field: tuple[str, str]
) -> None:
    """The challenge and the metadata stay as configured."""
    assert_refused(server, server.raw([field]), 401, "invalid_token")
    document = server.raw([field], method="GET", target=server.metadata_path)
    assert json.loads(document.body)["resource"] == server.client.resource


@pytest.mark.requirement("W15")
@each(
    "target",
    ["//mcp", "/mcp/", "/mcp/..;/", "/mcp/../mcp", "/./mcp", "/%2e/mcp", "/%2fmcp", "/MCP",
     "/mcp%00", "/mcp;x", "/health/../mcp", "/readyz/mcp", "/nowhere"],
)  # fmt: skip
def test_no_spelling_of_a_path_reaches_a_tool_without_a_token(
    server: AttackedServer, target: str
) -> None:
    """Every path outside of the public list needs a token."""
    with server.nothing_runs():
        answer = server.raw([], target=target)

    assert answer.status in (400, 401)


@pytest.mark.requirement("W15")
@each("target", ["/mcp/", "//mcp", "/MCP", "/nowhere"])
def test_variants_of_the_endpoint_path_are_not_found(server: AttackedServer, target: str) -> None:
    """Only the configured path is the endpoint, with a valid token too."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", f"Bearer {server.tokens().token()}")], target=target)

    assert answer.status == 404


@pytest.mark.requirement("W16", "W17", "T-02", "S-02")
@each(
    "origin",
    ["http://evil.example", "null", "chrome-extension://abc", "HERE/", "HERE.evil.example",
     "https://evil.example", "HERE@evil.example", ""],
)  # fmt: skip
def test_a_foreign_origin_is_refused_before_authentication(
    server: AttackedServer, origin: str
) -> None:
    """A page that a browser shows must not drive a server on the same machine."""
    value = origin.replace("HERE", f"http://{server.client.authority}")
    with server.nothing_runs():
        answer = server.raw([("Origin", value), ("Authorization", "Bearer x")])

    assert answer.status == 403


@pytest.mark.requirement("W18")
def test_a_preflight_needs_no_token(server: AttackedServer) -> None:
    """Browsers send preflights without credentials; the answer names what may be sent and read."""
    fields = [
        ("Origin", server.client.origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization, content-type, mcp-protocol-version"),
        ("Authorization", f"Bearer {server.tokens('offline').token()}"),
    ]

    answer = server.raw(fields, method="OPTIONS", body=b"")

    assert 200 <= answer.status < 300
    assert answer.field("access-control-allow-origin") == server.client.origin
    assert "authorization" in (answer.field("access-control-allow-headers") or "").lower()
    assert server.idp.key_hits("offline") == 0


@pytest.mark.requirement("W18")
def test_an_options_request_that_is_no_preflight_is_refused(server: AttackedServer) -> None:
    """Without `Access-Control-Request-Method`, OPTIONS is an ordinary request."""
    assert server.raw([("Origin", server.client.origin)], method="OPTIONS", body=b"").status in (
        401,
        405,
    )


@pytest.mark.requirement("W18")
def test_a_browser_can_read_the_challenge(server: AttackedServer) -> None:
    """Without the exposed header, a client in a browser cannot find the metadata."""
    answer = server.raw([("Origin", server.client.origin)])

    assert answer.status == 401
    assert "www-authenticate" in (answer.field("access-control-expose-headers") or "").lower()


@pytest.mark.requirement("W19", "A4")
def test_metadata_ignores_credentials(server: AttackedServer) -> None:
    """Both locations return the same bytes for any `Authorization`."""
    documents = {
        server.raw([("Authorization", value)], method="GET", target=path).body
        for path in (server.metadata_path, server.inserted_metadata_path)
        for value in ("Bearer garbage", "Basic x", f"Bearer {server.tokens('offline').token()}")
    }

    assert len(documents) == 1
    assert json.loads(documents.pop())["resource"] == server.client.resource
    # A verifier that looked at the good token would have fetched this issuer's keys.
    assert server.idp.key_hits("offline") == 0


@pytest.mark.requirement("W20")
@each("method", ["TRACE", "PUT", "PATCH", "DELETE", "GET"])
def test_methods_other_than_post_are_not_allowed(server: AttackedServer, method: str) -> None:
    """A method override header has no effect."""
    with server.nothing_runs():
        answer = server.raw(
            [("Authorization", f"Bearer {server.tokens().token()}"),
             ("X-HTTP-Method-Override", "POST"), ("X-Method-Override", "POST")],
            method=method,
        )  # fmt: skip

    assert answer.status == 405


@pytest.mark.requirement("W20")
def test_connect_is_refused(server: AttackedServer) -> None:
    """The server is no proxy."""
    assert server.raw([], method="CONNECT", target="evil.example:443", body=b"").status in (
        400,
        401,
        405,
        421,
    )


@pytest.mark.requirement("W22")
def test_the_gate_refuses_a_bad_token_before_the_body_arrives(server: AttackedServer) -> None:
    """A caller without a good token cannot make the server wait for a body."""
    with server.nothing_runs():
        answer = server.raw(
            [("Authorization", "Bearer garbage"), ("Content-Length", "1000000")], body=b"{"
        )

    assert_refused(server, answer, 401, "invalid_token")


@pytest.mark.requirement("D11")
@each(
    "name", ["Client-Cert", "X-Forwarded-Client-Cert", "X-SSL-Client-Cert", "X-Client-Certificate"]
)
def test_a_certificate_header_of_a_client_does_not_make_a_bound_token_valid(
    server: AttackedServer, name: str
) -> None:
    """A certificate-bound token (RFC 8705) is refused as Bearer."""
    token = server.tokens().token(cnf={"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"})

    server.refused(token, fields=[(name, ":MIIB:")])


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_upgrade_offers_are_ignored(server: AttackedServer, offer: str) -> None:
    """Java's HTTP client offers h2c with every call over plain HTTP (RFC 9110 section 7.8)."""
    fields = [("Connection", "Upgrade, HTTP2-Settings"), ("UPGRADE", offer)]

    server.accepted(server.tokens().token(), fields=[*fields, ("HTTP2-Settings", "AAEAAEAA")])
