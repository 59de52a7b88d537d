"""Servers on loopback, issuers whose documents can be replaced, and tokens signed by hand."""

import base64
import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

import uvicorn
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.architecture.source import ROOT

Scope, Receive, Send = Any, Any, Any
Answer = Callable[[Scope, Receive, Send], Awaitable[None]]

RECORDED_PROVIDERS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "tests/authz/presets").glob("*.json"))
}
"""What the documentation of each provider shows of its metadata and tokens, by its preset."""

WITHIN_S = 60.0
"""How long a server may take to start and to stop, on a machine that does much else."""


class AsgiServer:
    """
    Serves an ASGI app on loopback for the time of a block; *http* is `httptools` or `h11`.

    *options* are uvicorn's; `port` is a free one by default. Starting and stopping
    are bounded by `WITHIN_S`.
    """

    def __init__(self, app: Any, *, http: str | type = "httptools", **options: Any) -> None:
        settings = {
            "port": 0,
            "log_level": "error",
            "lifespan": "off",
            "access_log": False,
            "interface": "asgi3",
            "timeout_graceful_shutdown": 1,
        } | options
        config = uvicorn.Config(app, host="127.0.0.1", http=http, **settings)
        self._server = uvicorn.Server(config)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        startup = self._server.startup

        async def announce(sockets: Any = None) -> None:
            await startup(sockets)
            self._started.set()

        self._server.startup = announce  # type: ignore[method-assign]

    def _run(self) -> None:
        self._server.run()

    def start(self) -> Self:
        self._thread.start()
        assert self._started.wait(WITHIN_S), "the server did not start in time"
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the server did not stop in time"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        port: int = self._server.servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def place(self) -> str:
        """Return host and port, as `[network] allow_hosts` names them."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.place}"


class Idp(AsgiServer):
    """
    Several issuers behind one port: issuer ``name`` is ``{base}/name``.

    Each serves RFC 8414 metadata at the inserted location and its key set at ``/name/jwks``.
    ``replace`` puts another answer in the place of one document, for the faults of group N.
    *name* is the base that its documents use where another host leads here; *options* are the
    server's.
    """

    def __init__(self, name: str = "", **options: Any) -> None:
        self.name = name
        self.keys: dict[str, list[dict[str, Any]]] = {}
        self.hits: Counter[str] = Counter()
        self.replaced: dict[str, Answer] = {}
        self._lock = threading.Lock()
        super().__init__(self._answer, **options)

    @property
    def base(self) -> str:
        return self.name or self.url

    def issuer(self, name: str, keys: list[dict[str, Any]] | None = None) -> str:
        """Return the issuer's identifier; with *keys* its key set is (re)placed."""
        if keys is not None:
            self.keys[name] = keys
        return f"{self.base}/{name}"

    def key_hits(self, name: str) -> int:
        """Return how often the issuer's key set was requested."""
        return self.hits[f"/{name}/jwks"]

    def replace(self, path: str, answer: Answer | None) -> None:
        """Answer *path* with something else; None puts the real document back."""
        with self._lock:
            if answer is None:
                self.replaced.pop(path, None)
            else:
                self.replaced[path] = answer

    def reset(self) -> "Idp":
        """Forget issuers, hits and replaced documents; return itself."""
        for memory in (self.keys, self.hits, self.replaced):
            memory.clear()
        return self

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.hits[path] += 1
        if answer := self.replaced.get(path):
            await answer(scope, receive, send)
            return
        document = self._document(path)
        await respond(send, 404 if document is None else 200, json.dumps(document).encode())

    def _document(self, path: str) -> dict[str, Any] | None:
        prefix = "/.well-known/oauth-authorization-server/"
        if path.startswith(prefix) and (name := path.removeprefix(prefix)) in self.keys:
            issuer = self.issuer(name)
            return {
                "issuer": issuer,
                "jwks_uri": f"{issuer}/jwks",
                "authorization_endpoint": f"{issuer}/authorize",
                "token_endpoint": f"{issuer}/token",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            }
        if path.endswith("/jwks") and (name := path[1:-5]) in self.keys:
            return {"keys": self.keys[name]}
        return None


async def respond(
    send: Send,
    status: int,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),),
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def answer(status: int = 200, body: bytes = b"{}", **headers: str) -> Answer:
    """Return an answer for `Idp.replace`; header names are given with `_` for `-`."""
    fields = {"content_type": "application/json"} | headers
    raw = tuple((n.replace("_", "-").encode(), v.encode()) for n, v in fields.items())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status, body, raw)

    return app


RSA_KEYS = Path(__file__).parents[2] / ".pytest_cache/rsa-keys"


HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


class Absent:
    """Names itself, so that a test's id is the same in every process."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()
"""As a claim's or a header member's value: leave it out."""


Signer = Callable[[bytes], bytes]


def base64url_encoded(data: bytes) -> str:
    """Encode as base64url without padding (RFC 7515 section 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def base64url_decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def base64url_number(value: int, size: int | None = None) -> str:
    """Encode an unsigned integer as JWK members hold it (RFC 7518 section 2)."""
    return base64url_encoded(value.to_bytes(size or max(1, (value.bit_length() + 7) // 8), "big"))


@cache
def rsa_key(name: str = "main", bits: int = 2048, exponent: int = 65537) -> rsa.RSAPrivateKey:
    """Return one RSA key per name, from a file, since to make one takes a tenth of a second."""
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
    """Return the public half as a JWK (RFC 7517), without members that are ABSENT."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        numbers = public.public_numbers()
        body = {"kty": "RSA", "n": base64url_number(numbers.n), "e": base64url_number(numbers.e)}
    elif isinstance(public, ec.EllipticCurvePublicKey):
        point, size = public.public_numbers(), (public.curve.key_size + 7) // 8
        names = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
        body = {"kty": "EC", "crv": names[public.curve.name]}
        body |= {"x": base64url_number(point.x, size), "y": base64url_number(point.y, size)}
    else:
        curve = "Ed25519" if isinstance(public, ed25519.Ed25519PublicKey) else "Ed448"
        body = {"kty": "OKP", "crv": curve, "x": base64url_encoded(public.public_bytes_raw())}
    body |= {"kid": kid, "use": "sig"} | members
    return {name: value for name, value in body.items() if value not in (ABSENT, None)}


def signer(key: Any, algorithm: str) -> Signer:
    """Return a function that signs with *algorithm*, whatever the key's own algorithm is."""
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
    """Sign and return r and s side by side (RFC 7518 section 3.4)."""
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(chosen)))
    size = (key.curve.key_size + 7) // 8
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def jws_segment(part: Mapping[str, Any] | bytes) -> str:
    """Encode one segment: a mapping as JSON without ABSENT members, bytes as they are."""
    if isinstance(part, bytes):
        return base64url_encoded(part)
    return base64url_encoded(
        json.dumps({k: v for k, v in part.items() if v is not ABSENT}).encode()
    )


def compact_jws(
    header: Mapping[str, Any] | bytes, payload: Mapping[str, Any] | bytes, sign: Signer
) -> str:
    """Return a compact JWS (RFC 7515 section 7.1) of exactly these parts."""
    signed = f"{jws_segment(header)}.{jws_segment(payload)}"
    return f"{signed}.{base64url_encoded(sign(signed.encode()))}"


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
        Return a token; *header* changes header members or is the raw segment.

        Signed with the main RSA key unless *sign* says otherwise.
        """
        head = header if isinstance(header, bytes) else self.header(**(header or {}))
        body = self.claims(**claims) if payload is None else payload
        return compact_jws(head, body, sign or signer(rsa_key(), "RS256"))

    def text(self, member: str, raw: str, **claims: Any) -> str:
        """Return a token whose *member* has exactly this JSON text as its value."""
        body = self.claims(**claims | {member: "@@"})
        text = json.dumps({k: v for k, v in body.items() if v is not ABSENT})
        return self.token(payload=text.replace('"@@"', raw).encode())


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
