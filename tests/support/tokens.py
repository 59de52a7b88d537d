"""Tokens and certificates, good and bad, signed by hand so that nothing tidies them up."""

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID

RSA_KEYS = Path(__file__).parents[2] / ".pytest_cache/rsa-keys"
HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


class Absent:
    """Names itself, so that a test's id is the same in every process."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()
"""As a claim's or a header member's value: leave it out."""

Signer = Callable[[bytes], bytes]


def b64(data: bytes) -> str:
    """Base64url without padding (RFC 7515 section 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def number(value: int, size: int | None = None) -> str:
    """An unsigned integer as JWK members hold it (RFC 7518 section 2)."""
    return b64(value.to_bytes(size or max(1, (value.bit_length() + 7) // 8), "big"))


@cache
def rsa_key(name: str = "main", bits: int = 2048, exponent: int = 65537) -> rsa.RSAPrivateKey:
    """One RSA key per name: a file, since to make one takes a tenth of a second."""
    file = RSA_KEYS / f"{name}-{bits}-{exponent}.der"
    if file.exists():
        # The checks of what was read would take as long as to make another one.
        key = serialization.load_der_private_key(
            file.read_bytes(), None, unsafe_skip_rsa_key_validation=True
        )
        assert isinstance(key, rsa.RSAPrivateKey)
        return key
    key = rsa.generate_private_key(public_exponent=exponent, key_size=bits)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    RSA_KEYS.mkdir(parents=True, exist_ok=True)
    # Whole at once: other processes of the run may look for it.
    whole = file.with_name(f"{file.name}.{os.getpid()}")
    whole.write_bytes(key.private_bytes(serialization.Encoding.DER, *form))
    whole.replace(file)
    return key


@cache
def ec_key(name: str = "main", curve: str = "P-256") -> ec.EllipticCurvePrivateKey:
    curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
    return ec.generate_private_key(curves[curve])


@cache
def ed_key(name: str = "main") -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


@cache
def ed448_key(name: str = "main") -> ed448.Ed448PrivateKey:
    return ed448.Ed448PrivateKey.generate()


def jwk(key: Any, kid: str | None = "main", **members: Any) -> dict[str, Any]:
    """The public half as a JWK (RFC 7517); members given as ABSENT are left out."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        numbers = public.public_numbers()
        body = {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
    elif isinstance(public, ec.EllipticCurvePublicKey):
        point, size = public.public_numbers(), (public.curve.key_size + 7) // 8
        names = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
        body = {"kty": "EC", "crv": names[public.curve.name]}
        body |= {"x": number(point.x, size), "y": number(point.y, size)}
    else:
        curve = "Ed25519" if isinstance(public, ed25519.Ed25519PublicKey) else "Ed448"
        body = {"kty": "OKP", "crv": curve, "x": b64(public.public_bytes_raw())}
    body |= {"kid": kid, "use": "sig"} | members
    return {name: value for name, value in body.items() if value not in (ABSENT, None)}


def signer(key: Any, algorithm: str) -> Signer:
    """A function that signs as *algorithm* says, whatever the key's own algorithm is."""
    chosen = HASHES.get(algorithm[2:])
    if algorithm.startswith("HS"):
        digest = f"sha{algorithm[2:]}"
        return lambda data: hmac.new(key, data, digest).digest()
    if algorithm.startswith("RS"):
        return lambda data: key.sign(data, padding.PKCS1v15(), chosen)
    if algorithm.startswith("PS"):
        salt = padding.PSS(mgf=padding.MGF1(chosen), salt_length=chosen.digest_size)
        return lambda data: key.sign(data, salt, chosen)
    if algorithm.startswith("ES"):
        return lambda data: raw_ecdsa(key, data, chosen)
    return lambda data: key.sign(data)


def raw_ecdsa(key: ec.EllipticCurvePrivateKey, data: bytes, chosen: hashes.HashAlgorithm) -> bytes:
    """r and s side by side (RFC 7518 section 3.4)."""
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(chosen)))
    size = (key.curve.key_size + 7) // 8
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def encode(part: Mapping[str, Any] | bytes) -> str:
    """One segment: a mapping as JSON (members that are ABSENT left out), bytes as they are."""
    if isinstance(part, bytes):
        return b64(part)
    return b64(json.dumps({k: v for k, v in part.items() if v is not ABSENT}).encode())


def compact(
    header: Mapping[str, Any] | bytes, payload: Mapping[str, Any] | bytes, sign: Signer
) -> str:
    """A compact JWS (RFC 7515 section 7.1) of exactly these parts."""
    signed = f"{encode(header)}.{encode(payload)}"
    return f"{signed}.{b64(sign(signed.encode()))}"


class TokenFactory:
    """
    Makes tokens for one resource as one issuer would, and as an attacker would.

    Without arguments ``token()`` is a good RFC 9068 access token; every keyword changes one thing.
    """

    def __init__(self, issuer: str, resource: str, *, kid: str | None = "main") -> None:
        self.issuer = issuer
        self.resource = resource
        self.kid = kid

    def header(self, **changes: Any) -> dict[str, Any]:
        return {"typ": "at+jwt", "alg": "RS256", "kid": self.kid or ABSENT} | changes

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        return {
            "iss": self.issuer,
            "aud": self.resource,
            "sub": "alice",
            "client_id": "client-1",
            "org_id": "acme",
            "scope": "files:write",
            "jti": secrets.token_urlsafe(12),
            "iat": now,
            "exp": now + 300,
        } | changes

    def token(
        self,
        *,
        header: Mapping[str, Any] | bytes | None = None,
        payload: bytes | None = None,
        sign: Signer | None = None,
        **claims: Any,
    ) -> str:
        """
        A token; *header* changes header members (or is the raw segment), *claims* the payload.

        Signed with the main RSA key unless *sign* says otherwise.
        """
        head = header if isinstance(header, bytes) else self.header(**(header or {}))
        body = self.claims(**claims) if payload is None else payload
        return compact(head, body, sign or signer(rsa_key(), "RS256"))

    def text(self, member: str, raw: str, **claims: Any) -> str:
        """A token whose payload has *member* with exactly this JSON text as its value."""
        body = self.claims(**claims | {member: "@@"})
        text = json.dumps({k: v for k, v in body.items() if v is not ABSENT})
        return self.token(payload=text.replace('"@@"', raw).encode())


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class CertificateAuthority:
    """Signs certificates; ``bundle`` is its own, ``certify`` makes a server's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test company")])
        certificate = (
            self._builder(self.name, self.key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(key_cert_sign=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        self.bundle = folder / "company.pem"
        self.bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certify(self, host: str, *, hours: float = 1) -> tuple[str, str]:
        """Paths of a certificate for *host* that is valid for so many hours, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = (
            self._builder(subject, key, hours=hours)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(usage(digital_signature=True), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        paths = self.folder / f"{host}.pem", self.folder / f"{host}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(paths[0]), str(paths[1])

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, hours: float = 1
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=2))
            .not_valid_after(now + timedelta(hours=hours))
        )


def usage(*, key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
