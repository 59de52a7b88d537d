"""The edge: each check by its table of cases, and what the middleware around them promises."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_network

import pytest
from starlette.types import Receive, Scope, Send

from gatepost.edge.cors import Cors, Origins
from gatepost.edge.edge import REQUEST_ID, Edge, respond
from gatepost.edge.flood import Flood
from gatepost.edge.headers import Headers
from gatepost.edge.limits import Limits
from gatepost.edge.origin import Origin
from gatepost.edge.transport import Transport
from gatepost.telemetry.access import AccessLog
from gatepost_authz.errors import ExpiredToken, InvalidToken, IssuerUnavailable, MissingToken
from tests.server.exchange import HOST, Pairs, ask

METADATA = "/.well-known/oauth-protected-resource/mcp"
PAGE = b"https://app.example.com"


class Inner:
    """Stands where the application stands: counts, remembers the scope, answers 200."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if scope["path"] == "/breaks":
            raise KeyError("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln")
        await respond(send, 200, b"{}")


class Bench:
    """An edge as production builds it, and what it wrote and let through."""

    def __init__(self) -> None:
        self.inner = Inner()
        self.written: list[bytes] = []
        self.now = 1000.0
        self.flood = Flood(2, monotonic=lambda: self.now)
        self.log = AccessLog("json", self.written.append)
        origins = Origins((PAGE.decode(),), development=False)
        self.edge = Edge(
            self.inner,
            checks=[
                Cors(origins),
                Transport(production=True, proxies=(ip_network("10.0.0.0/8"),)),
                Headers(),
                Limits(max_header_bytes=2000, max_body_bytes=1000),
                self.flood,
                Origin("https://mcp.example.com", origins, development=False),
            ],
            log=self.log,
            probes={"/health": lambda: b'{"status":"ok"}'},
            is_endpoint=lambda path: path == "/mcp",
        )

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for batch in self.written for line in batch.splitlines()]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.log.aclose()


REFUSALS: list[tuple[str, str, str, Pairs, int, str]] = [
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
    ("long header", "POST", "/mcp", (HOST, (b"x-a", b"a" * 2001)), 431, "headers_too_large"),
    ("many headers", "POST", "/mcp", (HOST, *[(b"a", b"b")] * 100), 431, "too_many_headers"),
]


@pytest.mark.requirement("W13", "W16", "W17", "W20", "W22")
@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [case[1:] for case in REFUSALS],
    ids=[case[0] for case in REFUSALS],
)
async def test_the_edge_refuses_before_anything_reads_a_token(
    bench: Bench, method: str, path: str, headers: Pairs, status: int, code: str
) -> None:
    """Each refusal has its status and stable code, in a body without an id, and nothing runs."""
    answer = await ask(bench.edge, path, method=method, headers=headers)

    assert answer.status == status
    assert answer.json["error"]["data"]["error"] == code
    assert "id" not in answer.json
    assert answer.header("x-request-id") == answer.json["error"]["data"]["request_id"]
    assert bench.inner.scopes == []


async def test_elsewhere_a_refusal_is_a_plain_document(bench: Bench) -> None:
    """A path that speaks no JSON-RPC answers code, sentence and request id."""
    answer = await ask(bench.edge, "/else", headers=())

    assert answer.status == 400
    assert answer.json == {
        "error": "bad_host",
        "message": "A request needs exactly one Host header",
        "request_id": answer.header("x-request-id"),
    }


ALLOWED: list[tuple[str, Pairs]] = [
    ("plain", (HOST,)),
    ("default port", ((b"host", b"mcp.example.com:443"),)),
    ("upper case", ((b"host", b"MCP.Example.com"),)),
    ("own page", (HOST, (b"origin", b"https://mcp.example.com"))),
    ("allowed page", (HOST, (b"origin", PAGE))),
    ("long credential, which the gate judges", (HOST, (b"authorization", b"B" * 60_000))),
]


@pytest.mark.parametrize("headers", [case[1] for case in ALLOWED], ids=[c[0] for c in ALLOWED])
async def test_what_is_ours_passes(bench: Bench, headers: Pairs) -> None:
    """The resource's own host and pages, and the allowed pages, reach the application."""
    answer = await ask(bench.edge, headers=headers)

    assert answer.status == 200
    assert len(bench.inner.scopes) == 1


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
async def test_a_header_cannot_say_who_calls(bench: Bench, name: bytes) -> None:
    """Identity-looking headers are gone, twice or once, before anything routes."""
    answer = await ask(bench.edge, headers=(HOST, (name, b"globex"), (b"x-a", b"1"), (name, b"b")))

    assert answer.status == 200
    assert bench.inner.scopes[0]["headers"] == [HOST, (b"x-a", b"1")]


async def test_the_documented_tenant_header_stays(bench: Bench) -> None:
    """It is compared with the token's tenant by the REST routes, so it must arrive."""
    header = (b"x-octopus-tenant-id", b"acme")
    await ask(bench.edge, headers=(HOST, header))

    assert header in bench.inner.scopes[0]["headers"]


FORWARDED: list[tuple[str, str, Pairs, int, str]] = [
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
    ("mapped proxy", "::ffff:10.1.1.1", ((b"x-forwarded-proto", b"https"),), 200, "10.1.1.1"),
]


@pytest.mark.requirement("W14")
@pytest.mark.parametrize(
    ("peer", "headers", "status", "seen"),
    [case[1:] for case in FORWARDED],
    ids=[case[0] for case in FORWARDED],
)
async def test_only_a_proxys_word_about_the_connection_counts(
    bench: Bench, peer: str, headers: Pairs, status: int, seen: str
) -> None:
    """A stranger can neither claim TLS nor lend an address to its failures."""
    scheme = "https" if peer == "198.51.100.7" and not headers else "http"
    answer = await ask(bench.edge, headers=(HOST, *headers), scheme=scheme, peer=peer)

    assert answer.status == status
    if status == 200:
        assert bench.inner.scopes[0]["client"][0].removeprefix("::ffff:") == seen
        assert bench.inner.scopes[0]["scheme"] == "https"


PREFLIGHT = (
    HOST,
    (b"origin", PAGE),
    (b"access-control-request-method", b"POST"),
    (b"access-control-request-headers", b"authorization,mcp-param-region, x-evil,mcp-param-a b"),
)


@pytest.mark.requirement("W18", "T-19")
async def test_a_preflight_is_answered_without_a_token(bench: Bench) -> None:
    """It names every header a client of this protocol sends, and no others."""
    answer = await ask(bench.edge, method="OPTIONS", headers=PREFLIGHT)
    allowed = {
        name.strip().lower()
        for name in str(answer.header("access-control-allow-headers")).split(",")
    }

    assert answer.status == 204
    assert answer.header("access-control-allow-origin") == PAGE.decode()
    assert allowed >= {"authorization", "dpop", "content-type", "mcp-protocol-version"}
    assert allowed >= {"mcp-method", "mcp-name", "mcp-session-id", "last-event-id", "accept"}
    assert "mcp-param-region" in allowed
    assert not {name for name in allowed if "evil" in name or " " in name}
    assert answer.header("access-control-allow-credentials") is None
    assert bench.inner.scopes == []


async def test_a_preflight_of_a_foreign_page_is_refused(bench: Bench) -> None:
    """No CORS header answers an origin that nobody allowed."""
    headers = ((b"origin", b"https://evil.example"), *PREFLIGHT[2:], HOST)
    answer = await ask(bench.edge, method="OPTIONS", headers=headers)

    assert answer.status == 403
    assert answer.header("access-control-allow-origin") is None


@pytest.mark.parametrize("length", [b"2", b"9999"])
async def test_an_allowed_page_can_read_answers_and_refusals(bench: Bench, length: bytes) -> None:
    """The challenge is useless to a browser that may not read it."""
    headers = (HOST, (b"origin", PAGE), (b"content-length", length))
    answer = await ask(bench.edge, headers=headers)

    assert answer.status == (200 if length == b"2" else 413)
    assert answer.header("access-control-allow-origin") == PAGE.decode()
    assert "WWW-Authenticate" in str(answer.header("access-control-expose-headers"))


async def test_the_metadata_documents_are_open_to_every_page(bench: Bench) -> None:
    """They answer for their own CORS, preflights included."""
    for method in ("GET", "OPTIONS"):
        headers = ((b"origin", b"https://any.example"), *PREFLIGHT[2:], HOST)
        answer = await ask(bench.edge, METADATA, method=method, headers=headers)

        assert answer.status == 200
        assert answer.header("access-control-allow-origin") is None


async def test_probes_are_answered_over_plain_http_to_any_host(bench: Bench) -> None:
    """An orchestrator asks the pod's address, not the resource's."""
    answer = await ask(bench.edge, "/health", method="GET", headers=(), scheme="http")

    assert (answer.status, answer.json) == (200, {"status": "ok"})


TOKEN = (HOST, (b"authorization", b"Bearer x"))


def peer_scope(peer: str) -> Scope:
    return {"client": (peer, 1)}


@pytest.mark.requirement("W23")
async def test_bad_credentials_are_slowed_down_per_peer(bench: Bench) -> None:
    """Over the limit 429 comes before any token work, for that peer alone, and it passes."""
    for _ in range(2):
        bench.flood.failed(peer_scope("198.51.100.7"), InvalidToken("bad_signature"))

    refused = await ask(bench.edge, headers=TOKEN)
    neighbour = await ask(bench.edge, headers=TOKEN, peer="198.51.100.8")
    silent = await ask(bench.edge)
    bench.now += 0.6
    later = await ask(bench.edge, headers=TOKEN)

    assert (refused.status, refused.header("retry-after")) == (429, "1")
    assert refused.json["error"]["code"] == -32000
    assert (neighbour.status, silent.status, later.status) == (200, 200, 200)


COUNTED: list[tuple[Callable[[], Exception], int]] = [
    (lambda: InvalidToken("bad_signature"), 429),
    (ExpiredToken, 429),
    (MissingToken, 200),
    (lambda: IssuerUnavailable("down"), 200),
]


@pytest.mark.parametrize(("error", "status"), COUNTED)
async def test_only_a_refused_credential_counts(
    bench: Bench, error: Callable[[], InvalidToken], status: int
) -> None:
    """Neither asking without a token nor our own outage is an attack."""
    for _ in range(5):
        bench.flood.failed(peer_scope("198.51.100.7"), error())

    assert (await ask(bench.edge, headers=TOKEN)).status == status


PEERS = [
    ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
    ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
    ("::ffff:192.0.2.1", "192.0.2.1", True),
    ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
]


@pytest.mark.parametrize(("one", "other", "same"), PEERS)
async def test_a_network_of_addresses_is_one_peer(
    bench: Bench, one: str, other: str, same: bool
) -> None:
    """Whoever owns an IPv6 /64 has more addresses than we have memory."""
    for _ in range(2):
        bench.flood.failed(peer_scope(one), InvalidToken("bad_signature"))
    answer = await ask(bench.edge, headers=TOKEN, peer=other)

    assert answer.status == (429 if same else 200)


async def test_the_flood_check_can_be_turned_off_and_stays_small() -> None:
    """0 counts nothing; otherwise the number of peers remembered is bounded."""
    off, on = Flood(0), Flood(5)
    for number in range(20_000):
        scope = peer_scope(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        off.failed(scope, InvalidToken("x"))
        on.failed(scope, InvalidToken("x"))

    assert len(off._peers) == 0
    assert len(on._peers) == 10_000


async def test_what_nobody_foresaw_is_a_500_without_detail(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets an id to report; the log gets the traceback."""
    with caplog.at_level(logging.ERROR):
        answer = await ask(bench.edge, "/breaks")

    request_id = answer.header("x-request-id")
    assert answer.status == 500
    assert answer.json == {"error": "internal_error", "request_id": request_id}
    assert [getattr(record, "request_id", None) for record in caplog.records] == [request_id]
    assert caplog.records[0].exc_info


async def test_each_request_has_one_line_without_its_query(bench: Bench) -> None:
    """The line is written behind, and holds no header, no query and no token."""
    answers = [await ask(bench.edge), await ask(bench.edge, "/mcp\n/forged", headers=())]
    await bench.log.aclose()

    assert [(line["status"], line["path"]) for line in bench.lines] == [
        (200, "/mcp"),
        (400, "/mcp\n/forged"),
    ]
    assert [line["request_id"] for line in bench.lines] == [
        answer.header("x-request-id") for answer in answers
    ]
    assert bench.lines[0]["tenant"] is None
    assert bench.inner.scopes[0][REQUEST_ID] == bench.lines[0]["request_id"]
