"""A real identity provider on loopback: its documents can be replaced, its hits are counted."""

import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.serving import Server

Scope, Receive, Send = Any, Any, Any
Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


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
        self.server = Server(self._answer, **options)

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
