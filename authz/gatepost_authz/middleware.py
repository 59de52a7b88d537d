"""Accept only requests with a Bearer token for this resource (RFC 6750 section 2.1)."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.errors import AuthError, InvalidToken, MalformedCredentials, MissingToken
from gatepost_authz.headers import HeaderField, IdentityHeaders, IdentityHeadersApp
from gatepost_authz.protected_resource import Target
from gatepost_authz.verifier import TokenVerifier

MAX_TOKEN = 16 * 1024
"""The maximum length of a token in bytes; longer ones are not parsed."""

MAX_VALUE = MAX_TOKEN + len(b"Bearer ")
B64TOKEN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/"
CREDENTIAL = re.compile(rb"bearer +([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE)
SCHEME = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)(?= |\Z)")

CALLER = "gatepost.caller"
"""The key of the ASGI scope that holds the caller of a request; `caller_of` reads it."""
HEADERS_BY_NAME = "gatepost.headers"
"""
The key under which a layer in front may store the headers by name, each with its last value. If it
has as many entries as there are headers, no name is repeated, and no search is needed.
"""
BEARER = b"Bearer "
NO_CONTENT = 204


def caller_of(scope: Scope) -> TenantContext:
    """Return the caller of a request; raise LookupError if no gate ran before."""
    caller = scope.get(CALLER)
    if not isinstance(caller, TenantContext):
        raise LookupError("no BearerMiddleware stands before this app")
    return caller


class ResourceLookup(Protocol):
    """Finds the resource of a path: a Resource, or a Beside."""

    @property
    def only(self) -> Target | None:
        """Return the resource of every path; None if the path names a tenant."""

    def locate(self, path: str) -> Target | None:
        """Return the resource of a request path, or None."""


DEFAULT_IDENTITY = IdentityHeaders()
"""The default names of the identity headers."""


class BearerMiddleware:
    """
    Accepts only requests with a token for *resource* that has the *baseline* scopes.

    The verified caller is put into the scope (`caller_of`), and into headers of the request as
    *identity* names them. Headers by which the caller claims an identity are removed. If *identity*
    is None, the headers stay unchanged, because a layer in front has handled them. *on_refusal* is
    called with every refusal before its challenge is sent; it must not raise. *rate_limit* returns
    the error to raise for a peer whose credentials were often refused. A token that was valid
    before still passes; any other token is then not verified.
    """

    def __init__(  # noqa: PLR0913  # all are keywords, and each is one decision of the operator
        self,
        app: ASGIApp,
        *,
        resource: ResourceLookup,
        verifier: TokenVerifier,
        challenge: Challenge,
        baseline: frozenset[str] = frozenset(),
        on_refusal: Callable[[Scope, AuthError], None] | None = None,
        identity: IdentityHeaders | None = DEFAULT_IDENTITY,
        rate_limit: Callable[[Scope], Exception | None] | None = None,
    ) -> None:
        self.app = app if identity is None else IdentityHeadersApp(app, identity, CALLER)
        self.resource = resource
        self.verifier = verifier
        self.challenge = challenge
        self.baseline = baseline
        self.on_refusal = on_refusal
        self.rate_limit = rate_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._not_http(scope, receive, send)
            return
        target = self.resource.only or self.resource.locate(scope["path"])
        caller: TenantContext | None = None
        try:
            headers, folded = scope["headers"], scope.get(HEADERS_BY_NAME)
            if folded is not None and len(folded) == len(headers):
                authorization: bytes | None = folded.get(b"authorization")
            else:
                authorization = credentials(headers)
            if authorization is None:
                raise MissingToken
            if (
                target is not None
                and authorization[:7] == BEARER
                and len(authorization) <= MAX_VALUE
            ):
                # Only well-formed tokens are accepted, so a cached token needs no check of its
                # form.
                caller = self.verifier.cached(authorization[7:], target)
            if caller is None:
                caller = await self._verified(scope, token_in(authorization), target)
            if self.baseline:
                caller.require(self.baseline)
        except AuthError as error:
            if caller is not None:
                error.with_details(issuer=caller.issuer, tenant=caller.tenant_id)
            if self.on_refusal is not None:
                self.on_refusal(scope, error)
            await send_response(send, *self.challenge.answer(error, target))
            return
        scope[CALLER] = caller
        await self.app(scope, receive, send)

    async def _verified(self, scope: Scope, token: str, target: Target | None) -> TenantContext:
        """Return the caller of a token that no cache holds."""
        if target is None:
            # A path that names no tenant has no audience to compare a token with.
            raise InvalidToken("no_resource_in_path")
        refusal = None if self.rate_limit is None else self.rate_limit(scope)
        if refusal is not None and not self.verifier.has_accepted(token, target):
            raise refusal
        peer = (scope.get("client") or ("",))[0]
        caller = await self.verifier.verify(token, target, peer=peer)
        if caller is None:
            raise InvalidToken("unknown_kind")
        return caller

    async def _not_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        # This lists what may pass unchecked. Every other type of connection is refused, so that a
        # type that ASGI adds later cannot bypass the gate.
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            raise ValueError(f"no {scope['type']!r} connection passes the gate")


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """
    Return the Bearer token from raw ASGI *headers* (names in lower case).

    Raises MissingToken without credentials or with another scheme, MalformedCredentials for
    everything else that is not exactly one header field with one ``b64token``. A token in the
    query or in a form is never looked for (MCP: access tokens must not stand in the URI).
    """
    authorization = credentials(headers)
    if authorization is None:
        raise MissingToken
    return token_in(authorization)


def credentials(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the value of the Authorization header; raises MalformedCredentials if repeated."""
    authorization = None
    for name, value in headers:
        if name == b"authorization":
            if authorization is not None:
                # A proxy in front may have checked the other header.
                raise MalformedCredentials("repeated_header")
            authorization = value
    return authorization


def token_in(value: bytes) -> str:
    """Return the token in the value of an Authorization header; raises as `bearer_token`."""
    if len(value) > MAX_VALUE:
        raise MalformedCredentials("too_long")
    # After removing the token's alphabet, only the space after the scheme may be left. This checks
    # the same as CREDENTIAL at a third of its cost.
    if value.startswith(BEARER) and value.translate(None, B64TOKEN) == b" ":
        token = value[7:]
        if token:
            return token.decode("ascii")
    return _unusual(value)


def _unusual(value: bytes) -> str:
    # White space around a field value is not part of it (RFC 9110 section 5.5). h11 removes it and
    # httptools does not, so without this line the same request would be treated differently.
    value = value.strip(b" \t")
    match = CREDENTIAL.fullmatch(value)
    if match is not None:
        return match[1].decode("ascii")
    scheme = SCHEME.match(value)
    if scheme is None or scheme[1].lower() == b"bearer":
        raise MalformedCredentials("malformed_credentials")
    raise MissingToken("other_scheme")


class OneStepSend:
    """
    ASGI's `send` of a server that sends a complete answer, or a stream, in one step instead of
    several messages. A server's class inherits from it to announce that.
    """

    __slots__ = ()

    def __call__(self, message: Any) -> Awaitable[None]:
        """Forward one message of ASGI's `send`."""
        raise NotImplementedError

    def send_whole(self, status: int, fields: tuple[HeaderField, ...], body: bytes) -> bool:
        """
        Send the answer; False: it has to go as messages.

        *fields* say nothing of length, coding or connection, which are added.
        """
        raise NotImplementedError

    def begin_stream(self, status: int, fields: tuple[HeaderField, ...], first: bytes) -> bool:
        """Send the head of a stream and its first part; False: they have to go as messages."""
        return False

    def send_part(self, part: bytes, *, more_body: bool) -> bool:
        """Send a part of a stream, the last without *more_body*; False: it must be a message."""
        return False


async def send_response(
    send: Send, status: int, fields: tuple[HeaderField, ...], body: bytes
) -> None:
    """Send an answer that is whole, by the shortest way there is; its length is added."""
    if not isinstance(send, OneStepSend) or not send.send_whole(status, fields, body):
        if status != NO_CONTENT:  # has no body and no length (RFC 9110 section 8.6)
            fields = (*fields, (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": [*fields]})
        await send({"type": "http.response.body", "body": body})
