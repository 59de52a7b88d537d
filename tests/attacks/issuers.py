"""The issuers that the attacked server trusts: one per odd key set and per fault."""

from typing import Any

from tests.support import tokens as f
from tests.support.issuers import Idp
from tests.support.tokens import ABSENT, ec_key, ed448_key, ed_key, number, rsa_key

SMALL = {512: (1 << 511) | 1, 768: (1 << 767) | 1}


def with_modulus(modulus: int, **members: Any) -> dict[str, Any]:
    return f.jwk(rsa_key()) | {"n": number(modulus)} | members


def spare() -> dict[str, Any]:
    """A good key beside bad ones, so that the set as a whole is usable."""
    return f.jwk(rsa_key("spare"), "spare")


def off_curve() -> dict[str, Any]:
    good = f.jwk(ec_key())
    return good | {"kid": "bad", "y": good["x"]}


def infinity() -> dict[str, Any]:
    return f.jwk(ec_key()) | {"kid": "infinity", "x": number(0, 32), "y": number(0, 32)}


def private() -> list[dict[str, Any]]:
    leaked = f.jwk(rsa_key(), "leaked")
    secret = rsa_key().private_numbers().d
    return [leaked | {"d": number(secret)}, f.jwk(rsa_key("other"), "other")]


ODD_ENTRIES: dict[str, Any] = {
    "akp": {"kty": "AKP", "kid": "bad", "alg": "ML-DSA-44", "pub": "AAAA"},
    "text": "a string",
    "nothing": None,
    "number": 17,
}


def twins() -> list[dict[str, Any]]:
    return [f.jwk(rsa_key()), f.jwk(rsa_key("twin")), f.jwk(ec_key("twin"))]


def odd_key_sets() -> dict[str, list[Any]]:
    """Issuer name → its key set; every one signs for the tenant of its own name."""
    good = f.jwk(rsa_key())
    bad = {
        "ed448": f.jwk(ed448_key()),
        "ed448-too": f.jwk(ed448_key()),
        "p384": f.jwk(ec_key("main", "P-384")),
        "rsa-512": with_modulus(SMALL[512]),
        "rsa-768": with_modulus(SMALL[768]),
        "rsa-1024": f.jwk(rsa_key("weak", 1024)),
        "rsa-16384": with_modulus((1 << 16383) | 1),
        "exponent-3": f.jwk(rsa_key("three", 2048, 3)),
        "exponent-1": good | {"e": number(1)},
        "off-curve": off_curve(),
        "infinity": infinity(),
        "use-enc": good | {"kid": "bad", "use": "enc"},
        "key-ops": f.jwk(rsa_key(), "bad", use=ABSENT, key_ops=["encrypt"]),
        "oaep": good | {"kid": "bad", "alg": "RSA-OAEP"},
        "no-kty": f.jwk(rsa_key(), "bad", kty=ABSENT),
        "bad-base64": good | {"kid": "bad", "n": "not base64!"},
    } | ODD_ENTRIES
    return {
        "oct": [{"kty": "oct", "kid": "main", "k": f.b64(b"k" * 32)}, spare()],
        "ec": [f.jwk(ec_key())],
        "rs-only": [f.jwk(rsa_key(), alg="RS256")],
        "ed": [f.jwk(ed_key())],
        "private": private(),
        "twins": twins(),
    } | {name: [entry, spare()] for name, entry in bad.items()}


# Issuers that behave until a test makes them misbehave; each is used by one test on one parser.
FAULTY = (
    "slow", "drip", "fails-500", "fails-404", "fails-429", "huge", "html", "array", "null",
    "no-list", "no-keys", "doubled", "redirects", "lies", "rotates", "drops", "replaces", "crowd",
    "leaver", "flood", "outage", "shares-a", "shares-b", "recovers", "offline",
)  # fmt: skip


def configure(idp: Idp) -> list[dict[str, Any]]:
    """The `[[issuers]]` tables for all of them, and their key sets put in place."""
    tables: list[dict[str, Any]] = [
        {
            "issuer": idp.issuer("main", [f.jwk(rsa_key())]),
            "tenant": {"claim": "org_id"},
            "tenants": {"acme": "acme", "globex": "globex"},
            "roles": {"admin": {"claim": "roles", "value": "admin"}},
        },
        {
            "issuer": idp.issuer("rival", [f.jwk(rsa_key())]),
            "tenant": {"claim": "org_id"},
            "tenants": {"rival-org": "rival"},
        },
    ]
    sets = odd_key_sets() | {name: [f.jwk(rsa_key())] for name in FAULTY}
    for name, keys in sets.items():
        tables.append({"issuer": idp.issuer(name, keys), "tenant": {"value": name}})
        if name == "shares-b":
            tables[-1]["jwks_uri"] = f"{idp.base}/shares-a/jwks"
    return tables
