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
    """A refusal of the gate: this status and code, the same metadata address, nothing stored."""
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
def test_a_malformed_credential_is_never_guessed_at(
    server: AttackedServer, values: list[bytes]
) -> None:
    """Two parsers that read one header differently are how a proxy and a server come to differ."""
    token = server.tokens().token().encode()
    fields = [("Authorization", value.replace(b"GOOD", token)) for value in values]

    with server.nothing_runs():
        answer = server.raw(fields)

    assert_refused(server, answer, 400, "invalid_request")


@pytest.mark.requirement("W04")
def test_a_scheme_followed_by_spaces_holds_no_token(server: AttackedServer) -> None:
    """Parsers strip the spaces or keep them; either way nothing is presented."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", b"Bearer    ")])

    assert_refused(server, answer, 400, "invalid_request")


@pytest.mark.requirement("W08")
@pytest.mark.parametrize("byte", [b"\x00", b"\x7f", b"\x01"])
def test_a_control_character_never_gets_through(server: AttackedServer, byte: bytes) -> None:
    """A parser may refuse the whole request first; the gate refuses what is left."""
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
def test_spaces_behind_the_token_are_no_part_of_it(server: AttackedServer) -> None:
    """One parser strips them and one keeps them: the answer is the same."""
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
def test_an_oversized_credential_is_refused_before_it_is_read(
    server: AttackedServer, size: int
) -> None:
    """Limits come before meaning."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", b"Bearer " + b"a" * size)])

    assert answer.status in (400, 431)


@pytest.mark.requirement("W10")
def test_a_token_in_the_query_or_the_form_is_no_token(server: AttackedServer) -> None:
    """Queries end up in logs (RFC 9700 section 4.3.2); it is neither used nor written down."""
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
def test_another_scheme_is_like_no_credentials(server: AttackedServer, value: str) -> None:
    """The challenge says what we offer."""
    with server.nothing_runs():
        answer = server.raw([("Authorization", value)])

    assert_refused(server, answer, 401, "invalid_token")


@pytest.mark.requirement("W12", "A6")
@each(
    "name",
    ["X-Tenant-Id", "x-org", "X-ORG-ID", "X-User", "X_Tenant_Id", "X-Scopes", "X-Forwarded-User",
     "X-Auth-Request-User", "X-Gatepost-Tenant"],
)  # fmt: skip
def test_a_header_that_names_an_identity_has_no_effect(server: AttackedServer, name: str) -> None:
    """The tenant comes from the token, whatever else is claimed, once or twice."""
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
    """Nothing about us is derived from the request, and a rebound name gets no further."""
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
def test_a_forwarded_header_from_an_untrusted_peer_changes_nothing(
    server: AttackedServer, field: tuple[str, str]
) -> None:
    """Challenge and metadata stay as they are configured."""
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
    """What is not public needs a token, under whatever name."""
    with server.nothing_runs():
        answer = server.raw([], target=target)

    assert answer.status in (400, 401)


@pytest.mark.requirement("W15")
@each("target", ["/mcp/", "//mcp", "/MCP", "/nowhere"])
def test_another_spelling_of_the_endpoint_is_not_the_endpoint(
    server: AttackedServer, target: str
) -> None:
    """With a token too, only the configured path is the endpoint."""
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
def test_options_that_is_no_preflight_is_not_allowed(server: AttackedServer) -> None:
    """Without `Access-Control-Request-Method` it is an ordinary request, and not one we serve."""
    assert server.raw([("Origin", server.client.origin)], method="OPTIONS", body=b"").status in (
        401,
        405,
    )


@pytest.mark.requirement("W18")
def test_a_browser_can_read_the_challenge(server: AttackedServer) -> None:
    """Without the exposed header a browser client cannot find the metadata."""
    answer = server.raw([("Origin", server.client.origin)])

    assert answer.status == 401
    assert "www-authenticate" in (answer.field("access-control-expose-headers") or "").lower()


@pytest.mark.requirement("W19", "A4")
def test_metadata_ignores_credentials(server: AttackedServer) -> None:
    """Both locations answer the same bytes to every caller, whatever is in `Authorization`."""
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
def test_another_method_does_not_run_anything(server: AttackedServer, method: str) -> None:
    """The endpoint is POST; an override header changes nothing."""
    with server.nothing_runs():
        answer = server.raw(
            [("Authorization", f"Bearer {server.tokens().token()}"),
             ("X-HTTP-Method-Override", "POST"), ("X-Method-Override", "POST")],
            method=method,
        )  # fmt: skip

    assert answer.status == 405


@pytest.mark.requirement("W20")
def test_connect_is_refused(server: AttackedServer) -> None:
    """This is no proxy."""
    assert server.raw([], method="CONNECT", target="evil.example:443", body=b"").status in (
        400,
        401,
        405,
        421,
    )


@pytest.mark.requirement("W22")
def test_the_gate_answers_before_the_body_has_come(server: AttackedServer) -> None:
    """An unknown caller cannot make the server wait for a body: the refusal comes first."""
    with server.nothing_runs():
        answer = server.raw(
            [("Authorization", "Bearer garbage"), ("Content-Length", "1000000")], body=b"{"
        )

    assert_refused(server, answer, 401, "invalid_token")


@pytest.mark.requirement("D11")
@each(
    "name", ["Client-Cert", "X-Forwarded-Client-Cert", "X-SSL-Client-Cert", "X-Client-Certificate"]
)
def test_a_certificate_header_from_an_untrusted_peer_does_not_unlock_a_bound_token(
    server: AttackedServer, name: str
) -> None:
    """A certificate-bound token (RFC 8705) is refused as Bearer, whatever a header says."""
    token = server.tokens().token(cnf={"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"})

    server.refused(token, fields=[(name, ":MIIB:")])


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_an_offer_to_speak_another_protocol_is_not_heard(
    server: AttackedServer, offer: str
) -> None:
    """Java's HTTP client makes it with every call over plain HTTP (RFC 9110 section 7.8)."""
    fields = [("Connection", "Upgrade, HTTP2-Settings"), ("UPGRADE", offer)]

    server.accepted(server.tokens().token(), fields=[*fields, ("HTTP2-Settings", "AAEAAEAA")])
