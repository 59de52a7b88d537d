"""One HTTP exchange: verb, body, era, and the leg that serves it."""

from collections import Counter
from collections.abc import Awaitable, Iterable, Set

import msgspec
from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from gatepost.intake import Gone
from gatepost.mcp import modern
from gatepost.mcp.body import JSON, TOO_SLOW, check_type, read_body
from gatepost.mcp.conversation import Desk
from gatepost.mcp.era import MODERN, Kind, Ruling, decide, is_modern
from gatepost.mcp.exchange import ACCEPTED, Answer, Exchange, Head, Headers
from gatepost.mcp.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    TENANT_SUSPENDED,
    Message,
    Refused,
    read,
)
from gatepost.mcp.legacy import Sessions
from gatepost.mcp.line import Line
from gatepost.mcp.methods import INITIALIZE
from gatepost.mcp.params import NO_META, NONE, Params, read_params, read_whole
from gatepost.mcp.reply import SUSPENDED, Replies
from gatepost.mcp.server import Server
from gatepost.mcp.session import LOST, NO_BATCH, NO_SESSION, NOT_ASKED, SESSION_HEADER, Handshake
from gatepost.mcp.stateless import Stateless
from gatepost.scope import FOLDED, HELD, REQUEST_ID, SAME_HEAD, WHOLE_BODY, Field, peer_of, tell
from gatepost.stores.api import StoreUnavailable
from gatepost.tools.attend import DeadlinePassed, Within
from gatepost.tools.retry import CORRELATION, IDEMPOTENCY
from gatepost_authz.caller import TenantContext
from gatepost_authz.challenge import Challenge
from gatepost_authz.config import Resource
from gatepost_authz.errors import RevokedToken
from gatepost_authz.middleware import CALLER

VERSION_HEADER = b"mcp-protocol-version"
MODERN_HEADER = MODERN.encode()
JSON_BODY = (b"content-type", b"application/json")
JSON_ALONE = (JSON_BODY,)

STREAM_REFUSED = Refused(TENANT_SUSPENDED, "This tenant is suspended", legacy_status=400)
NOT_ALLOWED = Refused(
    INVALID_REQUEST,
    "This revision has POST only",
    legacy_status=405,
    headers=((b"allow", b"POST"),),
)
NO_SUCH_VERB = Refused(
    INVALID_REQUEST,
    "Only POST, GET and DELETE are served here",
    legacy_status=405,
    headers=((b"allow", b"GET, POST, DELETE"),),
)
LEGACY_REFUSALS = {
    Ruling.NO_SESSION: NO_SESSION,
    Ruling.SESSION: LOST,
    Ruling.LISTEN: LOST,
    Ruling.END: LOST,
    Ruling.BATCH: LOST,
    Ruling.RESPONSE: LOST,
    Ruling.NO_BATCH: NO_BATCH,
    Ruling.NO_RESPONSE: NOT_ASKED,
}
DOUBLED = Refused(HEADER_MISMATCH, "A routing header is sent twice", legacy_status=400)
EXACTLY = "surrogateescape"
"""How bytes become a text that equals no other's."""
DECIDING = (b"mcp-", b"content-", IDEMPOTENCY, CORRELATION)


class Limits(msgspec.Struct, frozen=True):
    """What one request may cost before it means anything."""

    max_body_bytes: int = 4_194_304
    body_timeout_s: float = 10.0
    questions_per_caller: int = 20
    """Requests to its client that may wait for an answer at once."""
    question_timeout_s: float = 300.0


DEFAULT_LIMITS = Limits()


class Endpoint:
    """
    The MCP endpoint, an ASGI app behind the gate.

    Both eras meet the caller that the gate left in the scope; nothing here reads a token. *mirrors*
    says whether there are headers that repeat what a message says, to be compared with it.
    """

    def __init__(  # noqa: PLR0913  # the composition root hands over each part by name
        self,
        server: Server,
        *,
        challenge: Challenge,
        resource: Resource,
        sessions: Sessions,
        suspended: Set[str] = frozenset(),
        limits: Limits = DEFAULT_LIMITS,
        mirrors: bool = True,
    ) -> None:
        self._suspended = suspended
        self._underway = server.underway
        self._limits = limits
        self._modern = Replies(challenge, resource, modern=True)
        self._legacy = Replies(challenge, resource, modern=False)
        self._stateless = Stateless(server, self._modern, mirrors=mirrors)
        desk = Desk(
            server.keyring,
            most_per_caller=limits.questions_per_caller,
            limit_s=limits.question_timeout_s,
            stopping=server.stopping,
        )
        self._handshake = Handshake(server, sessions, self._legacy, desk)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] != "POST":
                answer: Answer | Line | None = await self._other_verb(scope, receive, send)
            else:
                head = self._head(scope)
                body: bytes | None = scope.get(WHOLE_BODY)
                if body is None or len(body) > self._limits.max_body_bytes:
                    body = await self._body(scope[CALLER], receive)
                found = self._answer(scope, receive, send, head, body)
                answer = found if isinstance(found, Answer) else await found
        except Refused as refusal:
            # Refused before a message was understood: no era, no id.
            answer = self._modern.refused(None, refusal)
        except DeadlinePassed:
            answer = self._modern.refused(None, TOO_SLOW)
        except StoreUnavailable as outage:
            answer = self._modern.unavailable(scope.get(REQUEST_ID, ""), None, outage)
        except RevokedToken as revoked:
            answer = self._modern.challenged(scope["path"], None, revoked)
        except Gone:
            return
        if answer is None:
            return
        # Asked this way round because nearly all are, and to ask of a Line costs five times that.
        if not isinstance(answer, Answer):
            # Everything that the request brought is let go of: it could weigh megabytes, and the
            # stream may stay for days.
            scope.pop(WHOLE_BODY, None)
            await answer.run(receive, send)
            return
        await tell(send, answer.status, _fields(answer), answer.body)

    def _head(self, scope: Scope) -> Head:
        """What the headers say, worked out once for heads that are the same; raises Refused."""
        heads = scope.get(SAME_HEAD)
        head: Head | None = None if heads is None else heads.get(self)
        if head is None:
            headers = _checked_headers(scope)
            raw = scope["headers"]
            named = headers.get(b"mcp-name")
            head = Head(
                version=_version(headers),
                method=headers.get(b"mcp-method", b"").strip(b" \t").decode(errors=EXACTLY),
                name=None if named is None else modern.decode_value(named),
                is_marked=IDEMPOTENCY in headers or CORRELATION in headers,
                is_doubled=len(headers) != len(raw) and _doubled(raw),
                peer=peer_of(scope),
            )
            if heads is not None:
                heads[self] = head
        return head

    def _answer(
        self, scope: Scope, receive: Receive, send: Send, head: Head, body: bytes
    ) -> Answer | Awaitable[Answer | Line | None]:
        exchange = Exchange(
            scope[CALLER],
            scope["path"],
            scope.get(REQUEST_ID, ""),
            scope.get(FOLDED) or dict(scope["headers"]),
            receive,
            send,
            head,
            scope if HELD in scope else None,
        )
        refusal: Refused | None = None
        if exchange.caller.tenant_id in self._suspended:
            refusal = SUSPENDED
        if head.is_doubled:
            # Whoever reads the first and whoever reads the last would see different requests.
            refusal = DOUBLED
        usual = read_whole(body) if refusal is None and head.version == MODERN else None
        if usual is None:
            return self._in_parts(exchange, body, refusal)
        message, identity, params = usual
        return self._request(exchange, message, identity, params, None)

    def _in_parts(
        self, exchange: Exchange, body: bytes, refusal: Refused | None
    ) -> Answer | Awaitable[Answer | Line | None]:
        """Whatever a body may be: a batch, a notification, a response, or no message at all."""
        message = read(body)
        if isinstance(message, list):
            if refusal is not None:
                return self._modern.refused(None, refusal)
            return self._batch(exchange, message)
        refusal = message.refusal or refusal
        if refusal is not None:
            return self._modern.refused(message.id, refusal)
        if message.method is None:
            return self._response(exchange, message)
        params, problem = read_params(message.params)
        if message.id is None:
            return self._notification(exchange, message, params)
        return self._request(exchange, message, message.id, params, problem)

    async def _body(self, caller: TenantContext, receive: Receive) -> bytes:
        limits = self._limits
        # One deadline for all of it: a byte now and then must not keep a request alive.
        body = await Within(limits.body_timeout_s, read_body(receive, limits.max_body_bytes))
        if self._underway.is_revoked(caller):
            # Since the gate let it pass: a body may take its time.
            raise RevokedToken
        return body

    async def _other_verb(self, scope: Scope, receive: Receive, send: Send) -> Answer | Line:
        """GET and DELETE, which only sessions have (DE-12, DE-13)."""
        headers: Headers = scope.get(FOLDED) or dict(scope["headers"])
        version, session = _version(headers), SESSION_HEADER in headers
        ruling = decide(scope["method"], header=version, session=session)
        if ruling is Ruling.NOT_ALLOWED:
            modern_one = version is not None and is_modern(version)
            return self._legacy.refused(None, NOT_ALLOWED if modern_one else NO_SUCH_VERB)
        if len(headers) != len(scope["headers"]) and _doubled(scope["headers"]):
            return self._legacy.refused(None, DOUBLED)
        path, request_id = scope["path"], scope.get(REQUEST_ID, "")
        exchange = Exchange(scope[CALLER], path, request_id, headers, receive, send, Head(version))
        if exchange.caller.tenant_id in self._suspended:
            return self._legacy.refused(None, STREAM_REFUSED)
        room = await self._handshake.find(exchange) if session else None
        if room is None:
            return self._legacy.refused(None, LEGACY_REFUSALS[ruling])
        if ruling is Ruling.END:
            return await self._handshake.end(exchange, room)
        return await self._handshake.listen(exchange, room)

    def _request(
        self,
        exchange: Exchange,
        message: Message,
        identity: bytes,
        params: Params,
        problem: Refused | None,
    ) -> Awaitable[Answer | Line | None]:
        version = None if params.meta is UNSET else params.meta.version
        if version == MODERN and exchange.head.version == MODERN:
            # DE-01 without asking the table: most requests are this, and pay for no more coroutine.
            return self._stateless.serve(exchange, message, identity, params, problem)
        return self._ruled(exchange, message, identity, params)

    async def _ruled(
        self, exchange: Exchange, message: Message, identity: bytes, params: Params
    ) -> Answer | Line | None:
        """What the table says of a request."""
        version = None if params.meta is UNSET else params.meta.version
        header = exchange.head.version
        ruling = decide(
            "POST",
            Kind.REQUEST,
            header=header,
            body=None if version is UNSET else version,
            session=SESSION_HEADER in exchange.headers,
            handshake=message.method == INITIALIZE,
        )
        if ruling is Ruling.HANDSHAKE:
            return self._handshake.initialize(exchange, message, identity)
        if ruling in (Ruling.SESSION, Ruling.SESSION_OR_UNSERVED):
            try:
                room = await self._handshake.find(exchange)
            except StoreUnavailable as outage:
                return self._legacy.unavailable(exchange.request_id, identity, outage)
            if room is not None:
                return await self._handshake.request(exchange, message, identity, room)
        return self._refuse(ruling, exchange.headers, identity, params)

    async def _notification(self, exchange: Exchange, message: Message, params: Params) -> Answer:
        version = None if params.meta is UNSET else params.meta.version
        ruling = decide(
            "POST",
            Kind.NOTIFICATION,
            header=exchange.head.version,
            body=None if version is UNSET else version,
            session=SESSION_HEADER in exchange.headers,
        )
        if ruling is Ruling.DROP:
            return ACCEPTED
        if ruling is Ruling.SESSION and (room := await self._handshake.find(exchange)):
            return await self._handshake.notify(exchange, message, room)
        return self._refuse(ruling, exchange.headers, None, params)

    async def _response(self, exchange: Exchange, message: Message) -> Answer:
        """A client's answer, to what its session was asked anywhere."""
        headers = exchange.headers
        session = SESSION_HEADER in headers
        ruling = decide("POST", Kind.RESPONSE, header=exchange.head.version, session=session)
        if ruling is Ruling.RESPONSE and (room := await self._handshake.find(exchange)):
            return await self._handshake.respond(message, room)
        return self._refuse(ruling, headers, None, NONE)

    async def _batch(self, exchange: Exchange, batch: list[bytes]) -> Answer:
        headers = exchange.headers
        session_named = SESSION_HEADER in headers
        ruling = decide("POST", Kind.BATCH, header=exchange.head.version, session=session_named)
        if ruling is Ruling.BATCH and (room := await self._handshake.find(exchange)):
            return await self._handshake.batch(exchange, batch, room)
        return self._refuse(ruling, headers, None, NONE)

    def _refuse(
        self, ruling: Ruling, headers: Headers, identity: bytes | None, params: Params
    ) -> Answer:
        """The answer to what the table does not serve, or serves only a session that is not."""
        if ruling in LEGACY_REFUSALS:
            return self._legacy.refused(identity, LEGACY_REFUSALS[ruling])
        meta = NO_META if params.meta is UNSET else params.meta
        named = _version(headers) if meta.version is UNSET else meta.version
        if ruling is Ruling.NO_META:
            refusal = modern.no_meta(meta)
        elif ruling is Ruling.MISMATCH:
            refusal = modern.mismatch("MCP-Protocol-Version", "the version in params._meta")
        else:
            refusal = modern.unserved(named or "")
        return self._modern.refused(identity, refusal)


def _fields(answer: Answer) -> tuple[Field, ...]:
    """What the answer's head says; the same object where that is nothing but its type."""
    if not answer.body:
        return answer.headers
    return (*answer.headers, JSON_BODY) if answer.headers else JSON_ALONE


def _checked_headers(scope: Scope) -> Headers:
    """The headers of a request that may have a body to read; raises Refused."""
    headers: Headers = scope.get(FOLDED) or dict(scope["headers"])
    if headers.get(b"content-type") != JSON or b"content-encoding" in headers:
        check_type(headers)
    return headers


def _version(headers: Headers) -> str | None:
    value = headers.get(VERSION_HEADER)
    if value == MODERN_HEADER:
        return MODERN
    return None if value is None else value.strip(b" \t").decode("latin-1")


def _doubled(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    counted = Counter(name for name, _ in headers)
    return any(n > 1 and name.startswith(DECIDING) for name, n in counted.items())
