"""The legacy leg: a handshake, then the requests, notifications and batches of its session."""

from msgspec import UNSET

from gatepost.intake import Stopped
from gatepost.mcp.calling import retry_key
from gatepost.mcp.cancellation import Running, UntilCancelled
from gatepost.mcp.era import BATCHING
from gatepost.mcp.exchange import ACCEPTED, Answer, Exchange
from gatepost.mcp.interaction import Audience, progress_token
from gatepost.mcp.jsonrpc import (
    BAD_BATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Message,
    Refused,
    error,
    read_id,
    read_part,
    result,
)
from gatepost.mcp.legacy import Session, Sessions
from gatepost.mcp.methods import INITIALIZE, served
from gatepost.mcp.params import NO_META, read_params
from gatepost.mcp.reply import Replies, as_refusal
from gatepost.mcp.server import Ask, Server
from gatepost.mcp.stream import Stream, reads_events
from gatepost_authz.errors import AuthError

SESSION_HEADER = b"mcp-session-id"
CANCELLED = "notifications/cancelled"

NO_SESSION = Refused(INVALID_REQUEST, "Mcp-Session-Id is required", legacy_status=400)
LOST = Refused(INVALID_REQUEST, "Session not found", legacy_status=404)
NO_BATCH = Refused(INVALID_REQUEST, "Batches are not part of this revision", legacy_status=400)
NOT_ASKED = Refused(INVALID_REQUEST, "Nothing was asked of this client", legacy_status=400)
EMPTY = Refused(INVALID_REQUEST, BAD_BATCH, legacy_status=400)


class Handshake:
    """Serves the revisions that begin with `initialize`."""

    def __init__(self, server: Server, sessions: Sessions, replies: Replies) -> None:
        self._server = server
        self._sessions = sessions
        self._replies = replies
        self._methods = served(server.capabilities, modern=False)
        self._running: Running = {}

    def find(self, exchange: Exchange) -> Session | None:
        """The session a request names, if it is this caller's and alive."""
        return self._sessions.find(exchange.headers.get(SESSION_HEADER, b""), exchange.caller)

    def initialize(self, exchange: Exchange, message: Message, identity: bytes) -> Answer:
        """Open a session (DE-05); its id goes back in a header."""
        try:
            session, session_id = self._sessions.start(message.params, exchange.caller)
        except Refused as refusal:
            return self._replies.refused(identity, refusal)
        body = result(identity, self._server.introduction(session.version))
        return Answer(200, body, ((SESSION_HEADER, session_id.encode("ascii")),))

    async def request(
        self, exchange: Exchange, message: Message, identity: bytes, session: Session
    ) -> Answer | None:
        """Answer one request of a session; None when the answer went out as a stream."""
        stream = None
        if reads_events(exchange.headers.get(b"accept", b"")):
            stream = Stream(exchange.send)
        work = self._work(exchange, message, identity, session, stream)
        return await self._replies.to(exchange, identity, stream, work)

    async def _work(
        self,
        exchange: Exchange,
        message: Message,
        identity: bytes,
        session: Session,
        stream: Stream | None,
    ) -> bytes:
        if message.method == INITIALIZE:
            raise Refused(INVALID_REQUEST, "The session is open already")
        method = self._methods.get(message.method or "")
        if method is None or method.handler is None:
            raise Refused(METHOD_NOT_FOUND, "Method not found")
        params, problem = read_params(message.params)
        if problem is not None:
            raise problem
        meta = NO_META if params.meta is UNSET else params.meta
        client = Audience(stream, capabilities={}, token=progress_token(meta), level=None)
        retry = retry_key(exchange.headers, params)
        caller, version = exchange.caller, session.version
        ask = Ask(caller, exchange.request_id, version, params, client, session, retry)
        key = (session.nonce, identity)
        return await UntilCancelled(self._running, key, method.handler(self._server, ask))

    def notify(self, message: Message, session: Session) -> Answer:
        """Take a notification of a session; only a cancellation means anything here."""
        if message.method == CANCELLED:
            params, _ = read_params(message.params)
            identity = None if params.request_id is UNSET else read_id(params.request_id)
            # Looked up below this session only: ids are the client's own (J-14).
            if identity is not None and (stop := self._running.get((session.nonce, identity))):
                stop.pull()
        return ACCEPTED

    async def batch(self, exchange: Exchange, batch: list[bytes], session: Session) -> Answer:
        """Serve the messages of a batch in their order (DE-09); 202 when none wants an answer."""
        if session.version != BATCHING:
            return self._replies.refused(None, NO_BATCH)
        if not batch:
            return self._replies.refused(None, EMPTY)
        answers = [await self._part(exchange, read_part(raw), session) for raw in batch]
        bodies = [body for body in answers if body is not None]
        return Answer(200, b"[" + b",".join(bodies) + b"]") if bodies else ACCEPTED

    async def _part(self, exchange: Exchange, message: Message, session: Session) -> bytes | None:
        identity = message.id
        if message.refusal is not None:
            return error(identity, message.refusal)
        if message.method is None:
            return None  # a response, to nothing that was asked
        if identity is None:
            self.notify(message, session)
            return None
        try:
            return result(identity, await self._work(exchange, message, identity, session, None))
        except Refused as refusal:
            return error(identity, refusal)
        except AuthError as raised:
            # One status for all of them: what is already done cannot be answered with a challenge.
            return error(identity, as_refusal(raised))
        except Stopped:
            return None
