"""The signature algorithms of compact tokens (RFC 7518 section 3, RFC 8037)."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, AsymmetricPadding, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

# The keys are those of `jwk.VerificationKey` and `client_authentication.SigningKey`, each of which
# names the algorithms that it is for.
Key = Any


class SignatureAlgorithm(Protocol):
    """One value of ``alg``."""

    def verify(self, signed: bytes, key: Key, signature: bytes) -> bool:
        """Return whether *signature* is that of the public *key* over *signed*."""

    def sign(self, content: bytes, key: Key) -> bytes:
        """Return the signature of the private *key* over *content*."""


class Rsa:
    """RSASSA-PKCS1-v1_5 or RSASSA-PSS (RFC 7518 sections 3.3 and 3.5)."""

    def __init__(self, padding: AsymmetricPadding, digest: HashAlgorithm) -> None:
        self._padding, self._digest = padding, digest

    def verify(self, signed: bytes, key: Key, signature: bytes) -> bool:
        """Implement `SignatureAlgorithm`."""
        return _passes(key.verify, signature, signed, self._padding, self._digest)

    def sign(self, content: bytes, key: Key) -> bytes:
        """Implement `SignatureAlgorithm`."""
        return bytes(key.sign(content, self._padding, self._digest))


class Ecdsa:
    """ECDSA, whose signature is both numbers at the full length of the curve (section 3.4)."""

    def __init__(self, digest: HashAlgorithm) -> None:
        self._digest = ECDSA(digest)

    def verify(self, signed: bytes, key: Key, signature: bytes) -> bool:
        """Implement `SignatureAlgorithm`."""
        size = _number_bytes(key)
        if len(signature) != 2 * size:
            return False
        r, s = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
        return _passes(key.verify, encode_dss_signature(r, s), signed, self._digest)

    def sign(self, content: bytes, key: Key) -> bytes:
        """Implement `SignatureAlgorithm`."""
        size = _number_bytes(key)
        numbers = decode_dss_signature(key.sign(content, self._digest))
        return b"".join(number.to_bytes(size, "big") for number in numbers)


class Eddsa:
    """EdDSA, here with the curve Ed25519 only (RFC 8037 section 3.1)."""

    def verify(self, signed: bytes, key: Key, signature: bytes) -> bool:
        """Implement `SignatureAlgorithm`."""
        return _passes(key.verify, signature, signed)

    def sign(self, content: bytes, key: Key) -> bytes:
        """Implement `SignatureAlgorithm`."""
        return bytes(key.sign(content))


def _number_bytes(key: Key) -> int:
    """Return the length of a coordinate of the key's curve in bytes."""
    bits: int = key.curve.key_size
    return (bits + 7) // 8


def _passes(verify: Callable[..., object], *arguments: object) -> bool:
    try:
        verify(*arguments)
    except InvalidSignature:
        return False
    return True


def _pss(digest: HashAlgorithm) -> Rsa:
    # The salt is as long as the digest: RFC 7518 section 3.5.
    return Rsa(PSS(MGF1(digest), digest.digest_size), digest)


JWS_ALGORITHMS: Mapping[str, SignatureAlgorithm] = {
    "RS256": Rsa(PKCS1v15(), SHA256()),
    "RS384": Rsa(PKCS1v15(), SHA384()),
    "RS512": Rsa(PKCS1v15(), SHA512()),
    "PS256": _pss(SHA256()),
    "PS384": _pss(SHA384()),
    "PS512": _pss(SHA512()),
    "ES256": Ecdsa(SHA256()),
    "ES384": Ecdsa(SHA384()),
    "ES512": Ecdsa(SHA512()),
    "EdDSA": Eddsa(),
    "Ed25519": Eddsa(),
}
"""The allowed algorithms; ``none`` and ``HS*`` are not among them."""
