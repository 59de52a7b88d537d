"""The modern leg: every request stands alone."""

from msgspec import UNSET

from gatepost.intake import UntilDisconnect
from gatepost.mcp import modern
from gatepost.mcp.calling import UNMARKED, marks_of, unknown_tool
from gatepost.mcp.era import MODERN
from gatepost.mcp.exchange import Answer, Exchange
from gatepost.mcp.jsonrpc import METHOD_NOT_FOUND, Message, Refused
from gatepost.mcp.line import Line
from gatepost.mcp.methods import Method, served
from gatepost.mcp.params import NO_META, Meta, Params, arguments_in, name_in
from gatepost.mcp.reply import Replies
from gatepost.mcp.roundtrips import Rounds
from gatepost.mcp.server import Ask, Server
from gatepost.mcp.stream import Stream, reads_events
from gatepost.stores.api import StoreUnavailable
from gatepost.tools.client import NOBODY
from gatepost.tools.registry import UnknownTool


class Stateless:
    """Serves requests of 2026-07-28, in the order of checks that H-13 gives."""

    def __init__(self, server: Server, replies: Replies, *, mirrors: bool = True) -> None:
        self._server = server
        self._asking = server.asking
        self._replies = replies
        self._mirrors = mirrors
        self._methods = served(server.modern_capabilities, modern=True)
        tools = server.registry.tools.items() if mirrors else ()
        self._routed = frozenset(name for name, tool in tools if tool.routed)

    async def serve(
        self,
        exchange: Exchange,
        message: Message,
        identity: bytes,
        params: Params,
        problem: Refused | None,
    ) -> Answer | Line | None:
        """
        Answer one request, or begin a stream that stays open; None when the answer went out as a
        stream, or nobody waits for it.
        """
        try:
            meta = params.meta
            if meta is UNSET or meta.version is UNSET or meta.capabilities is UNSET:
                raise modern.no_meta(NO_META if meta is UNSET else meta)
            method = self._check(exchange, message, params, problem)
            is_marked = exchange.head.is_marked or meta.retry is not UNSET
            retry, correlation = marks_of(exchange.headers, params) if is_marked else UNMARKED
            if method.handler is None:
                return await self._open(exchange, identity, params, method)
            client = self._client(exchange, method, params, meta)
        except Refused as refusal:
            return self._replies.refused(identity, refusal)
        except StoreUnavailable as outage:
            return self._replies.unavailable(exchange.request_id, identity, outage)
        caller, request_id = exchange.caller, exchange.request_id
        server, holder, peer = self._server, exchange.holder, exchange.head.peer
        if client is None:
            ask = Ask(
                caller, request_id, MODERN, params, NOBODY, None, retry, correlation, holder, peer
            )
            handled = method.handler(server, ask)
            work = UntilDisconnect(exchange.receive, handled, caller, server.underway)
            return await self._replies.to(exchange, identity, None, work)
        stream = client.stream
        if stream is not None:
            holder = None  # a stream waits by itself
        ask = Ask(
            caller, request_id, MODERN, params, client, None, retry, correlation, holder, peer
        )
        handled = method.handler(server, ask)
        if stream is not None:
            handled = client.answered(handled)
        work = UntilDisconnect(exchange.receive, handled, caller, server.underway)
        return await self._replies.to(exchange, identity, stream, work, client.questions)

    async def _open(
        self, exchange: Exchange, identity: bytes, params: Params, method: Method
    ) -> Answer | Line | None:
        if method.opener is None:
            return None
        return await method.opener(self._server, exchange, identity, params)

    def _client(
        self, exchange: Exchange, method: Method, params: Params, meta: Meta
    ) -> Rounds | None:
        """Who can be told or asked something; None when there is nothing to tell and to ask."""
        tells = (
            meta.progress_token is not UNSET
            or meta.log_level is not UNSET
            # Who may have to wait is shown that its call lives, whether it asked to be told or not.
            or (params.name in self._asking and method.name == "tools/call")
        )
        goes_on = params.input_responses is not UNSET or params.request_state is not UNSET
        if not (tells or goes_on or meta.capabilities):
            return None
        client = Rounds(self._server, exchange.caller, method.name, params, asks=method.asks)
        if tells:
            events = reads_events(exchange.headers.get(b"accept", b""))
            client.hear(Stream(exchange.send) if events else None)
        if goes_on and method.asks:
            client.remember()
        return client

    def _check(
        self, exchange: Exchange, message: Message, params: Params, problem: Refused | None
    ) -> Method:
        """What H-13 asks before dispatch; the version itself is ruled on already."""
        name = message.method or ""
        method = self._methods.get(name)
        member = None if method is None else method.mirrors
        mirrored = None if member is None else getattr(params, member)
        if self._mirrors:
            modern.check_mirrors(exchange.head, name, mirrored, member)
        if method is None:
            raise Refused(METHOD_NOT_FOUND, "Method not found", status=404)
        if problem is not None:
            raise problem
        if params.name in self._routed and name == "tools/call":
            self._check_routed(exchange, params)
        return method

    def _check_routed(self, exchange: Exchange, params: Params) -> None:
        try:
            tool = self._server.registry.find(exchange.caller, name_in(params))
        except UnknownTool as unknown:
            # Before the headers are looked at: whether they fit would tell that the tool exists.
            raise unknown_tool(unknown.name) from None
        modern.check_routed(exchange.headers, tool, arguments_in(params))
