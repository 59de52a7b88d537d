"""
Servers on loopback: any ASGI app, an issuer whose documents can be replaced, and oidc-provider.
"""

import contextlib
import hashlib
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import httpx2
import uvicorn
from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.types import ASGIApp

from tests.support.processes import Process
from tests.support.programs import command, environment

Scope, Receive, Send = Any, Any, Any
Answer = Callable[[Scope, Receive, Send], Awaitable[None]]

WITHIN_S = 60.0
"""How long a server may take to start and to stop, on a machine that does much else."""


class AsgiServer:
    """
    Serves an ASGI app on loopback until `stop`; *http* is `httptools` or `h11`.

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

    def start(self) -> "AsgiServer":
        self._thread.start()
        assert self._started.wait(WITHIN_S), "the server did not start in time"
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the server did not stop in time"

    @property
    def port(self) -> int:
        port: int = self._server.servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(app: ASGIApp, *, port: int = 0, **options: Any) -> Iterator[str]:
    """Serve *app* behind a real uvicorn in a thread; yields its origin. *options* are Server's."""
    server = AsgiServer(app, port=port, timeout_graceful_shutdown=3, **options)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


class Idp:
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
        self.server = AsgiServer(self._answer, **options)

    def __enter__(self) -> "Idp":
        self.server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.stop()

    @property
    def base(self) -> str:
        return self.name or self.server.url

    def issuer(self, name: str, keys: list[dict[str, Any]] | None = None) -> str:
        """The issuer's identifier; with *keys* its key set is (re)placed."""
        if keys is not None:
            self.keys[name] = keys
        return f"{self.base}/{name}"

    def key_hits(self, name: str) -> int:
        """How often the issuer's key set was asked for."""
        return self.hits[f"/{name}/jwks"]

    def replace(self, path: str, answer: Answer | None) -> None:
        """Answer *path* with something else; None puts the real document back."""
        with self._lock:
            if answer is None:
                self.replaced.pop(path, None)
            else:
                self.replaced[path] = answer

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
    """An answer for `Idp.replace`; header names are given with `_` for `-`."""
    fields = {"content_type": "application/json"} | headers
    raw = tuple((n.replace("_", "-").encode(), v.encode()) for n, v in fields.items())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, status, body, raw)

    return app


TokenForm = Literal["jwt", "opaque"]

MACHINE = "machine"
RESOURCE_SERVER = "gatepost"
SECRET = "not-a-secret-outside-this-test-run"
CLIENTS = [
    {
        "client_id": MACHINE,
        "client_secret": SECRET,
        "grant_types": ["client_credentials"],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "client_secret_basic",
    },
    {
        "client_id": RESOURCE_SERVER,
        "client_secret": SECRET,
        "grant_types": [],
        "redirect_uris": [],
        "response_types": [],
        "token_endpoint_auth_method": "client_secret_basic",
    },
]


class ProofKey:
    """A client's key for DPoP (RFC 9449): makes the proof that binds a token to it."""

    def __init__(self) -> None:
        self.key = ECKey.generate_key("P-256")

    def proof(self, method: str, url: str, *, access_token: str | None = None) -> str:
        """A proof for one request, with `ath` when it accompanies a token (section 4.2)."""
        header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self.key.as_dict(private=False)}
        claims: dict[str, Any] = {
            "htm": method,
            "htu": url,
            "iat": int(time.time()),
            "jti": uuid4().hex,
        }
        if access_token is not None:
            digest = hashlib.sha256(access_token.encode()).digest()
            claims["ath"] = urlsafe_b64encode(digest).rstrip(b"=").decode()
        return jwt.encode(header, claims, self.key)


class RunningOidcProvider:
    """A running oidc-provider: its issuer, and tokens without a person."""

    def __init__(self, process: Process, issuer: str) -> None:
        self.process = process
        self.issuer = issuer

    def machine_token(
        self, resource: str, scopes: Sequence[str] = (), *, proof_key: ProofKey | None = None
    ) -> str:
        """An access token by client credentials; with a proof key it is bound to that key."""
        endpoint = f"{self.issuer}/token"
        headers = {"DPoP": proof_key.proof("POST", endpoint)} if proof_key else {}
        answer = httpx2.post(
            endpoint,
            data={
                "grant_type": "client_credentials",
                "resource": resource,
                "scope": " ".join(scopes),
            },
            auth=(MACHINE, SECRET),
            headers=headers,
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["token_type"] == ("DPoP" if proof_key else "Bearer")
        return str(body["access_token"])


@contextlib.contextmanager
def authorization_server(
    resources: Mapping[str, TokenForm],
    *,
    scopes: Sequence[str],
    tenants: Mapping[str, str],
    lifetime_s: int = 300,
    clients: Sequence[Mapping[str, Any]] = (),
) -> Iterator[RunningOidcProvider]:
    """
    Run one for the given resources (URL → form of its tokens) until the block ends.

    *tenants* maps account and client ids to the claim `org_id`; the account `alice` is signed in
    and consents without being asked. *clients* (RFC 7591) are known beside the usual ones.
    """
    settings = {
        "resources": dict(resources),
        "scopes": list(scopes),
        "tenants": dict(tenants),
        "clients": [*CLIENTS, *clients],
        "lifetime_s": lifetime_s,
    }
    process = Process(command("authorization_server.mjs", json.dumps(settings)), env=environment())
    try:
        yield RunningOidcProvider(process, json.loads(process.next_line())["issuer"])
    finally:
        process.kill()
