"""How the work on one request ends: as JSON, as a stream's last event, as a challenge, or not."""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from gatepost.intake import Stopped
from gatepost.mcp.exchange import Answer, Exchange
from gatepost.mcp.jsonrpc import (
    INSUFFICIENT_AUTHENTICATION,
    INSUFFICIENT_SCOPE,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_CAPABILITY,
    TENANT_SUSPENDED,
    Refused,
    error,
    result,
)
from gatepost.mcp.stream import Stream
from gatepost.pledge import Instead
from gatepost.scope import HELD, INSTEAD
from gatepost.stores.api import StoreUnavailable
from gatepost.tools.client import InputNeeded, MissingCapability, ProtocolError, required_by
from gatepost.tools.runner import UNRECORDED
from gatepost.tools.underway import TenantSuspended
from gatepost_authz.challenge import Challenge
from gatepost_authz.config import Resource
from gatepost_authz.errors import AuthError, InsufficientScope

Questions = Callable[[InputNeeded], bytes]
JSON_BODY = (b"content-type", b"application/json")
UNANSWERED = (MissingCapability, ProtocolError, InputNeeded)
"""How work may end besides a result, beyond refusals."""

log = structlog.get_logger("gatepost.mcp")

UNAVAILABLE = Refused(
    INTERNAL_ERROR,
    "The server cannot reach its storage at the moment",
    status=503,
    legacy_status=503,
    headers=((b"retry-after", b"5"),),
)


SUSPENDED = Refused(TENANT_SUSPENDED, "This tenant is suspended", status=200, legacy_status=200)


class Replies:
    """Turns what comes of a request into its answer, in the words of one era."""

    def __init__(self, challenge: Challenge, resource: Resource, *, modern: bool) -> None:
        self._challenge = challenge
        self._resource = resource
        self._modern = modern

    async def to(
        self,
        exchange: Exchange,
        identity: bytes,
        stream: Stream | None,
        work: Awaitable[bytes],
        questions: Questions | None = None,
    ) -> Answer | None:
        """
        Await *work*, the result of the request; None when nothing is left to send.

        *questions* turns what was asked into the result, where that is how to ask.

        Whatever has a status of its own is decided before the first event: a stream is 200.
        """
        try:
            answer = Answer(200, result(identity, await work))
            holder = exchange.holder
            if holder is not None and holder[HELD] is not None:
                holder[INSTEAD] = partial(unrecorded, exchange.request_id, identity)
        except Refused as refusal:
            answer = self.refused(identity, refusal)
        except AuthError as raised:
            answer = self.challenged(exchange.path, identity, raised)
        except TenantSuspended:
            answer = self.refused(identity, SUSPENDED)
        except UNANSWERED as raised:
            answer = self._unanswered(identity, raised, questions)
        except StoreUnavailable as outage:
            answer = self.unavailable(exchange.request_id, identity, outage)
        except Stopped:
            await self._stopped(exchange, stream)
            return None
        if stream is None or not stream.started:
            return answer
        await stream.finish(answer.body)
        return None

    def refused(self, identity: bytes | None, refusal: Refused) -> Answer:
        """The answer to a message that is refused."""
        # Many refusals are constants, and a traceback keeps what its request knew: each raise adds
        # to it, so whoever is refused over and over would fill the memory.
        refusal.__traceback__ = refusal.__context__ = None
        status = refusal.status if self._modern else refusal.legacy_status
        return Answer(status, error(identity, refusal), refusal.headers)

    def unavailable(
        self, request_id: str, identity: bytes | None, outage: StoreUnavailable
    ) -> Answer:
        """The answer while a store is out: nobody is at fault, and it may be tried again."""
        log.warning("store_unavailable", request_id=request_id, reason=str(outage))
        return self.refused(identity, UNAVAILABLE)

    def _unanswered(
        self, identity: bytes, raised: BaseException, questions: Questions | None
    ) -> Answer:
        """One of UNANSWERED, in JSON-RPC."""
        try:
            if isinstance(raised, InputNeeded) and questions is not None:
                return Answer(200, result(identity, questions(raised)))
            refusal = without_answer(raised, modern=self._modern)
        except Refused as too_much:
            refusal = too_much
        return self.refused(identity, refusal)

    def challenged(self, path: str, identity: bytes | None, raised: AuthError) -> Answer:
        """The demand for more permissions or another token; the body names the request."""
        target = self._resource.locate(path)
        status, headers, _ = self._challenge.response(raised, target)
        own = (b"content-type", b"content-length")
        kept = tuple((name, value) for name, value in headers if name not in own)
        return Answer(status, error(identity, as_refusal(raised)), kept)

    async def _stopped(self, exchange: Exchange, stream: Stream | None) -> None:
        if not self._modern:
            # The connection is still there and wants an end; a cancelled request gets no response.
            await (stream or Stream(exchange.send)).finish(None)


def unrecorded(request_id: str, identity: bytes) -> Instead:
    """What is said instead of an answer whose record could not be written."""
    refusal = Refused(INTERNAL_ERROR, UNRECORDED, data={"request_id": request_id})
    return Instead(200, (JSON_BODY,), error(identity, refusal))


def as_refusal(raised: AuthError) -> Refused:
    """The demand for more permissions, in JSON-RPC."""
    data = None
    code = INSUFFICIENT_AUTHENTICATION
    if isinstance(raised, InsufficientScope):
        code, data = INSUFFICIENT_SCOPE, {"scopes": raised.scopes}
    return Refused(code, raised.description or "Not authorized", data=data)


def without_answer(raised: BaseException, *, modern: bool) -> Refused:
    """One of UNANSWERED, as the error it is where no question can be asked."""
    if isinstance(raised, ProtocolError):
        status = 400 if raised.code == INVALID_PARAMS else 200
        return Refused(raised.code, raised.message, data=raised.data, status=status)
    if isinstance(raised, InputNeeded):
        # Asked where nobody could have answered; whoever asked did not look.
        raised = MissingCapability(required_by(raised.requests))
    # V-10, M-04: the client can be made to declare it.
    data = {"requiredCapabilities": getattr(raised, "required", {})}
    code = MISSING_CAPABILITY if modern else INVALID_REQUEST
    return Refused(code, f"This {raised}", data=data if modern else None)
