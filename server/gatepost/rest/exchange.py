"""Read the requests of REST routes, apply their limits, and send the answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Set

import msgspec
from starlette.types import Receive, Scope, Send

from gatepost.documents.json_shape import MAX_VALUES
from gatepost.execution.cpu_thread import TooManyWaiting
from gatepost.http.body import (
    Gone,
    RequestCancelled,
    RunningRequests,
    TooLarge,
    read_body_of,
)
from gatepost.http.scope import REQUEST_ID, WHOLE_BODY
from gatepost.rest import responses
from gatepost.rest.envelope import RestRequest, TenantDiffers, read_envelope
from gatepost.rest.responses import RestRefusal, RestResponse
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.calls.stage import RequestLimits
from gatepost.tools.offers.offer import Call
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.errors import AuthError, RevokedToken
from gatepost_authz.middleware import NO_CONTENT, ResourceLookup, caller_of

log = logging.getLogger("gatepost.rest")

CONTENT_HEADERS = frozenset({b"content-type", b"content-length"})


class RestLimits(msgspec.Struct, frozen=True):
    """The limits of one request before it is understood."""

    max_body_bytes: int = 4_000_000
    body_timeout_s: float = 30.0
    max_body_values: int = MAX_VALUES


class RestExchange:
    """
    Reads requests and sends answers.

    *resource_of* returns the resource of a path, for challenges that only a call makes necessary.
    *record_tenant_mismatch* records that a call claimed another tenant than its token. *requests*
    counts requests that are no calls.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        *,
        challenge: Challenge,
        resource_of: ResourceLookup,
        limits: RestLimits,
        requests: RequestLimits,
        suspended: Set[str] = frozenset(),
        running_requests: RunningRequests | None = None,
        record_tenant_mismatch: Callable[[Call, str], Awaitable[None]] | None = None,
    ) -> None:
        self._challenge = challenge
        self._locate = resource_of.locate
        self._requests = requests
        self._suspended = suspended
        self.running_requests = RunningRequests() if running_requests is None else running_requests
        self._record_tenant_mismatch = record_tenant_mismatch
        self.limits = limits

    async def answer(self, scope: Scope, send: Send, work: Awaitable[RestResponse]) -> None:
        """Send the answer that *work* returns, or that its exception means."""
        try:
            reply = await self._noted(work)
        except RestRefusal as refusal:
            reply = responses.refused(refusal)
        except AuthError as error:
            status, headers, body = self._challenge.response(error, self._locate(scope["path"]))
            reply = RestResponse(
                status, body, tuple(pair for pair in headers if pair[0] not in CONTENT_HEADERS)
            )
        except StoreUnavailable as outage:
            log.warning(
                "store_unavailable",
                extra={"request_id": scope.get(REQUEST_ID), "reason": str(outage)},
            )
            reply = responses.refused(responses.store_unavailable())
        except (Gone, RequestCancelled):
            return  # the client is gone
        headers = [(b"x-content-type-options", b"nosniff"), *reply.headers]
        if reply.status != NO_CONTENT:
            headers.append((b"content-type", b"application/json"))
            headers.append((b"content-length", b"%d" % len(reply.body)))
        if not any(name == b"cache-control" for name, _ in reply.headers):
            # Lists as well, because their content depends on the token.
            headers.append((b"cache-control", b"no-store"))
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _noted(self, work: Awaitable[RestResponse]) -> RestResponse:
        """Return the answer of *work*; a request in another tenant's name is recorded first."""
        try:
            return await work
        except TenantDiffers as refusal:
            if self._record_tenant_mismatch is not None:
                await self._record_tenant_mismatch(refusal.call, refusal.claimed)
            raise

    async def count(self, caller: TenantContext) -> None:
        """Count a request that is no call; raises RestRefusal if there are too many."""
        limited = await self._requests.spend(caller)
        if limited is not None and limited.failure is not None:
            raise responses.rate_limited(limited.failure)

    def admit(self, scope: Scope) -> tuple[TenantContext, RestRequest]:
        """Return the caller and the request's identifiers; raises RestRefusal."""
        caller = caller_of(scope)
        self._check(caller)
        return caller, read_envelope(scope, caller)

    def _check(self, caller: TenantContext) -> None:
        if caller.tenant_id in self._suspended:
            raise suspended()

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body; raises RestRefusal."""
        limits = self.limits
        body: bytes | None = scope.get(WHOLE_BODY)
        if body is not None and len(body) <= limits.max_body_bytes:
            return body
        try:
            # One deadline for the whole body, so that a byte now and then does not keep a request
            # alive.
            async with asyncio.timeout(limits.body_timeout_s):
                body = await read_body_of(caller_of(scope), receive, limits.max_body_bytes)
        except TooManyWaiting as busy:
            raise responses.rate_limited(busy.failure) from None
        except TooLarge:
            message = f"The body is larger than {limits.max_body_bytes} bytes."
            raise RestRefusal(413, "body_too_large", message) from None
        except TimeoutError:
            raise RestRefusal(408, "body_too_slow", "The body did not arrive in time.") from None
        if self.running_requests.is_revoked(caller_of(scope)):
            # Measured from the moment when the gate let the request pass, because a body may take
            # its time.
            raise RevokedToken
        self._check(caller_of(scope))
        return body


def suspended() -> RestRefusal:
    """Return the answer to every caller of a suspended tenant."""
    return RestRefusal(403, "tenant_suspended", "This tenant is suspended.")


def require_method(scope: Scope, *methods: str) -> None:
    """Raise RestRefusal unless the request has one of the methods."""
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise RestRefusal(
            405,
            "method_not_allowed",
            f"Only {allowed} is served here.",
            ((b"allow", allowed.encode()),),
        )
