"""The REST tool protocol behind the gate: two routes, one runner."""

from collections.abc import Awaitable, Callable, Set
from functools import partial

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from gatepost.intake import Gone, Stopped, TooLarge, UntilDisconnect, read_body
from gatepost.rest import projection
from gatepost.rest.descriptor import Descriptors
from gatepost.rest.envelope import (
    Envelope,
    TenantDiffers,
    check_type,
    read_arguments,
    read_envelope,
)
from gatepost.rest.projection import Refusal, Reply
from gatepost.scope import HELD, INSTEAD, REQUEST_ID, WHOLE_BODY, peer_of
from gatepost.stores.api import StoreUnavailable
from gatepost.tools.api import Call, Outcome
from gatepost.tools.attend import DeadlinePassed, Within
from gatepost.tools.client import MissingCapability, ProtocolError
from gatepost.tools.fit import fit
from gatepost.tools.registry import Registry, UnknownTool
from gatepost.tools.runner import Runner
from gatepost.tools.underway import TenantSuspended, Underway
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.errors import AuthError, RevokedToken
from gatepost_authz.middleware import Place, caller_of

log = structlog.get_logger("gatepost.rest")

SHOWN_CHARACTERS = 64
# What `succeeded` writes around the blocks, at most.
AROUND_BYTES = 64
OWN = frozenset({b"content-type", b"content-length"})


class Limits(msgspec.Struct, frozen=True):
    """What one request may cost before it means anything."""

    max_body_bytes: int = 4_000_000
    body_timeout_s: float = 30.0


class Bridge:
    """
    Lists tools (`list_tools`) and calls them (`call_tool`): two ASGI apps for a gate to guard.

    The route of `call_tool` leaves the tool's `name` in the path parameters. *place* says which
    resource a path belongs to, for challenges that only a call makes necessary; *differs* puts on
    record that a request was for another tenant than its token.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        runner: Runner,
        registry: Registry,
        *,
        challenge: Challenge,
        place: Place,
        limits: Limits,
        suspended: Set[str] = frozenset(),
        underway: Underway | None = None,
        differs: Callable[[TenantDiffers], Awaitable[None]] | None = None,
    ) -> None:
        self._differs = differs
        self._runner = runner
        self._registry = registry
        self._descriptors = Descriptors(registry)
        self._challenge = challenge
        self._locate = place.locate
        self._suspended = suspended
        self._underway = Underway() if underway is None else underway
        self._limits = limits

    async def list_tools(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /tools`."""
        await self._answer(scope, send, self._listed(scope))

    async def call_tool(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /tool/{name}/call`."""
        await self._answer(scope, send, self._called(scope, receive))

    async def _answer(self, scope: Scope, send: Send, work: Awaitable[Reply]) -> None:
        try:
            reply = await self._noted(work)
            if scope.get(HELD) is not None:
                scope[INSTEAD] = partial(projection.unrecorded, scope.get(REQUEST_ID))
        except Refusal as refusal:
            reply = projection.refused(refusal)
        except AuthError as error:
            status, headers, body = self._challenge.response(error, self._locate(scope["path"]))
            reply = Reply(status, body, tuple(pair for pair in headers if pair[0] not in OWN))
        except StoreUnavailable as outage:
            log.warning("store_unavailable", request_id=scope.get(REQUEST_ID), reason=str(outage))
            reply = projection.refused(projection.store_unavailable())
        except (Gone, Stopped):
            return  # nobody is there to hear it
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(reply.body)),
            (b"x-content-type-options", b"nosniff"),
            *reply.headers,
        ]
        if not any(name == b"cache-control" for name, _ in reply.headers):
            # Also the lists: what is in them depends on the token.
            headers.append((b"cache-control", b"no-store"))
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _noted(self, work: Awaitable[Reply]) -> Reply:
        """What the work answers; who asks in another tenant's name is put on record first."""
        try:
            return await work
        except TenantDiffers as refusal:
            if self._differs is not None:
                await self._differs(refusal)
            raise

    async def _listed(self, scope: Scope) -> Reply:
        _require_method(scope, "GET", "HEAD")
        caller, _ = self._admit(scope)
        return Reply(200, self._descriptors.of(caller))

    async def _called(self, scope: Scope, receive: Receive) -> Reply:
        _require_method(scope, "POST")
        caller, envelope = self._admit(scope)
        check_type(scope)
        call = Call(
            caller=caller,
            name=scope["path_params"]["name"],
            arguments=read_arguments(await self._body(scope, receive)),
            request_id=envelope.request_id,
            retry=envelope.retry,
            correlation=envelope.correlation,
            holder=scope if HELD in scope else None,
            peer=peer_of(scope),
        )
        try:
            outcome = await UntilDisconnect(receive, self._runner.run(call), caller, self._underway)
        except UnknownTool as unknown:
            # The same words for a tool that is not there and one that this caller cannot reach.
            name = unknown.name[:SHOWN_CHARACTERS]
            raise Refusal(404, "not_found", f"Unknown tool: {name}") from None
        except MissingCapability as missing:
            raise projection.unable(missing) from None
        except TenantSuspended:
            raise suspended() from None
        except ProtocolError as error:
            raise projection.protocol_error(error) from None
        return self._projected(call, outcome)

    def _admit(self, scope: Scope) -> tuple[TenantContext, Envelope]:
        """Who calls, and the marks of the request; raises Refusal."""
        caller = caller_of(scope)
        self._check(caller)
        return caller, read_envelope(scope, caller)

    def _check(self, caller: TenantContext) -> None:
        if caller.tenant_id in self._suspended:
            raise suspended()

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limits = self._limits
        body: bytes | None = scope.get(WHOLE_BODY)
        if body is not None and len(body) <= limits.max_body_bytes:
            return body
        try:
            # One deadline for all of it: a byte now and then must not keep a request alive.
            body = await Within(limits.body_timeout_s, read_body(receive, limits.max_body_bytes))
        except TooLarge:
            message = f"The body is larger than {limits.max_body_bytes} bytes."
            raise Refusal(413, "body_too_large", message) from None
        except DeadlinePassed:
            raise Refusal(408, "body_too_slow", "The body did not arrive in time.") from None
        if self._underway.is_revoked(caller_of(scope)):
            # Since the gate let it pass: a body may take its time.
            raise RevokedToken
        self._check(caller_of(scope))
        return body

    def _projected(self, call: Call, outcome: Outcome) -> Reply:
        if outcome.failure is None:
            reply = projection.succeeded(outcome)
            limit = self._runner.max_result_bytes
            if len(reply.body) <= limit:
                return reply
            # The blocks fit, and what stands around them here no longer did.
            room = limit - AROUND_BYTES - len(outcome.content)
            tool = self._registry.find(call.caller, call.name)
            outcome = fit(outcome, tool, room)
        if outcome.failure is not None:
            return projection.failed(outcome.failure)
        return projection.succeeded(outcome)


def suspended() -> Refusal:
    """What every caller of a suspended tenant hears."""
    return Refusal(403, "tenant_suspended", "This tenant is suspended.")


def _require_method(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise Refusal(
            405,
            "method_not_allowed",
            f"Only {allowed} is served here.",
            ((b"allow", allowed.encode()),),
        )
