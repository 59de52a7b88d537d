"""The gate: a request passes only with a token meant for this resource."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from gatepost_authz.bearer import bearer_token
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.config import Target
from gatepost_authz.errors import AuthError, InvalidToken
from gatepost_authz.verifier import Recall, TokenVerifier

CALLER = "gatepost.caller"
"""The key of the ASGI scope under which the gate leaves the caller."""


SAME_HEAD = "gatepost.same_head"
"""
The key of the ASGI scope where a server may leave a dictionary, the same one for requests whose
heads are the same bytes but for the digits of Content-Length: the path and the credentials are.
"""


def caller_of(scope: Scope) -> TenantContext:
    """Who calls, behind a gate; LookupError where no gate stands before this app."""
    caller = scope.get(CALLER)
    if not isinstance(caller, TenantContext):
        raise LookupError("no BearerMiddleware stands before this app")
    return caller


class Place(Protocol):
    """What knows the resource of a path: a Resource, or what lies Beside it."""

    def locate(self, path: str) -> Target | None:
        """The resource that a request path belongs to; None when it names none."""


class BearerMiddleware:
    """
    Lets a request pass only with a token meant for *resource*, carrying the *baseline* scopes.

    What the verifier found out stands in the scope (`caller_of`). *on_refusal* hears of every
    refusal before its challenge is sent; it must not raise.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        resource: Place,
        verifier: TokenVerifier,
        challenge: Challenge,
        baseline: frozenset[str] = frozenset(),
        on_refusal: Callable[[Scope, AuthError], None] | None = None,
    ) -> None:
        self.app = app
        self.locate = resource.locate
        self.verifier = verifier
        self.challenge = challenge
        self.baseline = baseline
        self.on_refusal = on_refusal

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._not_http(scope, receive, send)
        heads = scope.get(SAME_HEAD)
        recall: Recall | None = None if heads is None else heads.get(self)
        if recall is not None and (caller := recall()) is not None:
            # The same token to the same path, and its verdict is still good.
            scope[CALLER] = caller
            return self.app(scope, receive, send)
        return self._verified(scope, receive, send)

    async def _verified(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self.locate(scope["path"])
        try:
            token = bearer_token(scope["headers"])
            if target is None:
                # A path that names no tenant has no audience that a token could be held against.
                raise InvalidToken("no_resource_in_path")
            caller = await self.verifier.verify(token, target)
            if caller is None:
                raise InvalidToken("unknown_kind")
            if self.baseline:
                caller.require(self.baseline)
        except AuthError as error:
            if self.on_refusal is not None:
                self.on_refusal(scope, error)
            await self.challenge.refuse(error, target, send)
            return
        if (heads := scope.get(SAME_HEAD)) is not None:
            # Only what a verdict is filed under is kept: whether it holds is asked each time.
            heads[self] = self.verifier.recall(token, target)
        scope[CALLER] = caller
        await self.app(scope, receive, send)

    async def _not_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Named is what may pass unchecked. Every other kind of connection is refused, so that a
        # kind that ASGI gains tomorrow cannot slip by.
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            raise ValueError(f"no {scope['type']!r} connection passes the gate")
