"""The public half of development keys: ids by thumbprint, and the key set that clients fetch."""

from collections.abc import Iterable
from typing import Any

from joserfc.jwk import Key

KID_PREFIX = "dev-"
"""Every key id starts so, and every verifier outside development refuses it by that."""

ALGORITHMS: dict[str, tuple[str, str | int]] = {
    "RS256": ("RSA", 2048),
    "RS384": ("RSA", 2048),
    "RS512": ("RSA", 2048),
    "PS256": ("RSA", 2048),
    "PS384": ("RSA", 2048),
    "PS512": ("RSA", 2048),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
    "Ed25519": ("OKP", "Ed25519"),
}
"""The signature algorithms, each with its key type and the size in bits or the curve."""


def kid_of(key: Key) -> str:
    """Return `dev-` and the key's RFC 7638 thumbprint, so that a key has one id everywhere."""
    return KID_PREFIX + key.thumbprint()


def public_set(keys: Iterable[Key]) -> dict[str, list[dict[str, Any]]]:
    """
    Return the JWK set (RFC 7517 section 5) with the public parameters of *keys* and nothing else.
    """
    return {"keys": [dict(key.as_dict(private=False)) for key in keys]}
