"""What a token says of itself: group C of the attack catalogue, over HTTP."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.attacks.conftest import AttackedServer
from tests.support.issuers import ABSENT, rsa_key, signer
from tests.support.measuring import each

# Which HTTP parser hands it on makes no difference to what a token says.
pytestmark = pytest.mark.parametrize("server", ["httptools"], indirect=True)

Make = Callable[[AttackedServer], str]
LAST_SECOND = 253_402_300_799  # the last second of year 9999


def claim(**claims: Any) -> Make:
    return lambda server: server.tokens().token(**claims)


def with_literal_member(member: str, raw: str) -> Make:
    """Write the member's value as exactly this JSON text, which Python's encoder cannot write."""
    return lambda server: server.tokens().text(member, raw)


def with_member_text(text: str) -> Make:
    """Put this text before the usual members of the payload."""
    return lambda server: server.tokens().text("pad", f'"",{text}"pad2":""')


def with_later_time(member: str, seconds: int) -> Make:
    return lambda server: server.tokens().token(**{member: int(time.time()) + seconds})


def issuer(change: Callable[[str], Any]) -> Make:
    return lambda server: server.tokens().token(iss=change(server.tokens().issuer))


def audience(change: Callable[[str], Any]) -> Make:
    return lambda server: server.tokens().token(aud=change(server.client.resource))


def with_type(typ: str, **claims: Any) -> Make:
    return lambda server: server.tokens().token(header={"typ": typ}, **claims)


def case(identifier: str, name: str, make: Make) -> Any:
    return pytest.param(make, id=f"{identifier}-{name}", marks=pytest.mark.requirement(identifier))


NUMBERS = {
    "string": '"1799999999"',
    "spaces": '" 1799999999 "',
    "underscores": '"1_799_999_999"',
    "full-width": '"\uff11\uff17\uff19\uff19\uff19\uff19\uff19\uff19\uff19\uff19"',
}
NOT_TIMES = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "1e400": "1e400",
    "true": "true",
    "array": "[1799999999]",
    "negative": "-1",
    "zero": "0",
    "null": "null",
}

REFUSED_CLAIMS = [
    case("C01", "absent", claim(exp=ABSENT)),
    *[case("C02", name, with_literal_member("exp", raw)) for name, raw in NUMBERS.items()],
    *[case("C03", name, with_literal_member("exp", raw)) for name, raw in NOT_TIMES.items()],
    case("C04", "10^400", with_literal_member("exp", "1" + "0" * 400)),
    case("C04", "2^53+1", with_literal_member("exp", str(2**53 + 1))),
    case("C04", "year-9999", claim(exp=LAST_SECOND)),
    case("C05", "long-past", with_later_time("exp", -3600)),
    case("C05", "past-the-leeway", with_later_time("exp", -31)),
    case("C06", "future", with_later_time("nbf", 3600)),
    case("C06", "string", with_literal_member("nbf", '"0"')),
    case("C06", "NaN", with_literal_member("nbf", "NaN")),
    case("C06", "boolean", claim(nbf=True)),
    case("C07", "future", with_later_time("iat", 3600)),
    case("C07", "absent", claim(iat=ABSENT)),
    case("C07", "older-than-a-lifetime", claim(iat=1)),
    case("C09", "absent", claim(iss=ABSENT)),
    case("C09", "list", issuer(lambda iss: [iss])),
    case("C09", "object", issuer(lambda iss: {"iss": iss})),
    case("C09", "trailing-slash", issuer(lambda iss: iss + "/")),
    case("C09", "case", issuer(str.upper)),
    case("C09", "double-slash", issuer(lambda iss: iss.replace("/main", "//main"))),
    case("C09", "percent", issuer(lambda iss: iss.replace("main", "m%61in"))),
    case("C09", "homoglyph", issuer(lambda iss: iss.replace("main", "m\u0430in"))),
    case("C09", "localhost", issuer(lambda iss: iss.replace("127.0.0.1", "localhost"))),
    case("C10", "longer", issuer(lambda iss: iss + "x")),
    case("C10", "shorter", issuer(lambda iss: iss[:-1])),
    case("C10", "inside", issuer(lambda iss: f"https://evil.example/{iss}")),
    case("C11", "other-issuer", issuer(lambda iss: iss.replace("main", "ec"))),
    case("C13", "absent", claim(aud=ABSENT)),
    *[case("C13", repr(a), claim(aud=a)) for a in ("", [], 7, {"aud": 1}, None, [None])],
    case("C13", "mixed-list", audience(lambda aud: [aud, 7])),
    case("C14", "trailing-slash", audience(lambda aud: aud + "/")),
    case("C14", "host-case", audience(lambda aud: aud.replace("http:", "HTTP:"))),
    case("C14", "other-path", audience(lambda aud: aud + "2")),
    case("C14", "parent", audience(lambda aud: aud.removesuffix("/mcp"))),
    case("C14", "sibling", audience(lambda aud: aud.replace("/mcp", "/t/globex/mcp"))),
    case("C14", "client-id", claim(aud="client-1")),
    *[
        case("C17", repr(s)[:20], claim(sub=s))
        for s in ("", ABSENT, None, 7, "x" * 10_000, "a\nb", "a\0b", " alice", "alice ", ["alice"])
    ],
    *[case("C19", repr(c), claim(client_id=c)) for c in ({"id": 1}, ["client-1"], 7, None, ABSENT)],
    case("C20", "sub", with_member_text('"sub":"bob",')),
    case("C20", "aud", with_member_text('"aud":"x",')),
    case("C20", "escaped", with_member_text('"\\u0073ub":"bob",')),
    case("C21", "Sub", claim(sub=ABSENT, Sub="alice")),
    case("C21", "EXP", claim(exp=ABSENT, EXP=int(time.time()) + 300)),
    *[
        case("C22", repr(s)[:16], claim(scope=s))
        for s in (["files:write"], 7, {"a": 1}, None, "a\tb", "x " * 5_000)
    ],
    case("C24", "nonce", claim(nonce="n")),
    case("C24", "at_hash", claim(at_hash="h")),
    case("C24", "id-token", with_type("JWT", aud="client-1", nonce="n")),
    *[
        case("C25", typ, with_type(typ))
        for typ in ("refresh+jwt", "logout+jwt", "secevent+jwt", "oauth-id-jag+jwt", "dpop+jwt")
    ],
    case("C25", "introspection", with_type("token-introspection+jwt", token_introspection={})),
    case("C25", "refresh", claim(typ="Refresh")),
    case("C25", "id", claim(typ="ID")),
    case("C25", "events", claim(events={"http://schemas.openid.net/event/x": {}})),
    case("C26", "jkt", claim(cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"})),
    case("D08", "jkt", claim(cnf={"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"})),
    case("C27", "unknown", claim(cnf={"x": "y"})),
    *[case("C27", repr(c), claim(cnf=c)) for c in ("jkt", [], 7, None, {})],
    case("C28", "deep", with_literal_member("x", "[" * 3_000 + "]" * 3_000)),
    case("C28", "long-integer", with_literal_member("x", "1" * 4_301)),
    *[
        case("C29", repr(o), claim(org_id=o))
        for o in (ABSENT, None, ["acme"], 7, "", "acme ", "Acme", "unknown", "../acme", "t-acme")
    ],
]


@each("make", REFUSED_CLAIMS)
def test_a_token_with_a_wrong_claim_never_runs_a_tool(server: AttackedServer, make: Make) -> None:
    """Each claim must have the right kind, name this server and be valid now."""
    server.refused(make(server))


ACCEPTED_CLAIMS = [
    case("C05", "fraction", lambda server: server.tokens().text("exp", f"{time.time() + 100:.3f}")),
    case("C05", "within-the-leeway", with_later_time("exp", -20)),
    case("C06", "past", with_later_time("nbf", -60)),
    case("C15", "several", audience(lambda aud: ["https://other.example/mcp", aud])),
    case("C21", "extra", claim(Sub="bob", AUD="x")),
    case("C22", "repeated", claim(scope="files:write files:write")),
    case("C22", "empty", claim(scope="")),
    case("C30", "actor", claim(act={"sub": "agent-7"})),
]


@each("make", ACCEPTED_CLAIMS)
def test_tokens_that_rfc_9068_allows_are_accepted(server: AttackedServer, make: Make) -> None:
    """The gate accepts every variant that the profile allows."""
    server.accepted(make(server))


@pytest.mark.requirement("C11", "N16")
def test_keys_of_one_issuer_do_not_verify_tokens_of_another(server: AttackedServer) -> None:
    """Both issuers are trusted and use the same key id."""
    server.accepted(server.tokens("ec").token(header={"alg": "ES256"}, sign=server.signer_of("ec")))

    server.refused(
        server.tokens("main").token(header={"alg": "ES256"}, sign=server.signer_of("ec"))
    )
    server.refused(server.tokens("ec").token(sign=signer(rsa_key(), "RS256")))


@pytest.mark.requirement("C18")
def test_a_client_with_the_id_of_a_person_is_a_different_caller(server: AttackedServer) -> None:
    """A client that registers with a person's id cannot reach that person's data."""
    person = server.accepted(server.tokens().token(sub="alice", client_id="client-1"))
    machine = server.accepted(server.tokens().token(sub="alice", client_id="alice"))

    assert (person.subject_kind, machine.subject_kind) == ("user", "client")
    assert person.principal_key != machine.principal_key


@pytest.mark.requirement("C22")
def test_a_scope_is_compared_whole(server: AttackedServer) -> None:
    """`files:writer` is not `files:write`."""
    server.refused(
        server.tokens().token(scope="files:writer xfiles:write files:writ"),
        tool="record_write",
        status=403,
        error="insufficient_scope",
    )


@pytest.mark.requirement("C23")
def test_scopes_of_two_claims_are_not_combined(server: AttackedServer) -> None:
    """The preset decides which claim holds the scopes; a second claim grants nothing."""
    token = server.tokens().token(scope="files:read", scp="files:write")

    server.refused(token, tool="record_write", status=403, error="insufficient_scope")
    server.accepted(token, tool="record_read")


@pytest.mark.requirement("C30")
def test_only_the_outermost_actor_claim_is_used(server: AttackedServer) -> None:
    """Deeper actors are history (RFC 8693 section 4.1); fifty levels are refused."""
    act: dict[str, Any] = {"sub": "admin"}
    for _ in range(50):
        act = {"sub": "agent", "act": act}

    server.refused(server.tokens().token(act=act))
    caller = server.accepted(server.tokens().token(act={"sub": "agent", "act": {"sub": "admin"}}))
    assert caller.actor == "agent"
    assert caller.roles == frozenset()


@pytest.mark.requirement("C29", "A6")
def test_headers_cannot_change_the_tenant_of_a_token(server: AttackedServer) -> None:
    """A caller cannot select another tenant by a header."""
    headers = {"X-Tenant-Id": "globex", "X-Org-Id": "globex", "X_Tenant": "globex"}

    caller = server.accepted(server.tokens().token(), headers=headers)

    assert caller.tenant_id == "acme"


@pytest.mark.requirement("C29")
def test_an_issuer_cannot_claim_a_tenant_of_another_issuer(server: AttackedServer) -> None:
    """A tenant belongs to the issuer whose table names it."""
    server.accepted(server.tokens("rival").token(org_id="rival-org"))

    server.refused(server.tokens("rival").token(org_id="acme"))
    server.refused(server.tokens("rival").token(org_id="globex"))
