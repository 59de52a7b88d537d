"""The legacy leg: a handshake, then what its session asks, tells and answers."""

import msgspec
import structlog
from msgspec import UNSET

from gatepost.intake import Stopped
from gatepost.mcp.calling import marks_of
from gatepost.mcp.cancellation import Running, UntilCancelled
from gatepost.mcp.conversation import Conversation, Desk
from gatepost.mcp.ear import Ear
from gatepost.mcp.era import BATCHING
from gatepost.mcp.exchange import ACCEPTED, Answer, Exchange
from gatepost.mcp.interaction import progress_token
from gatepost.mcp.journal import Archive
from gatepost.mcp.jsonrpc import (
    BAD_BATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RATE_LIMITED,
    Message,
    Refused,
    error,
    read_id,
    read_part,
    result,
)
from gatepost.mcp.legacy import Sessions
from gatepost.mcp.line import Line
from gatepost.mcp.listening import open_listener
from gatepost.mcp.methods import INITIALIZE, served
from gatepost.mcp.params import NO_META, read_params
from gatepost.mcp.replay import open_replay
from gatepost.mcp.reply import (
    SUSPENDED,
    UNANSWERED,
    UNAVAILABLE,
    Replies,
    as_refusal,
    without_answer,
)
from gatepost.mcp.resumption import Resumable
from gatepost.mcp.room import Room
from gatepost.mcp.server import Ask, Server
from gatepost.mcp.stream import reads_events
from gatepost.stores.api import StoreUnavailable
from gatepost.tools.underway import TenantSuspended
from gatepost_authz.caller import TenantContext
from gatepost_authz.errors import AuthError

log = structlog.get_logger("gatepost.session")

SESSION_HEADER = b"mcp-session-id"
LAST_EVENT_HEADER = b"last-event-id"
CANCELLED = "notifications/cancelled"
# As long as a request may take to be heard of: a cancellation may arrive before it listens.
CANCELLED_S = 5.0
BATCH_S = 60.0
"""How long after a batch came its last request may begin."""
REASON_CHARACTERS = 200

NO_SESSION = Refused(INVALID_REQUEST, "Mcp-Session-Id is required", legacy_status=400)
LOST = Refused(INVALID_REQUEST, "Session not found", legacy_status=404)
NO_BATCH = Refused(INVALID_REQUEST, "Batches are not part of this revision", legacy_status=400)
NOT_ASKED = Refused(INVALID_REQUEST, "Nothing was asked of this client", legacy_status=400)
TOO_LONG = Refused(
    RATE_LIMITED, "The requests before this one took too long; it was not begun. Send it again."
)
EMPTY = Refused(INVALID_REQUEST, BAD_BATCH, legacy_status=400)
ONLY_EVENTS = Refused(
    INVALID_REQUEST, "GET is answered as text/event-stream only", legacy_status=406
)


class Handshake:
    """Serves the revisions that begin with `initialize`."""

    def __init__(self, server: Server, sessions: Sessions, replies: Replies, desk: Desk) -> None:
        self._server = server
        self._sessions = sessions
        self._replies = replies
        self._desk = desk
        self._running: Running = {}
        self._archive = Archive()
        self._methods = served(server.capabilities, modern=False)

    async def find(self, exchange: Exchange) -> Room | None:
        """The session a request names, if it is this caller's, alive, and not ended anywhere."""
        caller = exchange.caller
        session = self._sessions.find(exchange.headers.get(SESSION_HEADER, b""), caller)
        if session is None:
            return None
        room = await self._server.register.room(caller.tenant_id, session)
        # Begun before its caller's tokens were taken back, it went with them; and the store may
        # have taken longer to answer than that.
        began = msgspec.structs.replace(caller, issued_at=session.issued_at)
        is_revoked = self._server.underway.is_revoked
        return None if is_revoked(began) or is_revoked(caller) else room

    def initialize(self, exchange: Exchange, message: Message, identity: bytes) -> Answer:
        """Open a session (DE-05); its id goes back in a header."""
        try:
            session, session_id = self._sessions.start(message.params, exchange.caller)
        except Refused as refusal:
            return self._replies.refused(identity, refusal)
        body = result(identity, self._server.introduction(session.version))
        return Answer(200, body, ((SESSION_HEADER, session_id.encode("ascii")),))

    async def end(self, exchange: Exchange, room: Room) -> Answer:
        """End a session, everywhere and for good (DE-13)."""
        await room.revise(lambda record: msgspec.structs.replace(record, ended=True))
        self._server.register.changed(exchange.caller.tenant_id, room.session)
        nonce = room.session.nonce
        for (owner, _), stop in tuple(self._running.items()):
            if owner == nonce:
                stop.pull()
        await room.tell("end")
        return Answer(204)

    async def listen(self, exchange: Exchange, room: Room) -> Answer | Line:
        """A stream to hold open (DE-12): the session's own, or the rest of a lost one."""
        if not reads_events(exchange.headers.get(b"accept", b"")):
            return self._replies.refused(None, ONLY_EVENTS)
        event_id = exchange.headers.get(LAST_EVENT_HEADER)
        try:
            if event_id is None:
                return await open_listener(self._server, exchange.caller, room)
            return await open_replay(self._server, exchange.caller, room, event_id)
        except Refused as refusal:
            return self._replies.refused(None, refusal)

    async def request(
        self, exchange: Exchange, message: Message, identity: bytes, room: Room
    ) -> Answer | None:
        """Answer one request of a session; None when the answer went out as a stream."""
        ear = Ear(room, identity)
        streams = self._server.streams
        stream = None
        if reads_events(exchange.headers.get(b"accept", b"")):
            stream = Resumable(
                exchange.send,
                caller=exchange.caller,
                ear=ear,
                streams=streams,
                archive=self._archive,
            )
        work = self._work(exchange, message, ear, stream)
        try:
            return await self._replies.to(exchange, identity, stream, work)
        finally:
            ear.close()
            if stream is not None:
                stream.close()

    async def _work(
        self, exchange: Exchange, message: Message, ear: Ear, stream: Resumable | None
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
        session = ear.room.session
        caller = exchange.caller
        client = Conversation(
            stream,
            ear=ear,
            desk=self._desk,
            caller=caller,
            token=progress_token(meta),
            allowed_s=self._server.runner.allowed_s,
        )
        marks = marks_of(exchange.headers, params)
        ask = Ask(
            caller,
            exchange.request_id,
            session.version,
            params,
            client,
            session,
            *marks,
            peer=exchange.head.peer,
        )
        work = client.answered(method.handler(self._server, ask))
        return await UntilCancelled(self._running, ear, work, caller, self._server.underway)

    async def notify(self, exchange: Exchange, message: Message, room: Room) -> Answer:
        """Take a notification of a session; only a cancellation means anything here."""
        if message.method == CANCELLED:
            params, _ = read_params(message.params)
            identity = None if params.request_id is UNSET else read_id(params.request_id)
            if identity is not None:
                reason = _reason(message.params)
                log.debug("request_cancelled", reason=reason, request_id=exchange.request_id)
                await self._cancel(room, identity)
        return ACCEPTED

    async def _cancel(self, room: Room, identity: bytes) -> None:
        # Looked up below this session only: ids are the client's own (J-14).
        stop = self._running.get((room.session.nonce, identity))
        if stop is not None:
            stop.pull()
            return
        # Elsewhere, or nowhere. Who does not listen yet finds the note.
        about = identity.decode()
        await room.leave("cancel", about, b"", ttl_s=CANCELLED_S)
        await room.tell("cancel", about)

    async def respond(self, message: Message, room: Room) -> Answer:
        """Take a client's answer to a question of ours (DE-10)."""
        identity = None if message.id is None else msgspec.json.decode(message.id)
        if isinstance(identity, str) and message.answer is not None:
            await self._desk.take_in(room, identity, message.answer)
        return ACCEPTED

    async def batch(self, exchange: Exchange, batch: list[bytes], room: Room) -> Answer:
        """Serve the messages of a batch in their order (DE-09); 202 when none wants an answer."""
        if room.session.version != BATCHING:
            return self._replies.refused(None, NO_BATCH)
        if not batch:
            return self._replies.refused(None, EMPTY)
        runner, caller = self._server.runner, exchange.caller
        until = runner.clock() + min(BATCH_S, runner.allowed_s(caller))
        answers = [
            await self._part(exchange, read_part(raw), room, None if number == 0 else until)
            for number, raw in enumerate(batch)
        ]
        bodies = [body for body in answers if body is not None]
        return Answer(200, b"[" + b",".join(bodies) + b"]") if bodies else ACCEPTED

    async def _check_on(self, caller: TenantContext, room: Room, until: float) -> None:
        """
        Raise Refused unless a batch's next request may begin.

        A batch is checked once, at the door, and may hold fifty calls of half a minute: what has
        changed since then must not wait for the last of them.
        """
        if self._server.tasks.is_out(caller) or (await room.look()).ended:
            raise LOST
        if self._server.runner.clock() >= until:
            raise TOO_LONG

    async def _part(
        self, exchange: Exchange, message: Message, room: Room, until: float | None
    ) -> bytes | None:
        """One message of a batch; a request that is not the first is begun *until* that time."""
        identity = message.id
        if message.refusal is not None:
            return error(identity, message.refusal)
        if message.method is None:
            await self.respond(message, room)
            return None
        if identity is None:
            await self.notify(exchange, message, room)
            return None
        ear = Ear(room, identity)
        try:
            if until is not None:
                await self._check_on(exchange.caller, room, until)
            return result(identity, await self._work(exchange, message, ear, None))
        except Refused as refusal:
            return error(identity, refusal)
        except AuthError as raised:
            # One status for all of them: what is already done cannot be answered with a challenge.
            return error(identity, as_refusal(raised))
        except UNANSWERED as raised:
            return error(identity, without_answer(raised, modern=False))
        except (StoreUnavailable, TenantSuspended) as why:
            shut = isinstance(why, TenantSuspended)
            return error(identity, SUSPENDED if shut else UNAVAILABLE)
        except Stopped:
            return None
        finally:
            ear.close()


class Reason(msgspec.Struct):
    """Why a client cancels, in its own words."""

    reason: str = ""


def _reason(params: bytes | None) -> str:
    try:
        said = msgspec.json.decode(params or b"{}", type=Reason).reason[:REASON_CHARACTERS]
    except msgspec.DecodeError:
        return ""
    # It ends up before somebody's eyes, maybe in a terminal.
    return "".join(letter if letter.isprintable() else "?" for letter in said)
