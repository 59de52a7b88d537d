"""Import JSON Web Keys (RFC 7517): the usable keys of an issuer's set and their algorithms."""

from collections.abc import Callable, Mapping

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePublicKey,
    EllipticCurvePublicNumbers,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers

from gatepost_authz import base64url

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

MAX_KEYS = 100
MAX_KID = 256
MIN_MODULUS_BITS = 2048
# A check takes time quadratic in the modulus and linear in the exponent's length: a hostile set
# must not make every token of its issuer expensive.
MAX_MODULUS_BITS = 8192
MIN_EXPONENT = 65537
MAX_EXPONENT_BITS = 32

RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
EDWARDS = frozenset({"EdDSA", "Ed25519"})
"""Two names of one algorithm for a key on this curve (RFC 8037, RFC 9864)."""
CURVES = {
    "P-256": (SECP256R1(), 32, frozenset({"ES256"})),
    "P-384": (SECP384R1(), 48, frozenset({"ES384"})),
    "P-521": (SECP521R1(), 66, frozenset({"ES512"})),
}
ALGORITHMS = RSA_ALGORITHMS | EDWARDS | {"ES256", "ES384", "ES512"}
"""The signature algorithms that the server can verify."""

PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})

# Points of small order, sign bit cleared. With one of them as the key, any attacker can sign,
# because the verified sum no longer depends on the message. No honest issuer has ever created one.
SMALL_ORDER = frozenset(
    bytes.fromhex(point)
    for point in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)


class VerificationKey(msgspec.Struct, frozen=True):
    """
    A public key and the algorithms that it may verify; a token's header can choose only among
    these.

    ``kid`` is the issuer's name for it, if it has one.
    """

    kid: str | None
    algorithms: frozenset[str]
    public_key: PublicKey


class UnusableKeySet(ValueError):
    """Raised when a document is not a key set; the previous set stays in use."""


class UnusableKey(ValueError):
    """Raised when an entry of a set cannot verify signatures; the reason is one short word."""


def import_set(
    document: Mapping[str, object],
    *,
    allowed: frozenset[str],
    issuer: str = "",
    skipped: Callable[[str, str], None] | None = None,
) -> tuple[VerificationKey, ...]:
    """
    Return the usable keys of a key set, in its order; the others are skipped, each told to
    *skipped*.

    *allowed* are the issuer's algorithms. With *issuer*, an entry that names another issuer (Entra
    publishes ``issuer`` beside shared keys) is skipped. *skipped* is called with the key id and a
    short reason; ``private_key`` and ``symmetric_key`` mean that the issuer publishes a secret.
    UnusableKeySet: ``keys`` is no list, is empty, or has more than 100 entries.
    """
    entries = document.get("keys")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_KEYS:
        raise UnusableKeySet("keys is not a list of 1 to 100 entries")
    allowed = with_synonyms(allowed)
    keys = []
    for entry in entries:
        try:
            keys.append(import_key(entry, allowed=allowed, issuer=issuer))
        except UnusableKey as error:
            if skipped is not None:
                kid = entry.get("kid") if isinstance(entry, dict) else None
                skipped(kid if isinstance(kid, str) else "", str(error))
    return tuple(keys)


def with_synonyms(algorithms: frozenset[str]) -> frozenset[str]:
    """Return *algorithms* with both names of Ed25519 signatures if it has one."""
    return algorithms | EDWARDS if algorithms & EDWARDS else algorithms


def import_key(entry: object, *, allowed: frozenset[str], issuer: str) -> VerificationKey:
    """Import one entry of a set; raise UnusableKey if it cannot verify signatures."""
    if not isinstance(entry, dict):
        raise UnusableKey("not_an_object")
    kid = entry.get("kid")
    if kid is not None and not (isinstance(kid, str) and len(kid) <= MAX_KID):
        raise UnusableKey("bad_kid")
    refuse_secrets(entry)
    refuse_other_purposes(entry)
    if issuer and not names(entry.get("issuer"), issuer):
        raise UnusableKey("other_issuer")
    try:
        public_key, possible = IMPORTERS[str(entry.get("kty"))](entry)
    except KeyError as error:
        raise UnusableKey("unknown_type") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UnusableKey("bad_parameters") from error
    algorithms = algorithms_of(entry, possible) & allowed
    if not algorithms:
        raise UnusableKey("algorithm_not_allowed")
    return VerificationKey(kid, algorithms, public_key)


def refuse_secrets(entry: Mapping[str, object]) -> None:
    # An `oct` key would let every reader of the public set sign with HS256 (RFC 8725 section 2.1).
    # A private key in a public document is no longer private.
    if entry.get("kty") == "oct" or "k" in entry:
        raise UnusableKey("symmetric_key")
    if not PRIVATE.isdisjoint(entry):
        raise UnusableKey("private_key")


def refuse_other_purposes(entry: Mapping[str, object]) -> None:
    """Refuse keys published for other purposes than signatures (RFC 7517 sections 4.2 and 4.3)."""
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig":
        raise UnusableKey("not_for_signatures")
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKey("not_for_signatures")


def algorithms_of(entry: Mapping[str, object], possible: frozenset[str]) -> frozenset[str]:
    """Return the algorithms of a key: its ``alg``, or all algorithms of its type."""
    if "alg" not in entry:
        return possible
    algorithm_name = entry["alg"]
    if not isinstance(algorithm_name, str):
        raise UnusableKey("bad_algorithm")
    return with_synonyms(frozenset({algorithm_name})) & possible


def names(member: object, issuer: str) -> bool:
    """
    Return whether a key's ``issuer`` member, if any, means *issuer* (Entra writes a placeholder).
    """
    if member is None:
        return True
    if not isinstance(member, str):
        return False
    before, placeholder, after = member.partition("{tenantid}")
    if not placeholder:
        return member == issuer
    middle = issuer[len(before) : len(issuer) - len(after)]
    return issuer == before + middle + after and bool(middle) and "/" not in middle


def number(entry: Mapping[str, object], name: str) -> int:
    return int.from_bytes(octets(entry, name), "big")


def octets(entry: Mapping[str, object], name: str) -> bytes:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(name)
    return base64url.decode(value.encode("ascii"))


def rsa(entry: Mapping[str, object]) -> tuple[PublicKey, frozenset[str]]:
    modulus, exponent = number(entry, "n"), number(entry, "e")
    if not MIN_MODULUS_BITS <= modulus.bit_length() <= MAX_MODULUS_BITS or modulus % 2 == 0:
        raise ValueError("modulus")
    # Exponent 1 makes every message its own signature; 3 has a history of forgeries
    # (CVE-2006-4339).
    if exponent < MIN_EXPONENT or exponent.bit_length() > MAX_EXPONENT_BITS or exponent % 2 == 0:
        raise ValueError("exponent")
    return RSAPublicNumbers(exponent, modulus).public_key(), RSA_ALGORITHMS


def elliptic(entry: Mapping[str, object]) -> tuple[PublicKey, frozenset[str]]:
    curve, size, algorithms = CURVES[str(entry.get("crv"))]
    x, y = octets(entry, "x"), octets(entry, "y")
    if len(x) != size or len(y) != size:
        raise ValueError("coordinates")
    # Refuses points that are not on the curve; the point at infinity cannot be written this way.
    numbers = EllipticCurvePublicNumbers(int.from_bytes(x, "big"), int.from_bytes(y, "big"), curve)
    return numbers.public_key(), algorithms


def edwards(entry: Mapping[str, object]) -> tuple[PublicKey, frozenset[str]]:
    x = octets(entry, "x")
    if entry.get("crv") != "Ed25519" or len(x) != 32:
        raise ValueError("curve")
    if x[:31] + bytes([x[31] & 0x7F]) in SMALL_ORDER:
        raise ValueError("point")
    return Ed25519PublicKey.from_public_bytes(x), EDWARDS


IMPORTERS: dict[str, Callable[[Mapping[str, object]], tuple[PublicKey, frozenset[str]]]] = {
    "RSA": rsa,
    "EC": elliptic,
    "OKP": edwards,
}
