"""Tricks in the token's header: group H of the attack catalogue, over HTTP."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.attacks.conftest import AttackedServer
from tests.support import issuers as f
from tests.support.issuers import ABSENT, base64url_encoded, compact_jws, rsa_key, signer
from tests.support.measuring import each

# Which HTTP parser hands it on makes no difference to what a token says.
pytestmark = pytest.mark.parametrize("server", ["httptools"], indirect=True)

Make = Callable[[AttackedServer], str]
SIGNER = signer(rsa_key(), "RS256")


def with_header(**members: Any) -> Make:
    return lambda server: server.tokens().token(header=members)


def raw_header(data: bytes) -> Make:
    return lambda server: server.tokens().token(header=data)


def text_header(text: str) -> Make:
    """Return a header with this text spliced in before the usual members."""
    return raw_header((f'{{{text}"typ":"at+jwt","alg":"RS256","kid":"main"}}').encode())


def with_embedded_key(server: AttackedServer) -> str:
    stranger = rsa_key("stranger")
    return server.tokens().token(
        header={"jwk": f.jwk(stranger, None)}, sign=signer(stranger, "RS256")
    )


def with_unknown_key(**members: Any) -> Make:
    return lambda server: server.tokens().token(
        header=members, sign=signer(rsa_key("stranger"), "RS256")
    )


def with_changed_parts(change: Callable[[str, str, str], str]) -> Make:
    return lambda server: change(*server.tokens().token().split("."))


def flattened(head: str, body: str, signature: str) -> str:
    return json.dumps({"protected": head, "payload": body, "signature": signature})


def encrypted(server: AttackedServer) -> str:
    header = {"alg": "PBES2-HS256+A128KW", "enc": "A128CBC-HS256", "p2s": "YWJj", "p2c": 2**31}
    return ".".join([f.jws_segment(header), *(base64url_encoded(b"x" * 16) for _ in range(4))])


def detached(server: AttackedServer) -> str:
    head, _, signature = server.tokens().token().split(".")
    return f"{head}..{signature}"


def unencoded(size: int) -> Make:
    """Sign the payload as it is, over the raw bytes (RFC 7797)."""

    def make(server: AttackedServer) -> str:
        claims = json.dumps(server.tokens().claims(pad="x" * size)).encode()
        header = server.tokens().header(b64=False, crit=["b64"])
        return compact_jws(header, claims, SIGNER)

    return make


def padded(part: int) -> Make:
    def make(server: AttackedServer) -> str:
        parts = server.tokens().token(pad="xx").split(".")
        parts[part] += "=" * (-len(parts[part]) % 4 or 1)
        return ".".join(parts)

    return make


def standard_alphabet(server: AttackedServer) -> str:
    head, body, signature = server.tokens().token().split(".")
    plain = base64.b64encode(f.base64url_decoded(signature)).rstrip(b"=").decode()
    return f"{head}.{body}.{plain if plain != signature else '+' + plain[1:]}"


def case(identifier: str, name: str, make: Make, status: int = 401) -> Any:
    return pytest.param(
        make, status, id=f"{identifier}-{name}", marks=pytest.mark.requirement(identifier)
    )


BAD_KIDS = {
    "number": 7,
    "null": None,
    "array": ["main"],
    "object": {"main": 1},
    "empty": "",
}
TYPES = ("JWT", "dpop+jwt", "logout+jwt", "secevent+jwt", "oauth-id-jag+jwt", "at+jwtx", 7, "")

REFUSED_HEADERS = [
    case("H01", "jku", with_unknown_key(jku="http://127.0.0.1:9/keys")),
    case("H01", "x5u", with_unknown_key(x5u="http://127.0.0.1:9/cert")),
    case("H02", "jwk", with_embedded_key),
    case("H03", "x5c", with_unknown_key(x5c=[base64.b64encode(b"certificate").decode()])),
    *[case("H04", name, with_header(kid=kid)) for name, kid in BAD_KIDS.items()],
    case("H04", "10-kB", with_header(kid="k" * 10_000)),
    case("H07", "unknown", with_header(crit=["x"], x=1)),
    case("H07", "empty", with_header(crit=[])),
    case("H07", "string", with_header(crit="exp")),
    case("H07", "b64-true", with_header(crit=["b64"], b64=True)),
    case("H08", "b64-false", unencoded(0)),
    case("H08", "b64-false-large", unencoded(8_000)),
    case("H08", "b64-false-uncritical", with_header(b64=False)),
    *[case("H09", repr(typ), with_header(typ=typ)) for typ in TYPES],
    case("H09", "absent", with_header(typ=ABSENT)),
    case("H10", "nested", with_header(cty="JWT")),
    case("H11", "none-first", text_header('"alg":"none",')),
    case("H11", "escaped", text_header('"\\u0061lg":"none",')),
    case("H12", "array", raw_header(b'["RS256"]')),
    case("H12", "string", raw_header(b'"RS256"')),
    case(
        "H12", "utf-16", raw_header('{"alg":"RS256","typ":"at+jwt","kid":"main"}'.encode("utf-16"))
    ),
    case("H12", "bom", raw_header(b'\xef\xbb\xbf{"alg":"RS256","typ":"at+jwt","kid":"main"}')),
    case(
        "H12",
        "invalid-utf-8",
        raw_header(b'{"x":"\xff","alg":"RS256","typ":"at+jwt","kid":"main"}'),
    ),
    case("H12", "lone-surrogate", text_header('"x":"\\ud800",')),
    case("H13", "deep", text_header(f'"x":{"[" * 1500}{"]" * 1500},')),
    case("H14", "jwe", encrypted),
    case("H14", "enc", with_header(enc="A128GCM")),
    case("H14", "zip", with_header(zip="DEF")),
    case("H15", "detached", detached),
    case("H15", "two-segments", with_changed_parts(lambda h, b, s: f"{h}.{b}")),
    case("H15", "four-segments", with_changed_parts(lambda h, b, s: f"{h}.{b}.{s}.{s}")),
    case("H15", "no-header", with_changed_parts(lambda h, b, s: f".{b}.{s}")),
    case("H15", "only-dots", with_changed_parts(lambda h, b, s: "...")),
    case("H15", "json", with_changed_parts(flattened), 400),
    case("H16", "plus-and-slash", standard_alphabet),
    case("H16", "space-inside", with_changed_parts(lambda h, b, s: f"{h}. {b}.{s}"), 400),
    case("H16", "tab-inside", with_changed_parts(lambda h, b, s: f"{h}.\t{b}.{s}"), 400),
    *[case("H16", f"padding-{part}", padded(part), 400) for part in (0, 1)],
    case("H16", "padding-2", padded(2)),
]


@each(("make", "status"), REFUSED_HEADERS)
def test_a_token_with_a_manipulated_header_is_refused(
    server: AttackedServer, make: Make, status: int
) -> None:
    """The header may choose one of the issuer's keys and algorithms, but bring none."""
    error = "invalid_token" if status == 401 else "invalid_request"

    server.refused(make(server), status=status, error=error)


@pytest.mark.requirement("H09")
@each("typ", ["at+jwt", "APPLICATION/AT+JWT", "application/at+jwt", "AT+JWT"])
def test_the_type_of_an_access_token_is_read_as_a_media_type(
    server: AttackedServer, typ: str
) -> None:
    """Media types compare without regard to case, and `application/` may be left out (RFC 7515)."""
    server.accepted(server.tokens().token(header={"typ": typ}))


@pytest.mark.requirement("H01")
def test_key_urls_in_a_token_header_are_never_fetched(server: AttackedServer) -> None:
    """An attacker puts key addresses into a token to make the server call other hosts."""
    server.accepted(server.tokens().token())
    before = server.idp.hits.copy()
    lure = f"{server.idp.base}/lure"

    server.accepted(server.tokens().token(header={"jku": lure, "x5u": lure}))
    server.refused(with_unknown_key(jku=lure, x5u=lure)(server))

    assert server.idp.hits["/lure"] == before["/lure"] == 0
