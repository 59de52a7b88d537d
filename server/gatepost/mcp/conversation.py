"""The client of a call in the older revisions: told on the call's stream, and asked there too."""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.keyring import KeyRing
from gatepost.mcp.asking import WITH_URLS, projected
from gatepost.mcp.ear import Ear
from gatepost.mcp.interaction import Audience
from gatepost.mcp.jsonrpc import URL_ELICITATION, Refused, request
from gatepost.mcp.resumption import Resumable
from gatepost.mcp.room import Room, Signal
from gatepost.mcp.visit import Visit
from gatepost.stores.api import StoreUnavailable
from gatepost.streams import Closing, TooMany
from gatepost.telemetry.trace import marked
from gatepost.tools.api import ToolFailure
from gatepost.tools.asking import UrlElicitation
from gatepost.tools.client import (
    PAGES,
    Capabilities,
    InputNeeded,
    InputRequest,
    LogLevel,
    MissingCapability,
    Waiting,
    held,
    lacking,
    pending,
    required_by,
)
from gatepost_authz.caller import TenantContext

PURPOSE = "question"
# Word of an answer is a reason to look; it may be lost, so we look anyway.
LOOK_EVERY_S = 2.0
ANSWER_KEPT_S = 30.0
MOST_CHARACTERS = 300
# What clients answer when a person does not want a sampling (MCP, sampling).
REJECTED = -1
UNSET_LEVEL: LogLevel = "info"
"""What a session hears until its client says which messages it wants."""


class Fault(msgspec.Struct):
    """The error a client answers."""

    code: int = 0
    message: str = ""


class Reply(msgspec.Struct):
    """A client's answer: one of the two."""

    result: dict[str, Any] | UnsetType = UNSET
    error: Fault | UnsetType = UNSET


_decode = msgspec.json.Decoder(Reply).decode


class Desk:
    """
    The questions under way in this process, and the ids they go by.

    An id is signed and names its session: whoever answers something else, at whichever process,
    is told apart without asking anybody.
    """

    def __init__(
        self,
        keyring: KeyRing,
        *,
        most_per_caller: int = 20,
        limit_s: float = 300,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._keyring = keyring
        self.stopping = stopping or asyncio.Event()
        """Set when the server is about to stop."""
        self.limit_s = limit_s
        self._most = most_per_caller
        self._open: Counter[tuple[str, str, str, str]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def name(self, room: Room) -> str:
        """An id for a question of this session."""
        return self._keyring.sign(PURPOSE, secrets.token_bytes(9) + room.session.key)

    async def expect(self, room: Room, identity: str) -> None:
        """Let every process know that this question waits."""
        await room.leave("asked", identity, b"", ttl_s=self.limit_s)

    async def take_in(self, room: Room, identity: str, answer: bytes) -> None:
        """
        Bring a client's answer to the process that waits for it; anything else is ignored.

        One answer to each question, while it waits: an id stays good as long as its key, and an
        answer may weigh megabytes, so that whoever collects ids could fill the relay.
        """
        payload = self._keyring.verify(PURPOSE, identity)
        if payload is None or payload[9:] != room.session.key:
            return
        if await room.collect("asked", identity) is not None:
            await room.leave("answer", identity, answer, ttl_s=ANSWER_KEPT_S)
            await room.tell("answer", identity)

    def expect_no_more(self, room: Room, identities: Iterable[str]) -> None:
        """Nobody waits for these; nobody waits for the relay to hear of it either."""
        task = asyncio.get_running_loop().create_task(_clear(room, (*identities,)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def open(self, caller: TenantContext, questions: int) -> None:
        """Count questions of a caller; raises ToolFailure when they are too many."""
        if self._open[caller.principal_key] + questions > self._most:
            raise ToolFailure(
                "rate_limit", "Too many questions wait for this caller's answer.", retry_after=10
            )
        self._open[caller.principal_key] += questions

    def close(self, caller: TenantContext, questions: int) -> None:
        """They wait no more."""
        self._open[caller.principal_key] -= questions
        if not self._open[caller.principal_key]:
            del self._open[caller.principal_key]


class Question(NamedTuple):
    """One question that is out."""

    key: str
    identity: str
    method: str


class Conversation(Audience):
    """
    One call's client.

    Questions go out as requests on the call's own stream (SA-04), only of kinds that the client
    declared when the session began; the answers are POSTed to any process. The tool's clock stands
    still meanwhile: each question has a time limit of its own (CX-05).
    """

    def __init__(
        self,
        stream: Resumable | None,
        *,
        ear: Ear,
        desk: Desk,
        caller: TenantContext,
        token: Raw | None,
        allowed_s: Callable[[TenantContext], float],
    ) -> None:
        if stream is not None:
            level: Any = ear.room.record.log_level or UNSET_LEVEL
            self.tell(stream, token, level)
        self._resumable = stream
        self._ear = ear
        self._desk = desk
        self._caller = caller
        self._allowed_s = allowed_s
        self._pages: list[Mapping[str, Any]] = []

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the client declared when its session began."""
        return self._ear.room.session.declared

    async def pause(self, retry_after_s: float) -> None:
        """Let go of the connection; the client comes back with the last event's id."""
        if self._resumable is not None:
            await self._resumable.pause(retry_after_s)

    async def request(
        self, requests: Mapping[str, InputRequest]
    ) -> Mapping[str, Mapping[str, Any]]:
        """See Client; ToolFailure for a client that fails, refuses, or takes too long."""
        if missing := lacking(self.capabilities, required_by(requests)):
            raise MissingCapability(missing)
        room, stream = self._ear.room, self._resumable
        revision = room.session.version
        shown = {
            key: marked(projected(one, revision, elicitation_id=secrets.token_urlsafe(12)))
            for key, one in requests.items()
        }
        if stream is None:
            # A batch, or a client that reads no events: there is nothing to ask on.
            if revision == WITH_URLS and all(one.get("mode") == "url" for one in shown.values()):
                self._pages = [*shown.values()]
                raise InputNeeded(requests)
            raise MissingCapability(required_by(requests))
        out = [Question(key, self._desk.name(room), requests[key].method) for key in shown]
        self._desk.open(self._caller, len(out))
        try:
            with held(self._clock):
                return await self._converse(stream, out, shown)
        finally:
            self._desk.close(self._caller, len(out))

    async def stand_by(self, waiting: Waiting) -> None:
        """See Client; the call's stream stays open, and a client that opens pages is shown one."""
        stream, allowed_s = self._resumable, self._allowed_s(self._caller)
        opens = waiting.url and self._ear.room.session.version == WITH_URLS
        if stream is None or not opens or lacking(self.capabilities, PAGES):
            if not await self.hold(waiting, allowed_s, self._desk.stopping):
                raise pending(waiting)
            return
        page = UrlElicitation(waiting.message, waiting.url).request
        shown = projected(page, WITH_URLS, elicitation_id=secrets.token_urlsafe(12))
        question = Question("page", self._desk.name(self._ear.room), page.method)
        visit = Visit(waiting, page, self._show(stream, question, shown))
        is_over = was_open = False
        try:
            is_over = await self.hold(visit, allowed_s, self._desk.stopping)
        finally:
            was_open = visit.is_open
            await visit.close()
        if was_open:
            await self._take_back(stream, [question.identity])
        if visit.declined or not is_over:
            raise pending(waiting)
        told = {"elicitationId": shown["elicitationId"]}
        await stream.notify("notifications/elicitation/complete", told)

    async def _show(
        self, stream: Resumable, question: Question, shown: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        self._desk.open(self._caller, 1)
        try:
            answers = await self._converse(stream, [question], {question.key: shown})
        finally:
            self._desk.close(self._caller, 1)
        return answers[question.key]

    async def answered(self, work: Awaitable[bytes]) -> bytes:
        """See Audience; pages to visit are the one question that an answer can carry (E-15)."""
        try:
            return await super().answered(work)
        except InputNeeded:
            data = {"elicitations": self._pages}
            raise Refused(URL_ELICITATION, "A page has to be visited first", data=data) from None

    async def _converse(
        self, stream: Resumable, out: list[Question], shown: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Mapping[str, Any]]:
        waiting = {one.identity: one for one in out}
        news = asyncio.Event()

        def hear(signal: Signal) -> None:
            if signal.kind == "answer" and signal.about in waiting:
                news.set()

        await self._ear.open(hear)
        answers: dict[str, Mapping[str, Any]] = {}
        try:
            for one in out:
                await self._desk.expect(self._ear.room, one.identity)
                await stream.ask(request(one.identity, one.method, shown[one.key]))
            async with asyncio.timeout(self._desk.limit_s):
                while waiting:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await news.wait()
                    news.clear()
                    await self._gather(waiting, answers)
        except TimeoutError:
            await self._take_back(stream, waiting)
            raise ToolFailure(
                "timeout", f"No answer came within {self._desk.limit_s:g} seconds."
            ) from None
        except ToolFailure:
            await self._take_back(stream, waiting)
            raise
        except (TooMany, Closing):
            raise ToolFailure(
                "upstream_unavailable", "The client cannot be asked now.", retry_after=10
            ) from None
        finally:
            self._ear.mute(hear)
            if waiting:
                self._desk.expect_no_more(self._ear.room, waiting)
        return answers

    async def _gather(
        self, waiting: dict[str, Question], answers: dict[str, Mapping[str, Any]]
    ) -> None:
        for identity in tuple(waiting):
            answer = await self._ear.room.collect("answer", identity)
            if answer is not None:
                key = waiting.pop(identity).key
                answers[key] = _read(answer)

    async def _take_back(self, stream: Resumable, waiting: Iterable[str]) -> None:
        for identity in waiting:
            params = {"requestId": identity, "reason": "The answer is not waited for any more"}
            await stream.notify("notifications/cancelled", params)


async def _clear(room: Room, identities: Iterable[str]) -> None:
    # What cannot be cleared away now goes by itself, later.
    with contextlib.suppress(StoreUnavailable):
        for identity in identities:
            await room.collect("asked", identity)
            await room.collect("answer", identity)


def _read(answer: bytes) -> Mapping[str, Any]:
    try:
        reply = _decode(answer)
    except msgspec.DecodeError:
        raise ToolFailure("upstream_unavailable", "The client's answer cannot be read.") from None
    if reply.result is not UNSET:
        return reply.result
    fault = Fault() if reply.error is UNSET else reply.error
    said = fault.message[:MOST_CHARACTERS] or "no reason given"
    if fault.code == REJECTED:
        raise ToolFailure("denied", f"The person at the client refused: {said}")
    raise ToolFailure("upstream_unavailable", f"The client could not answer: {said}")
