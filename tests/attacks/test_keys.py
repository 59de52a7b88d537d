"""Keys, discovery, caches, network: group N of the attack catalogue, over HTTP."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gatepost_authz import keyset
from tests.attacks.conftest import AttackedServer
from tests.support import issuers as f
from tests.support.client import RawAnswer, modern_request, request
from tests.support.issuers import Receive, Scope, Send, answer, rsa_key, signer
from tests.support.measuring import each, eventually

OTHER_SIGNER = signer(rsa_key("other"), "RS256")
pytestmark = pytest.mark.parametrize("server", ["httptools"], indirect=True)


def unavailable(server: AttackedServer, token: str) -> RawAnswer:
    """Assert that our own outage is a 503 with a time to retry, no challenge, and no tool ran."""
    with server.nothing_runs():
        refusal = server.call(token)
    assert refusal.status == 503, refusal
    assert int(refusal.field("retry-after") or 0) >= 1
    assert refusal.field("www-authenticate") is None
    return refusal


def is_accepted(server: AttackedServer, token: str) -> bool:
    return server.call(token).status == 200


async def never_answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Take the request and answer nothing until the caller hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_key_set_slowly(scope: Scope, receive: Receive, send: Send) -> None:
    """Send a key set a space at a time, as long as the connection is open."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"keys":[', "more_body": True})
    await never_answer(scope, receive, send)


@pytest.mark.requirement("N01")
@pytest.mark.parametrize(
    ("issuer", "fault"), [("slow", never_answer), ("drip", send_key_set_slowly)]
)
def test_a_slow_issuer_does_not_delay_callers_of_other_issuers(
    server: AttackedServer, issuer: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers of the slow issuer get 503 within a bounded time."""
    monkeypatch.setattr(keyset, "WAIT_S", 2.0)
    server.idp.replace(f"/{issuer}/jwks", fault)
    server.accepted(server.tokens().token())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.call, server.tokens(issuer).token())

        for _ in range(20):
            server.accepted(server.tokens().token())

        assert not waiting.done()
        assert waiting.result(timeout=9).status == 503


FAULTY_RESPONSES = {
    "fails-500": answer(500),
    "fails-404": answer(404),
    "fails-429": answer(429, retry_after="1"),
}


@pytest.mark.requirement("N02")
@pytest.mark.parametrize("issuer", FAULTY_RESPONSES)
def test_an_issuer_without_a_first_answer_leads_to_503_instead_of_401(
    server: AttackedServer, issuer: str
) -> None:
    """A 401 would make clients throw a good token away."""
    server.idp.replace(f"/{issuer}/jwks", FAULTY_RESPONSES[issuer])

    unavailable(server, server.tokens(issuer).token())


@pytest.mark.requirement("N02")
def test_a_recovered_issuer_is_noticed(server: AttackedServer) -> None:
    """No restart is needed."""
    token = server.tokens("recovers").token()
    server.idp.replace("/recovers/jwks", answer(500))
    unavailable(server, token)
    server.idp.replace("/recovers/jwks", None)

    eventually(lambda: is_accepted(server, token), within=20)


@pytest.mark.requirement("N03", "H06")
def test_known_keys_stay_valid_while_their_issuer_is_unavailable(server: AttackedServer) -> None:
    """A token with an unknown key id gets 503 meanwhile."""
    server.accepted(server.tokens("outage").token())
    server.idp.replace("/outage/jwks", answer(500))

    unknown = server.tokens("outage").token(header={"kid": "rotated"}, sign=OTHER_SIGNER)

    unavailable(server, unknown)
    server.accepted(server.tokens("outage").token())


UNUSABLE_KEY_SETS = {
    "huge": answer(body=b'{"keys":[' + b" " * 10_000_000 + b"]}"),
    "html": answer(body=b"<html>", content_type="text/html"),
    "array": answer(body=b"[]"),
    "null": answer(body=b"null"),
    "no-list": answer(body=b'{"keys":{}}'),
    "no-keys": answer(body=b'{"keys":[]}'),
    "doubled": answer(body=json.dumps({"keys": [f.jwk(rsa_key())]}).encode()[:-1] + b',"keys":[]}'),
}


@each(
    "issuer",
    [
        pytest.param(n, marks=pytest.mark.requirement("N04" if n == "huge" else "N05"))
        for n in UNUSABLE_KEY_SETS
    ],
)
def test_an_invalid_key_set_document_counts_as_an_outage(
    server: AttackedServer, issuer: str
) -> None:
    """The server uses no part of such a document."""
    server.idp.replace(f"/{issuer}/jwks", UNUSABLE_KEY_SETS[issuer])

    unavailable(server, server.tokens(issuer).token())


@pytest.mark.requirement("N06")
def test_a_redirect_is_not_followed(server: AttackedServer) -> None:
    """A redirect could make the server call its own network."""
    target = f"{server.idp.base}/redirect-target"
    server.idp.replace("/redirects/jwks", answer(302, location=target))

    unavailable(server, server.tokens("redirects").token())

    assert server.idp.hits["/redirect-target"] == 0


@pytest.mark.requirement("N10")
def test_metadata_of_another_issuer_is_refused(server: AttackedServer) -> None:
    """The document must name the issuer that was requested (mix-up, RFC 8414 section 3.3)."""
    document = {"issuer": server.idp.issuer("main"), "jwks_uri": f"{server.idp.base}/main/jwks"}
    path = "/.well-known/oauth-authorization-server/lies"
    server.idp.replace(path, answer(body=json.dumps(document).encode()))

    unavailable(server, server.tokens("lies").token())


@pytest.mark.requirement("N11", "N12")
def test_after_a_key_rotation_tokens_of_the_old_key_are_refused(server: AttackedServer) -> None:
    """The server accepts tokens of the new key as soon as it may fetch the key set."""
    old = server.tokens("rotates").token()
    server.accepted(old)
    server.accepted(old)
    server.idp.issuer("rotates", [f.jwk(rsa_key("other"), "other")])

    server.accepted(server.tokens("rotates").token(header={"kid": "other"}, sign=OTHER_SIGNER))

    server.refused(old)


@pytest.mark.requirement("N13")
def test_a_key_that_is_replaced_under_the_same_id_is_fetched(server: AttackedServer) -> None:
    """Some issuers reuse the key id, so only a failed signature shows the change."""
    server.accepted(server.tokens("replaces").token())
    server.idp.issuer("replaces", [f.jwk(rsa_key("other"))])

    token = server.tokens("replaces").token(sign=OTHER_SIGNER)

    eventually(lambda: is_accepted(server, token), within=20)


@pytest.mark.requirement("N14")
def test_many_requests_at_once_cause_one_fetch(server: AttackedServer) -> None:
    """The server asks an issuer with unknown keys once, however many tokens arrive."""
    tokens = [server.tokens("many").token() for _ in range(64)]
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(server.call, tokens))

    assert {reply.status for reply in answers} == {200}
    assert server.idp.key_hits("many") == 1


@pytest.mark.requirement("N15")
def test_a_caller_that_disconnects_does_not_cancel_the_key_fetch(server: AttackedServer) -> None:
    """All waiting callers share one fetch."""
    fields, body = modern_request("tools/call", {"name": "record_call", "arguments": {}})
    head = [
        ("Host", server.client.authority),
        ("Authorization", f"Bearer {server.tokens('leaver').token()}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        *fields,
    ]
    with socket.create_connection(("127.0.0.1", server.client.port), timeout=5) as connection:
        connection.sendall(request("POST", server.client.path, head, body))

    server.accepted(server.tokens("leaver").token())

    assert server.idp.key_hits("leaver") == 1


@pytest.mark.requirement("N17", "N16")
def test_issuers_that_share_a_key_set_keep_their_own_tenants(server: AttackedServer) -> None:
    """A token of one of them gives access to that issuer's tenant only."""
    first = server.accepted(server.tokens("shares-a").token())
    second = server.accepted(server.tokens("shares-b").token())

    assert (first.tenant_id, second.tenant_id) == ("shares-a", "shares-b")


@pytest.mark.requirement("N19", "N20")
def test_a_verdict_is_cached_for_the_whole_token(server: AttackedServer) -> None:
    """A token that shares its beginning, key id or `jti` with a good one, or all but one byte."""
    victim = server.tokens().token(jti="shared")
    server.accepted(victim)
    head, body, signature = victim.split(".")

    server.refused(f"{head}.{body}.{signature[:-8]}AAAAAAAA")
    server.refused(server.tokens().token(jti="shared", sign=OTHER_SIGNER))
    forged = f.jws_segment(server.tokens().claims(jti="shared", sub="mallory"))
    server.refused(f"{head}.{forged}.{signature}")

    assert server.accepted(victim).subject == "alice"


@pytest.mark.requirement("H05", "H04")
def test_a_flood_of_unknown_key_ids_causes_few_key_fetches(
    server: AttackedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 64 unknown callers wait at a time; callers with known keys are not delayed."""
    # The whole flood has to come within one interval.
    monkeypatch.setattr(keyset, "INTERVAL_S", 3.0)
    known_token = server.tokens("flood").token()
    server.accepted(known_token)
    names = ["../../../../dev/null", "' OR 1=1--", *(f"kid-{n}" for n in range(88))]
    tokens = [
        server.tokens("flood").token(header={"kid": name}, sign=OTHER_SIGNER) for name in names
    ]

    with ThreadPoolExecutor(len(tokens)) as pool:
        answers = pool.map(server.call, tokens)
        assert is_accepted(server, known_token)
        assert is_accepted(server, server.tokens("flood").token())
        statuses = [reply.status for reply in answers]

    assert set(statuses) == {401, 503}
    assert statuses.count(401) <= 64
    assert server.idp.key_hits("flood") <= 2


@pytest.mark.requirement("N26")
def test_a_refusal_does_not_tell_the_caller_which_issuers_are_trusted(
    server: AttackedServer,
) -> None:
    """An unknown issuer, an opaque token and a bad signature get identical answers."""
    refusals = [
        server.refused(server.tokens().token(iss="https://unknown.example")),
        server.refused(server.tokens().token(sign=OTHER_SIGNER)),
        server.refused("opaque-token"),
    ]

    assert (
        len({(reply.status, reply.body, reply.field("www-authenticate")) for reply in refusals})
        == 1
    )
