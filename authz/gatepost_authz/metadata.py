"""The protected-resource metadata document and the routes that serve it (RFC 9728)."""

from collections.abc import Callable, Sequence

import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost_authz.challenge import words
from gatepost_authz.config import TENANT_ID, Resource, Target

LIFETIME_S = 300
"""How long clients may keep the document: as long as a new issuer may take to be noticed."""

REMEMBERED = 1024
METHODS = b"GET, HEAD, OPTIONS"
COMMON = [
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"public, max-age=%d" % LIFETIME_S),
    (b"x-content-type-options", b"nosniff"),
]
PREFLIGHT = [
    (b"allow", METHODS),
    (b"access-control-allow-methods", METHODS),
    # Clients add headers of their own to discovery; `*` covers every name but this one.
    (b"access-control-allow-headers", b"*, Authorization"),
    (b"access-control-max-age", b"86400"),
]

AuthorizationServers = Callable[[str | None], tuple[str, ...]]


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What clients read (RFC 9728 section 2); members without a value are left out."""

    resource: str
    authorization_servers: Sequence[str]
    scopes_supported: Sequence[str] = ()
    bearer_methods_supported: Sequence[str]
    resource_name: str = ""
    resource_documentation: str = ""


class Metadata:
    """
    Serves the document of *resource*, per tenant where the resource is a template.

    An ASGI app for exactly its own routes. *authorization_servers* gives the issuers of a tenant
    (None: of the only resource); where it gives none, *unknown* answers as it does for any path,
    so that nobody can find out which tenants there are. *scopes* is what a client should ask for
    at first. Raises ValueError for a scope that cannot stand in a challenge.
    """

    def __init__(
        self,
        resource: Resource,
        *,
        authorization_servers: AuthorizationServers,
        scopes: Sequence[str] = (),
        name: str = "",
        documentation: str = "",
        unknown: ASGIApp | None = None,
    ) -> None:
        words(scopes)
        self.resource = resource
        self.authorization_servers = authorization_servers
        self.scopes = tuple(scopes)
        self.name = name
        self.documentation = documentation
        self.unknown = unknown or Router().not_found
        self._encoded: dict[tuple[str, tuple[str, ...]], bytes] = {}

    def routes(self) -> list[Route]:
        """
        Its routes: under the resource, and where RFC 9728 section 3.1 inserts the well-known path.

        For a resource without a path both are the root. All answer with the same bytes.
        """
        return [Route(path, endpoint=self) for path in self.resource.metadata_paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nothing here looks at credentials: a client with a stale token must still find out where
        # to get a new one.
        target = self._target(scope)
        servers = () if target is None else self.authorization_servers(target.tenant)
        if target is None or not servers:
            await self.unknown(scope, receive, send)
            return
        method = scope["method"]
        if method in {"GET", "HEAD"}:
            document = self._document(target, servers)
            kind = (b"content-type", b"application/json")
            headers = [kind, (b"content-length", str(len(document)).encode()), *COMMON]
            await _answer(send, 200, headers, document if method == "GET" else b"")
        elif method == "OPTIONS":
            await _answer(send, 204, [*PREFLIGHT, *COMMON], b"")
        else:
            headers = [(b"allow", METHODS), (b"content-length", b"0"), COMMON[0]]
            await _answer(send, 405, headers, b"")

    def _target(self, scope: Scope) -> Target | None:
        if not self.resource.templated:
            return self.resource.locate("")
        tenant = scope["path_params"]["tenant"]
        return self.resource.of_tenant(tenant) if TENANT_ID.fullmatch(tenant) else None

    def _document(self, target: Target, servers: tuple[str, ...]) -> bytes:
        key = (target.url, servers)
        document = self._encoded.get(key)
        if document is None:
            document = msgspec.json.encode(
                Document(
                    resource=target.url,
                    authorization_servers=servers,
                    scopes_supported=self.scopes,
                    bearer_methods_supported=("header",),
                    resource_name=self.name,
                    resource_documentation=self.documentation,
                )
            )
            if len(self._encoded) < REMEMBERED:
                self._encoded[key] = document
        return document


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
