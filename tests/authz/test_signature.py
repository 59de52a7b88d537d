"""A token taken apart: shape, header, signature."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

from gatepost_authz.errors import InvalidToken
from gatepost_authz.jwk import ALGORITHMS, VerificationKey, import_set
from gatepost_authz.signature import MAX_TOKEN, header_of, split, verify
from gatepost_authz.verifier import looks_like_jwt
from tests.authz.conftest import FORGE
from tests.support.issuers import (
    ABSENT,
    base64url_decoded,
    base64url_encoded,
    compact_jws,
    ec_key,
    ed448_key,
    ed_key,
    jwk,
    jws_segment,
    rsa_key,
    signer,
)
from tests.support.measuring import each

SIGNER = signer(rsa_key(), "RS256")


def key(private: Any, **members: Any) -> VerificationKey:
    (only,) = import_set({"keys": [jwk(private, **members)]}, allowed=ALGORITHMS)
    return only


def with_header(**members: Any) -> str:
    return FORGE.token(header=members)


def text_header(text: str) -> str:
    return FORGE.token(header=f'{{{text}"typ":"at+jwt","alg":"RS256","kid":"main"}}'.encode())


def with_raw_header(header: bytes) -> str:
    return FORGE.token(header=header)


def with_changed_parts(change: Callable[[str, str, str], str]) -> str:
    return change(*FORGE.token().split("."))


REFUSED_HEADERS = [
    *[("A02", with_header(alg=alg)) for alg in ("none", "None", "NONE", "nOnE", " none")],
    ("A01", FORGE.token(header={"alg": "none"}, sign=lambda data: b"")),
    *[
        ("A03", with_header(alg=alg))
        for alg in (ABSENT, None, 256, ["RS256"], {"alg": 1}, "", True)
    ],
    *[("A04", with_header(alg=alg)) for alg in ("HS256", "HS384", "HS512")],
    *[("A11", with_header(alg=alg)) for alg in ("Ed448", "ES256K", "RSA-OAEP", "rs256", "ES257")],
    ("A20", with_changed_parts(lambda h, p, s: f"{h}.{p}.")),
    ("A20", with_changed_parts(lambda h, p, s: f"{h}.{p}.{s[:-1]}" + chr(ord(s[-1]) + 1))),
    *[("H04", with_header(kid=kid)) for kid in (7, None, ["main"], {"a": 1}, "", "k" * 257, True)],
    *[
        ("H04", with_header(kid=kid))
        for kid in ("kid\r\nX: y", "a\0b", "a\x7f", "\u202eniam", "a\tb")
    ],
    ("H04", with_header(kid="k" * 10_000)),
    *[("H07", with_header(crit=crit)) for crit in (["x"], [], "exp", ["b64"], None)],
    ("H07", with_header(crit=["b64"], b64=True)),
    ("H08", with_header(b64=False)),
    ("H08", with_header(b64=True)),
    *[("H09", with_header(typ=typ)) for typ in (7, None, "", ["at+jwt"])],
    *[
        ("H09", with_header(typ=prefix + typ))
        for typ in ("dpop+jwt", "logout+jwt", "secevent+jwt", "oauth-id-jag+jwt", "DPoP+JWT")
        for prefix in ("", "application/", "APPLICATION/")
    ],
    ("C25", with_header(typ="token-introspection+jwt")),
    ("C25", with_header(typ="oauth-authz-req+jwt")),
    *[("H10", with_header(cty=cty)) for cty in ("JWT", "jwt", "application/json", None)],
    ("H11", text_header('"alg":"none",')),
    ("H11", text_header('"\\u0061lg":"none",')),
    ("H12", with_raw_header(b'["RS256"]')),
    ("H12", with_raw_header(b'{"alg":"RS256","x":"\xff"}')),
    ("H12", text_header('"x":"\\ud800",')),
    ("H12", with_raw_header(b'{"alg":"RS256"}{"alg":"RS256"}')),
    ("H13", text_header(f'"x":{"[" * 1500}{"]" * 1500},')),
    ("H13", text_header(f'"x":{"[" * 8}{"]" * 8},')),
    ("H13", text_header(f'"x":"{"x" * 4096}",')),
    ("H14", with_header(enc="A128GCM")),
    ("H14", with_header(zip="DEF")),
    ("H14", ".".join([jws_segment({"alg": "PBES2-HS256+A128KW", "p2c": 2**31}), *["AAAA"] * 4])),
    ("H15", with_changed_parts(lambda h, p, s: f"{h}..{s}")),
    ("H15", with_changed_parts(lambda h, p, s: f"{h}.{p}")),
    ("H15", with_changed_parts(lambda h, p, s: f"{h}.{p}.{s}.{s}")),
    ("H15", with_changed_parts(lambda h, p, s: f".{p}.{s}")),
    ("H15", "..."),
    ("H15", ".."),
    ("H15", ""),
    (
        "H15",
        with_changed_parts(
            lambda h, p, s: json.dumps({"protected": h, "payload": p, "signature": s})
        ),
    ),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}.{p}.{s}==")),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}=.{p}.{s}")),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}. {p}.{s}")),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}.{p}.{s}\n")),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}.{p}.+{s[1:]}")),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}.{p}./{s[1:]}")),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}.{p}.\u00e9{s[1:]}")),
    ("H16", with_changed_parts(lambda h, p, s: f"{h}.{p}.\ud800{s[1:]}")),
    ("C20", FORGE.token(payload=b'{"iss":"a","iss":"a"}')),
    ("C28", FORGE.token(payload=b'{"a":' + b"[" * 3_000 + b"]" * 3_000 + b"}")),
    ("C28", FORGE.token(payload=b'{"a":' + b"1" * 4_301 + b"}")),
    ("C28", FORGE.token(payload=b'{"a":' + b"[" * 16 + b"]" * 16 + b"}")),
    ("C28", FORGE.token(payload=b"[1]")),
    ("W09", FORGE.token(pad="x" * MAX_TOKEN)),
]


@each(
    "token",
    [
        pytest.param(token, id=f"{name}-{n}", marks=pytest.mark.requirement(name))
        for n, (name, token) in enumerate(REFUSED_HEADERS)
    ],
)
def test_a_malformed_token_is_refused_before_its_key_is_looked_up(token: str) -> None:
    """Splitting accepts only tokens with one reading and a plain header."""
    with pytest.raises(InvalidToken):
        split(token)


@pytest.mark.requirement("H09")
@pytest.mark.parametrize(
    ("typ", "read"),
    [
        ("at+jwt", "at+jwt"),
        ("APPLICATION/AT+JWT", "at+jwt"),
        ("application/at+jwt", "at+jwt"),
        ("application/application/at+jwt", "application/at+jwt"),
        ("JWT", "jwt"),
        (ABSENT, ""),
    ],
)
def test_the_type_is_read_as_a_media_type(typ: Any, read: str) -> None:
    """Case does not matter, and `application/` may be left out (RFC 7515 section 4.1.9)."""
    assert split(with_header(typ=typ)).header.type == read


@pytest.mark.requirement("H01", "H02", "H03")
def test_keys_and_urls_in_a_token_header_are_ignored() -> None:
    """A key in the token proves nothing, so its form is not checked either."""
    lures = {"jku": "http://evil.example", "jwk": jwk(rsa_key()), "x5c": ["x"], "x5u": 7, "x5t": []}

    assert split(with_header(**lures)).header == split(with_header()).header


KEYS_BY_ALGORITHM = [
    ("RS256", rsa_key()),
    ("RS384", rsa_key()),
    ("RS512", rsa_key()),
    ("PS256", rsa_key()),
    ("PS384", rsa_key()),
    ("PS512", rsa_key()),
    ("ES256", ec_key()),
    ("ES384", ec_key("main", "P-384")),
    ("ES512", ec_key("main", "P-521")),
    ("EdDSA", ed_key()),
    ("Ed25519", ed_key()),
]


@pytest.mark.requirement("A08", "A10")
@each(("algorithm", "private"), KEYS_BY_ALGORITHM, ids=[name for name, _ in KEYS_BY_ALGORITHM])
def test_tokens_of_every_supported_algorithm_are_verified(algorithm: str, private: Any) -> None:
    """The key itself names no algorithm."""
    token = FORGE.token(header={"alg": algorithm}, sign=signer(private, algorithm))

    claims = verify(split(token), key(private))

    assert claims is not None
    assert claims["sub"] == "alice"


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "Ed25519"])
def test_tokens_signed_by_another_library_are_verified(algorithm: str) -> None:
    """joserfc signs the tokens, and our importer reads its public key document."""
    key_makers = {
        "RS256": lambda: RSAKey.generate_key(2048),
        "PS256": lambda: RSAKey.generate_key(2048),
        "ES256": lambda: ECKey.generate_key("P-256"),
        "Ed25519": lambda: OKPKey.generate_key("Ed25519"),
    }[algorithm]()
    payload = json.dumps(FORGE.claims())
    token = jws.serialize_compact({"alg": algorithm}, payload, key_makers, algorithms=[algorithm])
    (public,) = import_set({"keys": [key_makers.as_dict(private=False)]}, allowed=ALGORITHMS)

    assert verify(split(token), public) == json.loads(payload)


@pytest.mark.requirement("A06", "A07", "A11")
@pytest.mark.parametrize(
    ("algorithm", "private", "public"),
    [
        ("RS256", rsa_key(), key(ec_key())),
        ("ES256", ec_key(), key(rsa_key())),
        ("PS256", rsa_key(), key(rsa_key(), alg="RS256")),
        ("RS256", rsa_key(), key(rsa_key(), alg="PS256")),
        ("EdDSA", ed_key(), key(rsa_key())),
        ("Ed25519", ed448_key(), key(ed_key())),
        ("ES256", ec_key("main", "P-384"), key(ec_key("main", "P-384"))),
        ("RS256", rsa_key("stranger"), key(rsa_key())),
    ],
)
def test_the_key_decides_the_algorithm(
    algorithm: str, private: Any, public: VerificationKey
) -> None:
    """A token whose header names another algorithm is refused."""
    token = FORGE.token(header={"alg": algorithm}, sign=signer(private, algorithm))

    assert verify(split(token), public) is None


def der_signature(data: bytes) -> bytes:
    return ec_key().sign(data, ec.ECDSA(hashes.SHA256()))


@pytest.mark.requirement("A19")
@pytest.mark.parametrize(
    "sign",
    [
        der_signature,
        *(lambda data, raw=raw: raw for raw in (bytes(64), b"\1" * 63, b"\1" * 65, b"\xff" * 64)),
    ],
    ids=["der", "zeros", "short", "long", "out-of-range"],
)
def test_ec_signatures_in_another_form_are_refused(sign: Any) -> None:
    """r and s have full width (RFC 7518 section 3.4), and neither is zero."""
    token = FORGE.token(header={"alg": "ES256"}, sign=sign)

    assert verify(split(token), key(ec_key())) is None


@pytest.mark.requirement("A19")
@pytest.mark.parametrize("half", [0, 1])
def test_an_ec_signature_with_r_or_s_zero_is_refused(half: int) -> None:
    """Only one of the two values is zero (CVE-2022-21449)."""
    valid_signer = signer(ec_key(), "ES256")

    def sign(data: bytes) -> bytes:
        signature = valid_signer(data)
        return bytes(32) + signature[32:] if half == 0 else signature[:32] + bytes(32)

    assert verify(split(FORGE.token(header={"alg": "ES256"}, sign=sign)), key(ec_key())) is None


@pytest.mark.requirement("A20")
@pytest.mark.parametrize("private", [rsa_key(), ec_key(), ed_key()], ids=["RSA", "EC", "OKP"])
@pytest.mark.parametrize("change", [lambda s: s[:-3], lambda s: s + b"\0", lambda s: b"\0" + s])
def test_a_signature_of_another_length_is_refused(private: Any, change: Any) -> None:
    """It is truncated, or padded with zeros on either side."""
    algorithm = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[jwk(private)["kty"]]
    valid_signer = signer(private, algorithm)
    token = FORGE.token(header={"alg": algorithm}, sign=lambda data: change(valid_signer(data)))

    assert verify(split(token), key(private)) is None


@pytest.mark.requirement("A20")
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_token_with_one_changed_byte_is_refused(position: int, flip: int) -> None:
    """The byte is in the header, the payload or the signature."""
    parts = [bytearray(base64url_decoded(part)) for part in TOKEN.split(".")]
    whole = [(part, index) for part in parts for index in range(len(part))]
    part, index = whole[position % len(whole)]
    part[index] ^= flip
    try:
        changed = split(".".join(base64url_encoded(bytes(part)) for part in parts))
    except InvalidToken:
        return
    assert verify(changed, key(rsa_key())) is None


TOKEN = FORGE.token()


@given(
    st.text(max_size=80)
    | st.binary(max_size=60).map(lambda data: f"{TOKEN[:60]}.{base64url_encoded(data)}.x")
)
def test_splitting_arbitrary_text_raises_only_invalid_token(token: str) -> None:
    """Splitting returns parts or raises InvalidToken; the shape check never raises."""
    looks_like_jwt(token)
    try:
        split(token)
    except InvalidToken:
        return


@pytest.mark.requirement("N21")
def test_the_header_cache_is_bounded_and_has_no_refused_headers() -> None:
    """An attacker who invents headers neither fills the memory nor changes a result."""
    header_of.cache_clear()
    for number in range(600):
        split(with_header(kid=f"kid-{number}"))
    for _ in range(2):
        with pytest.raises(InvalidToken):
            split(with_header(alg="none"))

    assert header_of.cache_info().currsize <= 256
    assert split(compact_jws(FORGE.header(), FORGE.claims(), SIGNER)).header.kid == "main"


@pytest.mark.parametrize(
    ("token", "answer"),
    [(TOKEN, True), ("ya29.a0Af.xyz", False), ("ory_at_abc", False), ("a.b", False), ("e..", True)],
)
def test_opaque_tokens_are_recognised_by_their_shape(token: str, answer: bool) -> None:
    """A token that begins like a JSON object in base64url counts as signed."""
    assert looks_like_jwt(token) is answer
