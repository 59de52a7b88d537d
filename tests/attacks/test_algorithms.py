"""Algorithm and key confusion: group A of the attack catalogue, over HTTP."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.attacks.conftest import ODD_ENTRIES, AttackedServer
from tests.support import issuers as f
from tests.support.issuers import (
    ABSENT,
    base64url_encoded,
    compact_jws,
    ec_key,
    ed448_key,
    ed_key,
    rsa_key,
    signer,
)
from tests.support.measuring import each

# Which HTTP parser hands it on makes no difference to what a token says.
pytestmark = pytest.mark.parametrize("server", ["httptools"], indirect=True)

Make = Callable[[AttackedServer], str]


def unsigned(alg: Any) -> Make:
    return lambda server: server.tokens("offline").token(header={"alg": alg}, sign=lambda data: b"")


def resigned(alg: Any) -> Make:
    return lambda server: server.tokens("offline").token(header={"alg": alg})


def hmac_with(form: str) -> Make:
    public = rsa_key().public_key()
    pem, spki = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    forms = {
        "pem": public.public_bytes(pem, spki),
        "der": public.public_bytes(serialization.Encoding.DER, spki),
        "jwk": json.dumps(f.jwk(rsa_key())).encode(),
        "ssh": public.public_bytes(*openssh),
    }
    return lambda server: server.tokens().token(
        header={"alg": "HS256"}, sign=signer(forms[form], "HS256")
    )


def signed_by(issuer: str, alg: str, key: Any, kid: str | None = "main", as_alg: str = "") -> Make:
    """Return a token signed by *key* under *alg*; the header says *as_alg*."""
    return lambda server: server.tokens(issuer).token(
        header={"alg": as_alg or alg, "kid": kid or ABSENT}, sign=signer(key, alg)
    )


def der_signature(data: bytes) -> bytes:
    return ec_key().sign(data, ec.ECDSA(hashes.SHA256()))


def with_changed_signature(change: Callable[[str], str]) -> Make:
    def make(server: AttackedServer) -> str:
        head, body, signature = server.tokens().token().split(".")
        return f"{head}.{body}.{change(signature)}"

    return make


def noncanonical(signature: str) -> str:
    """Spell the same bytes with stray bits in the last character (RFC 4648 section 3.5)."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = signature[:-1] + alphabet[alphabet.index(signature[-1]) + 1]
    pad = "=" * (-len(signature) % 4)
    assert base64.urlsafe_b64decode(other + pad) == base64.urlsafe_b64decode(signature + pad)
    return other


def flipped(signature: str) -> str:
    raw = bytearray(f.base64url_decoded(signature))
    raw[10] ^= 1
    return base64url_encoded(bytes(raw))


def case(identifier: str, name: str, make: Make, *, offline: bool = False) -> Any:
    return pytest.param(
        make, offline, id=f"{identifier}-{name}", marks=pytest.mark.requirement(identifier)
    )


REFUSED_TOKENS = [
    case("A01", "none", unsigned("none"), offline=True),
    *[case("A02", repr(a), unsigned(a), offline=True) for a in ("None", "NONE", "nOnE", " none")],
    *[
        case("A03", repr(a), resigned(a), offline=True)
        for a in (ABSENT, None, 256, ["RS256"], {"alg": "RS256"}, "", True)
    ],
    *[case("A04", form, hmac_with(form)) for form in ("pem", "der", "jwk", "ssh")],
    case("A05", "oct-key", signed_by("oct", "HS256", b"k" * 32)),
    case("A06", "RS256-for-EC-key", signed_by("ec", "RS256", rsa_key("stranger"))),
    case("A06", "ES256-for-RSA-key", signed_by("main", "ES256", ec_key())),
    case("A07", "PS256-key-says-RS256", signed_by("rs-only", "PS256", rsa_key())),
    case("A09", "RS384-not-allowed", signed_by("offline", "RS384", rsa_key()), offline=True),
    case("A11", "Ed448", signed_by("ed448", "EdDSA", ed448_key(), as_alg="Ed25519")),
    case("A11", "Ed448-as-EdDSA", signed_by("ed448-too", "EdDSA", ed448_key())),
    case("A11", "ES256-P-384", signed_by("p384", "ES256", ec_key("main", "P-384"))),
    *[
        case("A12", f"{bits}", signed_by(f"rsa-{bits}", "RS256", rsa_key("weak", bits)))
        for bits in (1024,)
    ],
    case("A12", "512-modulus", signed_by("rsa-512", "RS256", rsa_key())),
    case("A12", "768-modulus", signed_by("rsa-768", "RS256", rsa_key())),
    case("A13", "exponent-3", signed_by("exponent-3", "RS256", rsa_key("three", 2048, 3))),
    case("A13", "exponent-1", signed_by("exponent-1", "RS256", rsa_key())),
    case("A13", "16384-bit", signed_by("rsa-16384", "RS256", rsa_key())),
    *[
        case("A14", n, signed_by(n, "ES256", ec_key(), kid=k))
        for n, k in (("off-curve", "bad"), ("infinity", "infinity"))
    ],
    *[
        case("A15", n, signed_by(n, "RS256", rsa_key(), kid="bad"))
        for n in ("use-enc", "key-ops", "oaep")
    ],
    case("A16", "private-member", signed_by("private", "RS256", rsa_key(), kid="leaked")),
    *[
        case("A17", n, signed_by(n, "RS256", rsa_key(), kid="bad"))
        for n in ("no-kty", "akp", "bad-base64")
    ],
    case("A19", "der", lambda s: s.tokens("ec").token(header={"alg": "ES256"}, sign=der_signature)),
    *[
        case(
            "A19",
            name,
            lambda s, raw=raw: s.tokens("ec").token(header={"alg": "ES256"}, sign=lambda data: raw),
        )
        for name, raw in (("zeros", bytes(64)), ("short", b"\x01" * 63), ("long", b"\x01" * 65))
    ],
    case("A20", "stripped", with_changed_signature(lambda signature: "")),
    case("A20", "truncated", with_changed_signature(lambda signature: signature[:-8])),
    case("A20", "flipped", with_changed_signature(flipped)),
    case("A20", "non-canonical-tail", with_changed_signature(noncanonical)),
    case("A20", "stranger", signed_by("main", "RS256", rsa_key("stranger"))),
]

ACCEPTED_TOKENS = [
    case("A08", "PS256-key-without-alg", signed_by("main", "PS256", rsa_key())),
    case("A10", "EdDSA", signed_by("ed", "EdDSA", ed_key())),
    case("A10", "Ed25519", signed_by("ed", "EdDSA", ed_key(), as_alg="Ed25519")),
    *[
        case(identifier, f"good-beside-{n}", signed_by(n, "RS256", rsa_key("spare"), kid="spare"))
        for identifier, names in (
            ("A14", ("off-curve", "infinity")),
            ("A15", ("use-enc", "key-ops", "oaep")),
            ("A17", ("no-kty", "akp", "bad-base64", *ODD_ENTRIES)),
        )
        for n in names
    ],
    case(
        "A16",
        "good-key-beside-leaked",
        signed_by("private", "RS256", rsa_key("other"), kid="other"),
    ),
    case("A18", "second-of-two", signed_by("twins", "RS256", rsa_key("twin"))),
    case("A18", "other-type-of-two", signed_by("twins", "ES256", ec_key("twin"))),
    case("A08", "plain", lambda server: server.tokens().token()),
]


@each(("make", "offline"), REFUSED_TOKENS)
def test_tokens_with_a_confused_algorithm_or_key_are_refused(
    server: AttackedServer, make: Make, offline: bool
) -> None:
    """The server accepts only the issuer's own algorithm and key, whatever the header claims."""
    server.refused(make(server))

    if offline:
        # Only such cases name this issuer, so its keys were never asked for.
        assert server.idp.key_hits("offline") == 0


@each(("make", "offline"), ACCEPTED_TOKENS)
def test_unusable_keys_in_a_key_set_do_not_affect_the_good_keys(
    server: AttackedServer, make: Make, offline: bool
) -> None:
    """The server skips keys that it cannot use and keeps the rest of the set."""
    server.accepted(make(server))


@pytest.mark.requirement("A05", "A16")
def test_a_token_signed_with_a_published_symmetric_key_is_refused(server: AttackedServer) -> None:
    """A symmetric key in a public key set never verifies a token."""
    token = compact_jws(
        server.tokens("oct").header(alg="HS256", kid="octet"),
        server.tokens("oct").claims(),
        signer(b"k" * 32, "HS256"),
    )

    server.refused(token)
