"""The key of the key ring with which Gatepost authenticates at token endpoints."""

import hashlib
from base64 import urlsafe_b64encode

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from gatepost.secrets.keyring import KeyRing, RingKey

PURPOSE = "client assertion"


def private_pem(keyring: KeyRing) -> tuple[str, str]:
    """Return the current key in PEM, and its `kid`."""
    key = _private(keyring, keyring.current)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem.decode("ascii"), thumbprint(public_jwk(key))


def key_set(keyring: KeyRing) -> dict[str, list[dict[str, str]]]:
    """Return the JWK set of all keys of the ring, the newest first, for authorization servers."""
    keys = []
    for ring_key in keyring.keys:
        jwk = public_jwk(_private(keyring, ring_key))
        keys.append({**jwk, "kid": thumbprint(jwk), "use": "sig", "alg": "EdDSA"})
    return {"keys": keys}


def public_jwk(key: Ed25519PrivateKey) -> dict[str, str]:
    """Return the public key as a JWK (RFC 8037)."""
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"crv": "Ed25519", "kty": "OKP", "x": _coded(raw)}


def thumbprint(jwk: dict[str, str]) -> str:
    """Return the thumbprint of a JWK that has only its required members (RFC 7638)."""
    canonical = msgspec.json.Encoder(order="sorted").encode(jwk)
    return _coded(hashlib.sha256(canonical).digest())


def _private(keyring: KeyRing, key: RingKey) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(keyring.derived(key, PURPOSE))


def _coded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
