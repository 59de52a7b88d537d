"""Serve the protected-resource metadata document (RFC 9728)."""

from collections.abc import Callable, Sequence

import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost_authz.challenge import words
from gatepost_authz.config import TENANT_ID
from gatepost_authz.protected_resource import WELL_KNOWN, Resource, Target

LIFETIME_S = 300
"""The cache lifetime of the document, which is also the delay until clients notice a new issuer."""

REMEMBERED = 1024
METHODS = b"GET, HEAD, OPTIONS"
RESPONSE_HEADERS = [
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"public, max-age=%d" % LIFETIME_S),
    (b"x-content-type-options", b"nosniff"),
]
PREFLIGHT = [
    (b"allow", METHODS),
    (b"access-control-allow-methods", METHODS),
    # Clients send headers of their own in discovery; `*` covers every name but this one.
    (b"access-control-allow-headers", b"*, Authorization"),
    (b"access-control-max-age", b"86400"),
]

AuthorizationServers = Callable[[str | None], tuple[str, ...]]


class MetadataDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metadata document (RFC 9728 section 2); members without a value are omitted."""

    resource: str
    authorization_servers: Sequence[str]
    scopes_supported: Sequence[str] = ()
    bearer_methods_supported: Sequence[str]
    resource_name: str = ""
    resource_documentation: str = ""


class MetadataRoutes:
    """
    Serves the metadata document of *resource*, per tenant if the resource is a template.

    An ASGI app for exactly its own routes. *authorization_servers* gives the issuers of a tenant
    (None: of the only resource); if there are none, *unknown* answers as for any other path, so
    that clients cannot find out the tenants. *scopes* are those that the resource knows. Raises
    ValueError for a scope that a challenge cannot contain.
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

    def routes(self, *, root: bool = False) -> list[Route]:
        """
        Return the routes: below the resource, and at the path of RFC 9728 section 3.1.

        With *root* at the root as well, which clients try last: for a server of one resource only,
        so a template has none. For a resource without a path all are the root. All answer with the
        same bytes.
        """
        at_root = (WELL_KNOWN,) if root and not self.resource.templated else ()
        paths = dict.fromkeys((*self.resource.metadata_paths, *at_root))
        return [Route(path, endpoint=self) for path in paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Credentials are not checked here: a client with an expired token must still find out where
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
            headers = [kind, (b"content-length", str(len(document)).encode()), *RESPONSE_HEADERS]
            await _answer(send, 200, headers, document if method == "GET" else b"")
        elif method == "OPTIONS":
            await _answer(send, 204, [*PREFLIGHT, *RESPONSE_HEADERS], b"")
        else:
            headers = [(b"allow", METHODS), (b"content-length", b"0"), RESPONSE_HEADERS[0]]
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
                MetadataDocument(
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
