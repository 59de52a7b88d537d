"""Which entries of a published key set may check signatures."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from gatepost_authz.jwk import ALGORITHMS, SMALL_ORDER, UnusableKeySet, VerificationKey, import_set
from tests.support.issuers import (
    ABSENT,
    base64url_encoded,
    base64url_number,
    ec_key,
    ed448_key,
    ed_key,
    jwk,
    rsa_key,
)
from tests.support.measuring import each

DEFAULT_ALGORITHMS = frozenset({"RS256", "PS256", "ES256", "EdDSA", "Ed25519"})
TENANT = "https://login.example.com/6e5a9c1c/v2.0"


def imported(
    *entries: Any, allowed: frozenset[str] = DEFAULT_ALGORITHMS, issuer: str = ""
) -> tuple[tuple[VerificationKey, ...], list[str]]:
    """Return the keys of a set with these entries, and why the others were skipped."""
    reasons: list[str] = []
    keys = import_set(
        {"keys": list(entries)},
        allowed=allowed,
        issuer=issuer,
        skipped=lambda kid, reason: reasons.append(reason),
    )
    return keys, reasons


def rsa_jwk(modulus: int, exponent: int = 65537) -> dict[str, Any]:
    return {
        "kty": "RSA",
        "kid": "main",
        "n": base64url_number(modulus),
        "e": base64url_number(exponent),
    }


def with_private(**members: Any) -> dict[str, Any]:
    return jwk(rsa_key(), **{"d": "AQAB"} | members)


def okp(x: bytes, curve: str = "Ed25519") -> dict[str, Any]:
    return {"kty": "OKP", "crv": curve, "x": base64url_encoded(x)}


RSA = jwk(rsa_key())
EC = jwk(ec_key())
ODD_2048 = rsa_key().public_key().public_numbers().n

SKIPPED_KEYS = [
    # id    entry                                                   reason
    ("A05", {"kty": "oct", "k": base64url_encoded(b"k" * 32), "kid": "main"}, "symmetric_key"),
    ("A05", RSA | {"k": base64url_encoded(b"k" * 32)}, "symmetric_key"),
    ("A11", jwk(ed448_key()), "bad_parameters"),
    ("A11", EC | {"crv": "P-384"}, "bad_parameters"),
    ("A12", rsa_jwk((1 << 511) + 1), "bad_parameters"),
    ("A12", rsa_jwk((1 << 767) + 1), "bad_parameters"),
    ("A12", rsa_jwk((1 << 1023) + 1), "bad_parameters"),
    ("A12", rsa_jwk((1 << 2046) + 1), "bad_parameters"),
    ("A13", rsa_jwk(ODD_2048, 1), "bad_parameters"),
    ("A13", rsa_jwk(ODD_2048, 3), "bad_parameters"),
    ("A13", rsa_jwk(ODD_2048, 65536), "bad_parameters"),
    ("A13", rsa_jwk(ODD_2048, 0), "bad_parameters"),
    ("A13", rsa_jwk(ODD_2048, (1 << 32) + 1), "bad_parameters"),
    ("A13", rsa_jwk(ODD_2048 + 1), "bad_parameters"),
    ("A13", rsa_jwk((1 << 8192) + 1), "bad_parameters"),
    ("A13", rsa_jwk((1 << 16383) + 1), "bad_parameters"),
    ("A14", EC | {"y": EC["x"]}, "bad_parameters"),
    (
        "A14",
        EC | {"x": base64url_encoded(bytes(32)), "y": base64url_encoded(bytes(32))},
        "bad_parameters",
    ),
    ("A14", EC | {"x": "", "y": ""}, "bad_parameters"),
    ("A14", EC | {"x": base64url_encoded(b"\0" + bytes(32))}, "bad_parameters"),
    ("A14", okp(bytes(31)), "bad_parameters"),
    ("A14", okp(b"\1" + bytes(31)), "bad_parameters"),
    ("A15", RSA | {"use": "enc"}, "not_for_signatures"),
    ("A15", RSA | {"use": None}, "not_for_signatures"),
    ("A15", RSA | {"key_ops": ["encrypt"]}, "not_for_signatures"),
    ("A15", RSA | {"key_ops": []}, "not_for_signatures"),
    ("A15", RSA | {"key_ops": "verify"}, "not_for_signatures"),
    ("A15", RSA | {"alg": "RSA-OAEP"}, "algorithm_not_allowed"),
    ("A15", RSA | {"alg": "RS512"}, "algorithm_not_allowed"),
    ("A15", RSA | {"alg": "HS256"}, "algorithm_not_allowed"),
    ("A15", RSA | {"alg": "none"}, "algorithm_not_allowed"),
    ("A15", RSA | {"alg": "ES256"}, "algorithm_not_allowed"),
    ("A15", RSA | {"alg": None}, "bad_algorithm"),
    ("A15", RSA | {"alg": ["RS256"]}, "bad_algorithm"),
    ("A11", jwk(ec_key("main", "P-384")), "algorithm_not_allowed"),
    ("A16", with_private(), "private_key"),
    ("A16", EC | {"d": "AQAB"}, "private_key"),
    ("A16", jwk(ed_key()) | {"d": "AQAB"}, "private_key"),
    ("A16", RSA | {"p": "AQAB"}, "private_key"),
    ("A17", {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AQAB", "kid": "main"}, "unknown_type"),
    ("A17", {"kid": "main"}, "unknown_type"),
    ("A17", RSA | {"kty": ["RSA"]}, "unknown_type"),
    ("A17", RSA | {"kty": "rsa"}, "unknown_type"),
    ("A17", EC | {"crv": "secp256k1"}, "unknown_type"),
    ("A17", EC | {"crv": ["P-256"]}, "unknown_type"),
    ("A17", "RSA", "not_an_object"),
    ("A17", None, "not_an_object"),
    ("A17", [RSA], "not_an_object"),
    ("A17", RSA | {"n": "***"}, "bad_parameters"),
    ("A17", RSA | {"n": RSA["n"] + "=="}, "bad_parameters"),
    ("A17", RSA | {"n": "\u00e9" * 400}, "bad_parameters"),
    ("A17", RSA | {"n": 65537}, "bad_parameters"),
    ("A17", {"kty": "RSA", "kid": "main"}, "bad_parameters"),
    ("A17", RSA | {"kid": 7}, "bad_kid"),
    ("A17", RSA | {"kid": "k" * 257}, "bad_kid"),
]


@each(
    ("entry", "reason"),
    [
        pytest.param(entry, reason, id=f"{name}-{n}", marks=pytest.mark.requirement(name))
        for n, (name, entry, reason) in enumerate(SKIPPED_KEYS)
    ],
)
def test_an_unusable_key_is_skipped_and_the_rest_of_the_set_is_kept(
    entry: Any, reason: str
) -> None:
    """The log has the reason for each skipped key."""
    keys, reasons = imported(entry, jwk(rsa_key("other"), "other"))

    assert [key.kid for key in keys] == ["other"]
    assert reasons == [reason]


USABLE_KEYS = [
    # id    entry                                                   algorithms it may check
    ("A08", RSA, {"RS256", "PS256"}),
    ("A08", RSA | {"key_ops": ["sign", "verify"]}, {"RS256", "PS256"}),
    ("A07", RSA | {"alg": "RS256"}, {"RS256"}),
    ("A07", RSA | {"alg": "PS256", "use": "sig"}, {"PS256"}),
    ("A06", EC, {"ES256"}),
    ("A10", jwk(ed_key()), {"EdDSA", "Ed25519"}),
    ("A10", jwk(ed_key()) | {"alg": "EdDSA"}, {"EdDSA", "Ed25519"}),
    ("A10", jwk(ed_key()) | {"alg": "Ed25519"}, {"EdDSA", "Ed25519"}),
    ("A12", jwk(rsa_key("long", 4096)), {"RS256", "PS256"}),
    ("A15", jwk(rsa_key(), use=ABSENT), {"RS256", "PS256"}),
    (
        "A17",
        RSA | {"n": base64url_encoded(b"\0" + ODD_2048.to_bytes(256, "big"))},
        {"RS256", "PS256"},
    ),
    ("A17", RSA | {"x5c": ["ignored"], "x5u": "https://evil.example"}, {"RS256", "PS256"}),
]


@each(
    ("entry", "algorithms"),
    [
        pytest.param(entry, algorithms, id=f"{name}-{n}", marks=pytest.mark.requirement(name))
        for n, (name, entry, algorithms) in enumerate(USABLE_KEYS)
    ],
)
def test_the_type_and_alg_of_a_key_fix_its_algorithms(entry: Any, algorithms: set[str]) -> None:
    """The algorithms are fixed at import, so a token cannot choose another one."""
    (key,), reasons = imported(entry)

    assert key.algorithms == algorithms
    assert reasons == []


@pytest.mark.requirement("A09", "A10")
def test_the_allow_list_of_an_issuer_limits_the_algorithms_of_its_keys() -> None:
    """The operator decides about longer hashes; Ed25519 has two names."""
    every = imported(RSA, jwk(ec_key("main", "P-521")), allowed=ALGORITHMS)[0]

    assert every[0].algorithms == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert every[1].algorithms == {"ES512"}
    assert imported(RSA, allowed=frozenset({"RS384"}))[0][0].algorithms == {"RS384"}
    for name in ("EdDSA", "Ed25519"):
        (key,), _ = imported(jwk(ed_key()) | {"alg": "EdDSA"}, allowed=frozenset({name}))
        assert key.algorithms == {"EdDSA", "Ed25519"}


@pytest.mark.requirement("A18")
def test_all_keys_with_the_same_id_are_kept() -> None:
    """Issuers publish one id for an RSA and an EC key."""
    keys, _ = imported(RSA, EC, jwk(rsa_key("twin")))

    assert [key.kid for key in keys] == ["main"] * 3


@pytest.mark.requirement("N05")
@pytest.mark.parametrize(
    "document",
    [{}, {"keys": {}}, {"keys": None}, {"keys": []}, {"keys": "x"}, {"keys": [RSA] * 101}],
    ids=["none", "object", "null", "empty", "string", "too-many"],
)
def test_an_invalid_key_set_document_is_refused_as_a_whole(document: dict[str, Any]) -> None:
    """The keys known before stay in force."""
    with pytest.raises(UnusableKeySet):
        import_set(document, allowed=DEFAULT_ALGORITHMS)


@pytest.mark.parametrize(
    ("member", "is_kept"),
    [
        (TENANT, True),
        ("https://login.example.com/{tenantid}/v2.0", True),
        (ABSENT, True),
        ("https://login.example.com/9188040d/v2.0", False),
        ("https://login.example.com/{tenantid}", False),
        ("https://{tenantid}/v2.0", False),
        ("{tenantid}", False),
        (7, False),
    ],
)
def test_keys_of_other_issuers_in_a_shared_key_set_are_skipped(member: Any, is_kept: bool) -> None:
    """Entra publishes keys of several issuers in one set, each with its issuer."""
    keys, reasons = imported(jwk(rsa_key(), issuer=member), issuer=TENANT)

    assert (len(keys) == 1) is is_kept
    assert reasons == ([] if is_kept else ["other_issuer"])


@pytest.mark.requirement("A14")
def test_keys_that_are_points_of_small_order_are_refused() -> None:
    """With such a key, one signature verifies for any message."""
    for point in SMALL_ORDER:
        for sign in (0, 0x80):
            entry = okp(point[:31] + bytes([point[31] | sign]))
            assert imported(entry, RSA)[1] == ["bad_parameters"]


def test_generated_ed25519_keys_are_accepted() -> None:
    """The list refuses points of small order and no genuine key."""
    for _ in range(50):
        raw = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        assert len(imported(okp(raw))[0]) == 1


@pytest.mark.parametrize("curve", ["P-256", "P-384", "P-521"])
def test_coordinates_with_leading_zeros_are_read_at_full_width(curve: str) -> None:
    """RFC 7518 section 6.2.1.2 fixes the length."""
    curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
    for secret in range(1, 40):
        key = ec.derive_private_key(secret, curves[curve])
        (read,), _ = imported(jwk(key), allowed=ALGORITHMS)
        assert read.public_key == key.public_key()
